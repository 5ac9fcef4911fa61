"""Small logs for tests: written event by event, as a loop would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nestling.session.digest import seed_digest
from nestling.session.event import Event, event_from_content
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject


def delta(text: str, index: float = 0, kind: str = "text-delta") -> JsonObject:
    """A delta of a text or reasoning block."""
    return {"type": kind, "index": index, "text": text}


def finish(kind: str = "stop", **more: Any) -> JsonObject:
    """The finish chunk of a call."""
    return {"type": "finish", "reason": {"kind": kind}, **more}


def text_block(text: str) -> JsonObject:
    """A text block."""
    return {"type": "text", "text": text}


def call_block(call_id: str, name: str = "bash") -> JsonObject:
    """A tool-call block."""
    return {"type": "tool-call", "id": call_id, "name": name, "arguments": "{}"}


def chunk_event(seq: int, chunk: JsonObject, time: int = 0, **place: Any) -> Event:
    """One ``assistant/chunk`` event, of turn 1 and step 1 unless `place` says other."""
    data = {"turn": 1, "step": 1, **place, "chunk": chunk}
    return Event(seq, "assistant/chunk", time, data)


def rows(events: Iterable[Event]) -> list[JsonObject]:
    """The rows of events, which compare where events do not."""
    return [event.row() for event in events]


class LogWriter:
    """Writes a log's events; each is one millisecond later than the last."""

    def __init__(self, time: int = 1000) -> None:
        self.events: list[Event] = []
        self.turn = 0
        self.step = 0
        self._time = time

    def add(self, kind: str, data: Any, **fields: Any) -> int:
        """Add an event and return its seq."""
        seq = len(self.events)
        content = {"type": kind, "data": data, **fields}
        self.events.append(event_from_content(content, seq, self._time + seq))
        return seq

    def start_turn(self) -> int:
        """Start the next turn."""
        self.turn, self.step = self.turn + 1, 0
        return self.add("turn/start", {"turn": self.turn})

    def end_turn(self, kind: str = "completed") -> int:
        """End the turn."""
        return self.add("turn/end", {"turn": self.turn, "reason": {"kind": kind}})

    def start_step(self) -> int:
        """Start the turn's next step."""
        self.step += 1
        return self.add("step/start", self._place())

    def end_step(self) -> int:
        """End the step."""
        return self.add("step/end", self._place())

    def user(self, text: str, **fields: Any) -> int:
        """Put a user's message before the model."""
        message = {
            "id": f"u{len(self.events)}",
            "role": "user",
            "content": [text_block(text)],
            "source": {"kind": "user"},
        }
        return self.add("user/message", message, surfaceOp="append", **fields)

    def chunks(self, *chunks: JsonObject) -> int:
        """Stream chunks; returns the seq of the last."""
        for chunk in chunks:
            self.add("assistant/chunk", {**self._place(), "chunk": chunk})
        return len(self.events) - 1

    def assistant(self, *blocks: JsonObject) -> int:
        """Log the message of a call."""
        message = {
            "id": f"a{len(self.events)}",
            "role": "assistant",
            "content": list(blocks),
            "source": {"kind": "model", "provider": "p", "model": "m"},
        }
        data = {**self._place(), "message": message}
        return self.add("assistant/message", data, surfaceOp="append")

    def tool_call(self, call_id: str, name: str = "bash") -> int:
        """Log that a tool starts."""
        data = {"callId": call_id, "name": name, "arguments": "{}"}
        return self.add("tool/call", {**self._place(), **data})

    def tool_result(self, call_id: str, call_seq: int) -> int:
        """Log what a tool returned."""
        data = {**self._place(), "message": result_message(call_id)}
        fields: JsonObject = {"surfaceOp": "append", "sourceEventSeqs": [call_seq]}
        return self.add("tool/result", data, **fields)

    def answered_turn(self, question: str, answer: str) -> None:
        """Write a whole turn of one step without tools."""
        self.start_turn()
        self.start_step()
        self.user(question)
        self.chunks(delta(answer), finish())
        self.assistant(text_block(answer))
        self.end_step()
        self.end_turn()

    def _place(self) -> JsonObject:
        return {"turn": self.turn, "step": self.step}


def result_message(call_id: str) -> JsonObject:
    """The message of a tool result."""
    block = {"type": "tool-result", "toolCallId": call_id, "content": []}
    return {
        "id": f"r-{call_id}",
        "role": "user",
        "source": {"kind": "tool", "callId": call_id},
        "content": [block],
    }


def types(events: Sequence[Event]) -> list[str]:
    """The types of events, in order."""
    return [event.type for event in events]


def answered(turns: int = 1) -> LogWriter:
    """Write turns without tools, of eight events each."""
    log = LogWriter()
    for _ in range(turns):
        log.answered_turn("hi", "ho")
    return log


def forked(**header: Any) -> tuple[Header, LogWriter]:
    """A fork child that inherited one turn of eight events."""
    log = answered()
    digest = seed_digest(log.events)
    fields = {"parentSession": "p", "seedLength": 8, "seedDigest": digest, **header}
    log.add("session/end-seed", {})
    log.answered_turn("and", "so")
    return Header("f", 2, fields), log


def edited(events: Sequence[Event], seq: int, **changes: Any) -> list[Event]:
    """Return a log with the data of one event changed."""
    edited = list(events)
    content = edited[seq].content()
    content["data"] = {**content["data"], **changes}
    edited[seq] = event_from_content(content, seq, edited[seq].time)
    return edited
