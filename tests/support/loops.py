"""A turn loop with short names for what tests do with it."""

from __future__ import annotations

from nestling.session.jsontext import JsonObject
from nestling.session.log import SessionLog
from nestling.worker.loop import TurnLoop
from support.session_logs import call_block, finish

STOP = finish()
TOOLS = finish("tool-calls")
USER: JsonObject = {"kind": "user"}


def tool_chunks(*ids: str) -> list[JsonObject]:
    """The chunks of a message of tool calls."""
    ends: list[JsonObject] = [
        {"type": "block-end", "index": index, "block": call_block(call_id)}
        for index, call_id in enumerate(ids)
    ]
    return [*ends, TOOLS]


def result_of(call_id: str, **more: object) -> JsonObject:
    """The result of a tool call, as the hub sends it."""
    block = {"type": "tool-result", "toolCallId": call_id, "content": []}
    return {"block": block, **more}


class Driver:
    """A loop with short names for what tests do with it."""

    def __init__(self, log: SessionLog | None = None) -> None:
        self.now = 1000
        self.loop = TurnLoop(SessionLog() if log is None else log, self._clock)

    def _clock(self) -> int:
        self.now += 1
        return self.now

    def start(self) -> None:
        self.loop.start_turn()
        self.loop.start_step()

    def answer(self, *chunks: JsonObject) -> None:
        self.loop.begin_call()
        for chunk in chunks:
            self.loop.add_chunk(chunk)
        self.loop.end_call()

    def open(self, *chunks: JsonObject) -> None:
        self.loop.begin_call()
        for chunk in chunks:
            self.loop.add_chunk(chunk)

    def close(self) -> None:
        self.loop.end_step()
        self.loop.end_turn()

    def reason(self) -> JsonObject:
        last = self.loop.log.events[-1]
        assert last.type == "turn/end"
        reason: JsonObject = last.data["reason"]
        return reason
