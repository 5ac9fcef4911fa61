"""Logs by chance: everything that a live log may hold, in orders that a crash leaves.

One generator for property-based tests (which hand in a source of chance that shrinks)
and for the scripts that kill writers (which hand in a seeded one).
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from nestling.session.event import Event, event_from_content
from nestling.session.jsontext import JsonObject
from nestling.session.strict import StrictLog
from nestling.session.surface import Surface
from support.session_logs import call_block, result_message, text_block

# Halves of characters, NULs, what databases and line formats stumble over.
TEXTS: Final = (
    "", "a", "word ", "\ud83d", "\ude00", "\U0001f600", "a\0b", "\n", "\r\n", "\u2028",
    "é", "e\u0301", "'; --", '"', "\\u0000", "\x7f\x1b[0m", "NULL", "x" * 300,
)  # fmt: skip
NUMBERS: Final = (
    0, 1, -1, 2**31, 2**53 - 1, -(2**53 - 1), 0.1, 1.0, -1.5, 1e-7, 1e16, 1e22,
    5e-324, 1.7976931348623157e308, 2.0**53, 2.0**63, 123456789.123456789,
)  # fmt: skip
IDS: Final = ("c1", "c2", "c3", "", "\ud800", "a\0")
TIMES: Final = (0, 1, 1, 1, 7, 1000, -1, -3_600_000, 2**40, -(2**40))
KNOWN_OPAQUE: Final = (
    "session/title", "todo/write", "llm/retry", "agent/inbox/spliced",
    "subagent/descriptor", "compaction/start", "hook/result",
)  # fmt: skip
UNKNOWN: Final = (
    "x/new", "text-chunk", "Text-Chunks", "text-chunks ", "turn/ends", "session", "",
    "é", "a\0b", "NULL", "events", "x/\ud800",
)  # fmt: skip


class RandomLog:
    """A log that grows by chance; every event of it may be stored.

    Attributes:
        events: what it holds so far.
    """

    def __init__(self, chance: Random, session_id: str = "s") -> None:
        self.events: list[Event] = []
        self._chance = chance
        self._id = session_id
        self.restart()

    def restart(self) -> None:
        """Find out anew where the log stands: after a repair it says so itself."""
        self._time = self.events[-1].time if self.events else 1_700_000_000_000
        self._surface = Surface()
        self._turn = self._step = self._last_turn = self._last_step = 0
        self._checks = StrictLog()
        for event in self.events:
            self._follow(event)

    def extend(self, events: list[Event]) -> None:
        """Take in what somebody else appended: a repair, say."""
        for event in events:
            self.events.append(event)
            self._follow(event)

    def grow(self, moves: int) -> list[Event]:
        """Make so many moves, and return the events that they added."""
        length = len(self.events)
        for _ in range(moves):
            self._move()
        return self.events[length:]

    # --- moves -------------------------------------------------------------------

    def _move(self) -> None:
        if not self._turn:
            between = (self._start_turn, self._start_turn, self._user, self._opaque)
            self._chance.choice(between)()
        elif not self._step:
            outside = (self._start_step, self._start_step, self._user, self._end_turn)
            self._chance.choice(outside)()
        else:
            inside = (
                self._run, self._run, self._run, self._interleaved, self._message,
                self._called, self._result, self._user, self._replace, self._opaque,
                self._header, self._end_step, self._end_step,
            )  # fmt: skip
            self._chance.choice(inside)()

    def _start_turn(self) -> None:
        self._add("turn/start", {"turn": self._last_turn + 1})

    def _end_turn(self) -> None:
        kind = self._chance.choice(("completed", "aborted", "error", "max-tokens"))
        self._add("turn/end", {"turn": self._turn, "reason": {"kind": kind}})

    def _start_step(self) -> None:
        self._last_step += 1
        self._add("step/start", {"turn": self._turn, "step": self._last_step})

    def _end_step(self) -> None:
        self._add("step/end", self._place())

    def _run(self) -> None:
        make = self._chunk_maker()
        for _ in range(self._chance.randrange(1, 7)):
            self._chunk(make())

    def _interleaved(self) -> None:
        """Deltas of two runs, one by one in any order."""
        makers = self._chunk_maker(), self._chunk_maker()
        if self._chance.random() < 0.5:
            makers = self._twins()
        for _ in range(self._chance.randrange(2, 9)):
            self._chunk(self._chance.choice(makers)())

    def _chunk_maker(self) -> Any:
        chance = self._chance
        index = chance.randrange(3)
        kind = chance.choice(("text-delta", "reasoning-delta", "tool-call-delta", ""))
        if kind == "":
            return self._plain_chunk
        if kind != "tool-call-delta":
            return lambda: {"type": kind, "index": index, "text": chance.choice(TEXTS)}
        head: JsonObject = {"type": kind, "index": index, "id": chance.choice(IDS)}
        if chance.random() < 0.5:
            head["name"] = chance.choice(("bash", "", "\ud800"))
        return lambda: {**head, "argumentsDelta": chance.choice(TEXTS)}

    def _twins(self) -> tuple[Any, Any]:
        """Makers of deltas that differ in one thing, which parts two runs."""
        chance = self._chance
        head: JsonObject = {"type": "tool-call-delta", "index": 0, "id": "c1"}
        other = {**head, **chance.choice(({"name": "n"}, {"id": "c2"}, {"index": 1}))}
        first, second = ({**each, "argumentsDelta": "{"} for each in (head, other))
        return lambda: dict(first), lambda: dict(second)

    def _plain_chunk(self) -> JsonObject:
        chunks: tuple[JsonObject, ...] = (
            {"type": "block-start", "index": 0, "blockType": "text"},
            {"type": "block-end", "index": 0, "block": text_block("\ud83d")},
            {"type": "usage", "usage": {"inputTokens": 2**53 - 1, "outputTokens": 0}},
            {"type": "text-delta", "index": 0, "text": "x", "extra": self._value(2)},
            {"type": "finish", "reason": {"kind": "stop"}, "replayState": {"a": 1.0}},
        )
        return self._chance.choice(chunks)

    def _chunk(self, chunk: JsonObject) -> None:
        self._add("assistant/chunk", {**self._place(), "chunk": chunk})

    def _message(self) -> None:
        blocks: list[JsonObject] = [text_block(self._chance.choice(TEXTS))]
        blocks += [
            call_block(self._chance.choice(IDS), self._chance.choice(("bash", "")))
            for _ in range(self._chance.randrange(3))
        ]
        message = {
            "id": f"a{len(self.events)}",
            "role": "assistant",
            "content": blocks,
            "source": {"kind": "model", "provider": "p", "model": "m"},
        }
        data = {**self._place(), "message": message}
        fields: JsonObject = {"surfaceOp": "append"}
        if self._chance.random() < 0.7:
            count = len(self.events)
            first = self._chance.randrange(count + 1)
            fields["sourceEventSeqs"] = list(range(first, count))
        self._add("assistant/message", data, **fields)

    def _called(self) -> None:
        call = {"callId": self._chance.choice(IDS), "name": "bash", "arguments": "{"}
        self._add("tool/call", {**self._place(), **call})

    def _result(self) -> None:
        data = {**self._place(), "message": result_message(self._chance.choice(IDS))}
        seq = self._chance.randrange(len(self.events))
        self._add("tool/result", data, surfaceOp="append", sourceEventSeqs=[seq])

    def _user_data(self) -> JsonObject:
        return {
            "id": f"u{len(self.events)}",
            "role": "user",
            "content": [text_block(self._chance.choice(TEXTS))],
            "source": {"kind": "user"},
        }

    def _user(self) -> None:
        self._add("user/message", self._user_data(), surfaceOp="append")

    def _replace(self) -> None:
        nodes = self._surface.nodes
        if not nodes:
            return
        first = self._chance.randrange(len(nodes))
        last = self._chance.randrange(first, len(nodes))
        operation = {"op": "replace", "start": nodes[first], "end": nodes[last]}
        sources = nodes[first : last + 1]
        self._chance.shuffle(sources)
        fields: JsonObject = {"surfaceOp": operation, "sourceEventSeqs": sources}
        self._add("user/message", self._user_data(), **fields)

    def _opaque(self) -> None:
        if self._chance.random() < 0.5:
            self._add(self._chance.choice(KNOWN_OPAQUE), self._value(0))
        else:
            kind = self._chance.choice(UNKNOWN)
            self._add(kind, self._value(0), ignorable=True)

    def _header(self) -> None:
        config = {"provider": "p", "model": "m", "more": self._value(2)}
        self._add("request/header", {"header": {"config": config, "system": "S"}})

    # --- parts -------------------------------------------------------------------

    def _value(self, depth: int) -> Any:
        kind = self._chance.randrange(4 if depth > 2 else 6)
        if kind == 0:
            return self._chance.choice((None, True, False))
        if kind == 1:
            return self._chance.choice(NUMBERS)
        if kind < 4:
            return self._chance.choice(TEXTS)
        items = range(self._chance.randrange(4))
        if kind == 4:
            return [self._value(depth + 1) for _ in items]
        keys = [self._chance.choice(TEXTS) for _ in items]
        return {key: self._value(depth + 1) for key in keys}

    def _place(self) -> JsonObject:
        return {"turn": self._turn, "step": self._step}

    def _add(self, kind: str, data: Any, **fields: Any) -> None:
        self._time += self._chance.choice(TIMES)
        content = {"type": kind, "data": data, **fields}
        event = event_from_content(content, len(self.events), self._time)
        self._follow(event)
        self.events.append(event)

    def _follow(self, event: Event) -> None:
        self._checks.take(event)  # a log that no store takes would prove nothing
        self._surface.append(event)
        match event.type:
            case "turn/start":
                self._turn = self._last_turn = event.data["turn"]
                self._step = self._last_step = 0
            case "turn/end":
                self._turn = self._step = 0
            case "step/start":
                self._step = self._last_step = event.data["step"]
            case "step/end":
                self._step = 0
