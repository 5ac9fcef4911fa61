"""Folding the chunks of one call into the assistant message.

Rules (source: the format's reference, *folding chunks*): blocks stand in the order
in which their index was first seen; a ``block-end`` replaces what was accumulated and
the first one wins; unclosed text and reasoning blocks are built from their deltas;
the last usage wins; a missing finish folds as ``stop``; ``max-tokens`` drops the tool
calls, whose arguments were cut.

A surrogate pair that a model split over two deltas joins here.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import NamedTuple

from nestling.session.chunk import FAILED
from nestling.session.errors import UnreadableError
from nestling.session.jsontext import Json, JsonObject

# Looked up here, because a process that is out of descriptors cannot load a codec.
_UTF16 = codecs.lookup("utf-16-le")

STOP: JsonObject = {"kind": "stop"}


class Folded(NamedTuple):
    """What a call came to.

    Attributes:
        blocks: the content of the assistant message.
        finish: the reason of the finish chunk; ``{"kind": "stop"}`` if there was none.
        usage: the last token usage, if any.
        replay_state: the provider's opaque state, kept in step with `blocks`.
    """

    blocks: list[JsonObject]
    finish: JsonObject
    usage: JsonObject | None
    replay_state: JsonObject | None


class _Block:
    """One content block while its deltas arrive."""

    def __init__(self, index: Json, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.text: list[str] = []
        self.arguments: list[str] = []
        self.id: str | None = None
        self.name: str | None = None
        self.closed: JsonObject | None = None

    def add(self, chunk: JsonObject) -> None:
        if self.closed is not None:
            return
        if chunk["type"] != "tool-call-delta":
            self.text.append(chunk["text"])
            return
        self.arguments.append(chunk["argumentsDelta"])
        self.id = chunk.get("id") or self.id
        self.name = chunk.get("name") or self.name

    def build(self) -> JsonObject:
        if self.closed is not None:
            return self.closed
        if self.kind in ("text", "reasoning"):
            return {"type": self.kind, "text": joined("".join(self.text))}
        if self.kind == "tool-call":
            return {
                "type": "tool-call",
                "id": f"call-{self.index}" if self.id is None else self.id,
                "name": self.name or "",
                "arguments": joined("".join(self.arguments)),
            }
        raise UnreadableError(
            f"block {self.index} of unknown type {self.kind!r} was never closed"
        )

    @property
    def can_be_built(self) -> bool:
        return self.closed is not None or self.kind in _DELTA_KINDS.values()


_DELTA_KINDS = {
    "text-delta": "text",
    "reasoning-delta": "reasoning",
    "tool-call-delta": "tool-call",
}


def fold(chunks: Iterable[JsonObject]) -> Folded:
    """Fold the chunks of a call that ran to its end.

    Raises:
        UnreadableError: if a block of an unknown type was never closed, and the call
            did not fail.
    """
    blocks, finish_chunk, usage = _collect(chunks)
    finish = STOP if finish_chunk is None else finish_chunk["reason"]
    if finish.get("kind") in FAILED:
        # It broke off wherever it was, and there will be no message.
        blocks = [block for block in blocks if block.can_be_built]
    built = [block.build() for block in blocks]
    state = None if finish_chunk is None else finish_chunk.get("replayState")
    state = _aligned(state, built)
    if finish.get("kind") == "max-tokens":
        state = _without_tool_calls(state, built)
        built = [block for block in built if block.get("type") != "tool-call"]
    return Folded(built, finish, usage, state)


def fold_interrupted(chunks: Iterable[JsonObject]) -> list[JsonObject]:
    """Fold the chunks of a call that was cut off.

    Only text and reasoning survive, and only where there is something to read: a cut
    tool call must never run.
    """
    blocks, _, _ = _collect(chunks)
    built = [
        block.build()
        for block in blocks
        if (block.closed or {"type": block.kind}).get("type") in ("text", "reasoning")
    ]
    return [block for block in built if _is_readable(block)]


def _is_readable(block: JsonObject) -> bool:
    text = block.get("text")
    return isinstance(text, str) and bool(text.strip())


def _collect(
    chunks: Iterable[JsonObject],
) -> tuple[list[_Block], JsonObject | None, JsonObject | None]:
    blocks: dict[Json, _Block] = {}
    finish: JsonObject | None = None
    usage: JsonObject | None = None
    for chunk in chunks:
        kind = chunk["type"]
        if kind == "usage":
            usage = chunk["usage"]
        elif kind == "finish":
            finish = chunk
        elif kind == "block-start":
            blocks.setdefault(
                chunk["index"], _Block(chunk["index"], chunk["blockType"])
            )
        elif kind == "block-end":
            closed = chunk["block"]
            block = blocks.setdefault(
                chunk["index"], _Block(chunk["index"], closed.get("type", ""))
            )
            block.closed = closed if block.closed is None else block.closed
        else:
            delta_kind = _DELTA_KINDS[kind]
            block = blocks.setdefault(
                chunk["index"], _Block(chunk["index"], delta_kind)
            )
            block.add(chunk)
    return list(blocks.values()), finish, usage


def _aligned(state: Json, blocks: list[JsonObject]) -> JsonObject | None:
    """Drop a replay state whose parts no longer stand beside the blocks."""
    if type(state) is not dict:
        return None
    parts = state.get("blocks")
    if parts is not None and (type(parts) is not list or len(parts) != len(blocks)):
        return None
    return state


def _without_tool_calls(
    state: JsonObject | None, blocks: list[JsonObject]
) -> JsonObject | None:
    if state is None or state.get("blocks") is None:
        return state
    kept = [
        part
        for part, block in zip(state["blocks"], blocks, strict=True)
        if block.get("type") != "tool-call"
    ]
    return {**state, "blocks": kept}


def joined(text: str) -> str:
    """Join surrogate pairs whose halves arrived separately; lone ones stay."""
    if not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    halves, _ = _UTF16.encode(text, "surrogatepass")
    return _UTF16.decode(halves, "surrogatepass")[0]
