"""Closing a turn that was cut off: one result for each unanswered call, then the ends.

A pure function of the preserved events, so that a repair done twice is done once.
Ids and error codes are the format's; the words are ours. Every closer takes the time
of the last real event: nothing happened later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from nestling.session.event import Event, event_from_content
from nestling.session.jsontext import JsonObject

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


class _Pending(NamedTuple):
    """A tool call without a result."""

    call_id: str
    step: int
    call_seq: int | None


class _OpenTurn:
    """What the tail of a log leaves open."""

    def __init__(self) -> None:
        self.turn: int | None = None
        self.step: int | None = None
        self.pending: dict[str, _Pending] = {}

    def append(self, event: Event) -> None:
        match event.type:
            case "turn/start":
                self.turn, self.step, self.pending = event.data["turn"], None, {}
            case "turn/end":
                self.turn, self.step, self.pending = None, None, {}
            case "step/start":
                self.step = event.data["step"]
            case "step/end":
                self.step, self.pending = None, {}
            case "assistant/message":
                self._message(event)
            case "tool/call":
                call_id = event.data["callId"]
                step = event.data["step"]
                self.pending[call_id] = _Pending(call_id, step, event.seq)
            case "tool/result":
                call_id = event.data["message"]["source"]["callId"]
                self.pending.pop(call_id, None)

    def _message(self, event: Event) -> None:
        for block in event.data["message"]["content"]:
            if block.get("type") == "tool-call":
                call_id = block["id"]
                step = event.data["step"]
                self.pending[call_id] = _Pending(call_id, step, None)


def closers(events: Sequence[Event]) -> list[Event]:
    """Return the events that close the turn `events` leave open; none if balanced."""
    tail = _OpenTurn()
    for event in events:
        tail.append(event)
    if tail.turn is None:
        return []
    first_seq, time = len(events), events[-1].time
    contents = _closing_contents(tail, tail.turn, first_seq)
    return [
        event_from_content(content, first_seq + offset, time)
        for offset, content in enumerate(contents)
    ]


def _closing_contents(
    tail: _OpenTurn, turn: int, first_seq: int
) -> Iterator[JsonObject]:
    for offset, call in enumerate(tail.pending.values()):
        yield _result(call, turn, first_seq + offset)
    if tail.step is not None:
        yield {"type": "step/end", "data": {"turn": turn, "step": tail.step}}
    yield {
        "type": "turn/end",
        "data": {"turn": turn, "reason": {"kind": "interrupted"}},
    }


def _result(call: _Pending, turn: int, seq: int) -> JsonObject:
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
    message = {
        "id": f"interrupted-tool-result-{call.call_id}-{seq}",
        "role": "user",
        "source": {"kind": "tool", "callId": call.call_id},
        "content": [block],
    }
    data = {
        "turn": turn,
        "step": call.step,
        "message": message,
        "error": {"name": name, "code": code},
    }
    content: JsonObject = {"type": "tool/result", "data": data, "surfaceOp": "append"}
    if started:
        content["sourceEventSeqs"] = [call.call_seq]
    return content
