"""The events that ``bench_store`` stores: what a model's stream looks like.

Mostly deltas of a few words, a tool call every third model call, and the messages that
a loop logs around them. The same ones in every run.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from itertools import islice
from typing import Final

from nestling.session.event import Event, event_from_content
from nestling.session.jsontext import JsonObject

_WORDS: Final = (
    "the", "of", "a", "file", "session", "because", "returns", "every", "é", "value",
    "therefore", "test", "is", "not", "\n\n", "`path`", "and", "durable", "—", "in",
    "which", "writes", "\"quoted\"", "1.", "argument", "to", "we", "should", "again",
)  # fmt: skip
_ID_CHARS: Final = string.ascii_letters + string.digits
_START: Final = 1_700_000_000_000


def events(count: int) -> list[Event]:
    """Return the first events of an endless session."""
    stream = Stream(random.Random(1))
    return list(islice(stream.events(), count))


class Stream:
    """One session's events, turn after turn."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._turn = self._step = 0
        self._seq = -1
        self._time = _START

    def events(self) -> Iterator[Event]:
        """Yield events without an end; turns and steps are whole."""
        header = {"config": {"provider": "anthropic", "model": "claude"}, "tools": []}
        yield self._event(
            "request/header", {"reason": "initial", "header": header, "turn": 1}
        )
        while True:
            self._turn, self._step = self._turn + 1, 0
            yield self._event("turn/start", {"turn": self._turn})
            for number in range(3):
                yield from self._one_step(is_first=number == 0, uses_tool=number == 1)
            yield self._event(
                "turn/end", {"turn": self._turn, "reason": {"kind": "completed"}}
            )

    def _one_step(self, *, is_first: bool, uses_tool: bool) -> Iterator[Event]:
        self._step += 1
        yield self._event("step/start", self._place())
        if is_first:
            yield self._message("user/message", "user", [_text(self._words(40))])
        words = [self._words(self._chance.randint(1, 4)) for _ in range(120)]
        yield from self._block(0, "text", "text-delta", "text", words)
        content = [_text("".join(words))]
        if uses_tool:
            call_id = "toolu_" + "".join(self._chance.choices(_ID_CHARS, k=24))
            parts = [self._words(2) for _ in range(20)]
            extra = {"id": call_id, "name": "bash"}
            yield from self._block(
                1, "tool-call", "tool-call-delta", "argumentsDelta", parts, extra
            )
            named = {"name": "bash", "arguments": "".join(parts)}
            content.append({"type": "tool-call", "id": call_id, **named})
        usage = {"inputTokens": 4096, "outputTokens": 512}
        yield self._chunk({"type": "usage", "usage": usage})
        yield self._chunk({"type": "finish", "reason": {"kind": "stop"}})
        yield self._message("assistant/message", "assistant", content)
        if uses_tool:
            called = {**self._place(), "callId": call_id, **named}
            yield self._event("tool/call", called)
            yield self._tool_result(call_id)
        yield self._event("step/end", self._place())

    def _block(
        self,
        index: int,
        kind: str,
        delta: str,
        key: str,
        texts: list[str],
        extra: JsonObject | None = None,
    ) -> Iterator[Event]:
        yield self._chunk({"type": "block-start", "index": index, "blockType": kind})
        for text in texts:
            yield self._chunk(
                {"type": delta, "index": index, **(extra or {}), key: text}
            )
        block = {"type": kind, **(extra or {})}
        block["text" if kind == "text" else "arguments"] = "".join(texts)
        yield self._chunk({"type": "block-end", "index": index, "block": block})

    def _chunk(self, chunk: JsonObject) -> Event:
        return self._event("assistant/chunk", {**self._place(), "chunk": chunk})

    def _message(self, kind: str, role: str, content: list[JsonObject]) -> Event:
        source = {"kind": "user" if role == "user" else "model"}
        message = {
            "id": f"m{self._seq + 1}",
            "role": role,
            "content": content,
            "source": source,
        }
        if role == "user":
            return self._event(kind, message, surfaceOp="append")
        return self._event(
            kind, {**self._place(), "message": message}, surfaceOp="append"
        )

    def _tool_result(self, call_id: str) -> Event:
        block = {
            "type": "tool-result",
            "toolCallId": call_id,
            "content": [_text(self._words(150))],
        }
        message = {
            "id": f"m{self._seq + 1}",
            "role": "user",
            "source": {"kind": "tool", "callId": call_id},
            "content": [block],
        }
        data = {**self._place(), "message": message}
        return self._event(
            "tool/result", data, surfaceOp="append", sourceEventSeqs=[self._seq]
        )

    def _event(self, kind: str, data: JsonObject, **fields: object) -> Event:
        self._seq += 1
        self._time += self._chance.randint(0, 40)
        content = {"type": kind, "data": data, **fields}
        return event_from_content(content, self._seq, self._time)

    def _place(self) -> JsonObject:
        return {"turn": self._turn, "step": self._step}

    def _words(self, count: int) -> str:
        return "".join(f" {word}" for word in self._chance.choices(_WORDS, k=count))


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}
