"""What ``nestling show`` prints of one session: its events, the boundary among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from nestling.harness.printable import shown
from nestling.harness.replay_report import counted
from nestling.session.chunk import is_finish
from nestling.session.event import Event
from nestling.session.fold import joined
from nestling.session.jsontext import Json, JsonObject, dumps
from nestling.session.shape import shape_problem

_SHOWN_CHARS: Final = 72
_LOOKED_AT: Final = 4096
_DELTA_KEYS: Final = ("text", "argumentsDelta")


def session_text(events: Sequence[Event], seed_length: int) -> str:
    """Return the events of a session as text.

    The chunks of one call are one line; times are seconds since the first event, and
    one that lies before an earlier event's is marked and shown as that.
    """
    inherited, own = events[:seed_length], events[seed_length:]
    clock = _Clock(events)
    lines = list(_lines(inherited, clock))
    if seed_length:
        lines.append(_boundary(len(inherited), len(own)))
    lines += _lines(own, clock)
    return "\n".join(lines)


def _boundary(inherited: int, own: int) -> str:
    return f"──────── seed boundary: {inherited} inherited │ {own} own ────────"


class _Clock:
    """Tells the times of events so that none is before another."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._start = self._latest = events[0].time if events else 0
        self._is_told = any(event.time != self._start for event in events)

    def at(self, time: int) -> str:
        if not self._is_told:  # a projected recording has no times
            return ""
        mark = "<" if time < self._latest else " "
        self._latest = max(self._latest, time)
        return f"{(self._latest - self._start) / 1000:>9.3f}s{mark} "


def _lines(events: Sequence[Event], clock: _Clock) -> Iterator[str]:
    for run in _runs(events):
        first, last = run[0], run[-1]
        time = clock.at(first.time)
        clock.at(last.time)
        seqs = f"{first.seq}" if len(run) == 1 else f"{first.seq}-{last.seq}"
        name = "assistant/chunk" if len(run) > 1 else shown(_cut(first.type))
        what = _chunks_text(run) if _is_chunk(first) else _event_text(first)
        yield f"{seqs:>11} {time} {name:<21} {_place(first):<7} {what}".rstrip()


def _runs(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Yield the chunks of each call together, and every other event alone."""
    start = 0
    for position, event in enumerate(events):
        following = events[position + 1] if position + 1 < len(events) else None
        is_open = (
            following is not None
            and _is_chunk(event)
            and _is_chunk(following)
            and not is_finish(event.data["chunk"])
            and _place(event) == _place(following)
        )
        if not is_open:
            yield events[start : position + 1]
            start = position + 1


def _is_chunk(event: Event) -> bool:
    return event.type == "assistant/chunk" and shape_problem(event) is None


def _place(event: Event) -> str:
    data = event.data if type(event.data) is dict else {}
    turn, step = data.get("turn"), data.get("step")
    if type(turn) is not int:
        return ""
    return f"t{turn}s{step}" if type(step) is int else f"t{turn}"


def _chunks_text(run: Sequence[Event]) -> str:
    chunks = [event.data["chunk"] for event in run]
    last = chunks[-1]
    end = shown(_cut(last["reason"]["kind"])) if is_finish(last) else "no finish"
    said = _cut_text("".join(_deltas(chunks)))
    return f"{counted(len(chunks), 'chunk')}, {end}  {said}".rstrip()


def _deltas(chunks: Sequence[JsonObject]) -> Iterator[str]:
    """Yield the beginning of what a call said, else of what it called or thought."""
    for kind in ("text-delta", "tool-call-delta", "reasoning-delta"):
        length = 0
        for chunk in chunks:
            if chunk["type"] == kind:
                text = next(chunk[key] for key in _DELTA_KEYS if key in chunk)
                length += len(text)
                yield text
                if length > _LOOKED_AT:
                    break
        if length:
            return


def _event_text(event: Event) -> str:
    data = event.data
    tell = _TELLERS.get(event.type)
    text = None
    if tell is not None and shape_problem(event) is None:
        text = tell(data)
    if text is None:
        text = "" if data == {} else _json_text(data)
    operation = event.surface_op
    if type(operation) is dict:
        text = f"replaces {_json_text(operation)}  {text}"
    return text


def _json_text(value: Json) -> str:
    return _cut_text(dumps(value).decode("utf-8"))


def _cut(text: str) -> str:
    return f"{text[:_SHOWN_CHARS]}…" if len(text) > _SHOWN_CHARS else text


def _cut_text(text: str) -> str:
    return shown(_cut(joined(text[:_LOOKED_AT])))


def _block_text(block: JsonObject) -> str:
    if block["type"] == "tool-call":
        return f"[calls {block['name']} {block['id']}]"
    if block["type"] == "tool-result" and type(block.get("content")) is list:
        return _blocks_text(b for b in block["content"] if _is_block(b))
    text = block.get("text")
    if block["type"] == "text" and type(text) is str:
        return text[:_LOOKED_AT]
    return f"[{block['type']}]"


def _is_block(value: Json) -> bool:
    return type(value) is dict and type(value.get("type")) is str


def _blocks_text(blocks: Iterator[JsonObject] | Sequence[JsonObject]) -> str:
    texts: list[str] = []
    for block in blocks:
        texts.append(_block_text(block))
        if sum(map(len, texts)) > _LOOKED_AT:
            break
    return " ".join(texts)


def _user(data: JsonObject) -> str:
    source = data.get("source")
    kind = source.get("kind") if type(source) is dict else None
    return _cut_text(f"{kind}: {_blocks_text(data['content'])}")


def _assistant(data: JsonObject) -> str:
    mark = "(interrupted) " if data.get("interrupted") is True else ""
    return _cut_text(mark + _blocks_text(data["message"]["content"]))


def _tool_call(data: JsonObject) -> str:
    return _cut_text(f"{data['callId']}: {data['name']} {data['arguments']}")


def _tool_result(data: JsonObject) -> str:
    message, error = data["message"], data.get("error")
    code = error.get("code") if type(error) is dict else None
    mark = "" if code is None else f"({code}) "
    text = _block_text(message["content"][0])
    return _cut_text(f"{message['source']['callId']}: {mark}{text}")


def _turn_end(data: JsonObject) -> str:
    reason = data["reason"]
    more = {key: value for key, value in reason.items() if key != "kind"}
    said = f"  {_json_text(more)}" if more else ""
    return f"{_cut_text(reason['kind'])}{said}"


def _request_header(data: JsonObject) -> str:
    config = data["header"]["config"]
    return _cut_text(f"{config['provider']} {config['model']}")


def _nothing(_: JsonObject) -> str:
    return ""


_TELLERS: Final[dict[str, Callable[[JsonObject], str]]] = {
    "turn/start": _nothing,
    "step/start": _nothing,
    "step/end": _nothing,
    "turn/end": _turn_end,
    "user/message": _user,
    "assistant/message": _assistant,
    "tool/call": _tool_call,
    "tool/result": _tool_result,
    "request/header": _request_header,
}
