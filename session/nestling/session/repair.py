"""Closing a turn that was cut off: one result for each unanswered call, then the ends.

A pure function of the preserved events, so that a repair done twice is done once, and
one that was cut short is carried on. Ids and error codes are the format's; the words
are ours. Every closer takes the time of the last real event: nothing happened later.
What a delegating call came to may be known from its child's log; then that is the
result (``nestling.session.recovery``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from nestling.session.event import Event, event_from_content
from nestling.session.jsontext import JsonObject
from nestling.session.surface import is_replacement

NOT_STARTED: Final = "TOOL_NOT_STARTED"
OUTCOME_UNKNOWN: Final = "TOOL_OUTCOME_UNKNOWN"

_NOT_STARTED_TEXT: Final = (
    "Error: the session was interrupted before this tool call started. "
    "It did nothing; calling again is safe."
)
_OUTCOME_UNKNOWN_TEXT: Final = (
    "Error: the session was interrupted while this tool call ran, and its outcome is "
    "unknown. Call again only if it reads or is idempotent; otherwise verify first."
)


class OpenCall(NamedTuple):
    """A tool call without a result.

    Attributes:
        call_id: the model's id of it, which it may have used twice.
        name: the tool.
        turn: the open turn.
        step: its step.
        block: the position of its block in the message; None if no message holds it.
        call_seq: its ``tool/call``; None if it had not started.
    """

    call_id: str
    name: str
    turn: int
    step: int
    block: int | None
    call_seq: int | None


class _OpenTurn:
    """What the tail of a log leaves open.

    The k-th start, and the k-th result, of one id are those of the k-th block that has
    it.
    """

    def __init__(self) -> None:
        self.turn: int | None = None
        self.step: int | None = None
        self._forget()

    def _forget(self) -> None:
        self._calls: dict[int, OpenCall] = {}
        self._unstarted: dict[str, deque[int]] = {}
        self._unanswered: dict[str, deque[int]] = {}
        self._count = 0

    @property
    def pending(self) -> list[OpenCall]:
        """The calls without results, in the order of their blocks."""
        return list(self._calls.values())

    def append(self, event: Event) -> None:
        if is_replacement(event.surface_op):
            return  # it rewrites what a model sees, not what was called
        match event.type:
            case "turn/start":
                self.turn, self.step = event.data["turn"], None
                self._forget()
            case "turn/end":
                self.turn = self.step = None
                self._forget()
            case "step/start":
                self.step = event.data["step"]
            case "step/end":
                self.step = None
                self._forget()
            case "assistant/message":
                self._message(event)
            case "tool/call":
                self._started(event)
            case "tool/result":
                self._answered(event.data["message"]["source"]["callId"])

    def _message(self, event: Event) -> None:
        for position, block in enumerate(event.data["message"]["content"]):
            if block.get("type") == "tool-call":
                number = self._open(event, block["id"], block["name"], position, None)
                self._unstarted.setdefault(block["id"], deque()).append(number)

    def _started(self, event: Event) -> None:
        call_id = event.data["callId"]
        waiting = self._unstarted.get(call_id)
        if waiting:
            number = waiting.popleft()
            self._calls[number] = self._calls[number]._replace(call_seq=event.seq)
        else:
            self._open(event, call_id, event.data["name"], None, event.seq)

    def _open(
        self,
        event: Event,
        call_id: str,
        name: str,
        block: int | None,
        call_seq: int | None,
    ) -> int:
        number = self._count
        self._count += 1
        place = event.data["turn"], event.data["step"]
        self._calls[number] = OpenCall(call_id, name, *place, block, call_seq)
        self._unanswered.setdefault(call_id, deque()).append(number)
        return number

    def _answered(self, call_id: str) -> None:
        waiting = self._unanswered.get(call_id)
        if not waiting:
            return
        number = waiting.popleft()
        del self._calls[number]
        unstarted = self._unstarted.get(call_id)
        if unstarted and unstarted[0] == number:
            unstarted.popleft()


def open_calls(events: Iterable[Event]) -> list[OpenCall]:
    """Return the calls that the open turn of a log has left without results."""
    tail = _tail(events)
    return [] if tail.turn is None else tail.pending


def closers(
    events: Sequence[Event], results: Mapping[OpenCall, JsonObject] | None = None
) -> list[Event]:
    """Return the events that close the turn `events` leave open; none if balanced.

    Args:
        events: the log.
        results: what is known of calls of ``open_calls``: ``{"block", "error"?}``; the
            others are closed with an outcome that is unknown or never was.
    """
    tail = _tail(events)
    if tail.turn is None:
        return []
    first_seq, time = len(events), events[-1].time
    contents = _closing_contents(tail, tail.turn, first_seq, results or {})
    return [
        event_from_content(content, first_seq + offset, time)
        for offset, content in enumerate(contents)
    ]


def _tail(events: Iterable[Event]) -> _OpenTurn:
    tail = _OpenTurn()
    for event in events:
        tail.append(event)
    return tail


def _closing_contents(
    tail: _OpenTurn, turn: int, first_seq: int, results: Mapping[OpenCall, JsonObject]
) -> Iterator[JsonObject]:
    for offset, call in enumerate(tail.pending):
        known = results.get(call)
        yield _result(
            call, first_seq + offset, _unknown(call) if known is None else known
        )
    if tail.step is not None:
        yield {"type": "step/end", "data": {"turn": turn, "step": tail.step}}
    yield {
        "type": "turn/end",
        "data": {"turn": turn, "reason": {"kind": "interrupted"}},
    }


def _unknown(call: OpenCall) -> JsonObject:
    """Build the result of a call of which nothing more is known."""
    started = call.call_seq is not None
    name = "ToolOutcomeUnknownError" if started else "ToolNotStartedError"
    code = OUTCOME_UNKNOWN if started else NOT_STARTED
    text = _OUTCOME_UNKNOWN_TEXT if started else _NOT_STARTED_TEXT
    block = {
        "type": "tool-result",
        "toolCallId": call.call_id,
        "content": [{"type": "text", "text": text}],
        "isError": True,
    }
    return {"block": block, "error": {"name": name, "code": code}}


def _result(call: OpenCall, seq: int, known: JsonObject) -> JsonObject:
    message = {
        "id": f"interrupted-tool-result-{call.call_id}-{seq}",
        "role": "user",
        "source": {"kind": "tool", "callId": call.call_id},
        "content": [known["block"]],
    }
    data = {"turn": call.turn, "step": call.step, "message": message}
    if "error" in known:
        data["error"] = known["error"]
    content: JsonObject = {"type": "tool/result", "data": data, "surfaceOp": "append"}
    if call.call_seq is not None:
        content["sourceEventSeqs"] = [call.call_seq]
    return content
