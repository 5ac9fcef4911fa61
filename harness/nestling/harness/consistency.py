"""Whether a recorded call says one thing, wherever it says something twice.

A script and the expectation it is held against come from the same log, and a fold takes
a closed block before whatever announced it. So a chunk that was changed by itself would
go unnoticed in a replay, unless the two are compared here: what a block starts as and
what its deltas are called and add up to with what it ends as. In every recording that is
known they agree. (Why a model stopped says less: some stop after calling a tool, and
call it ``stop``.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from nestling.session.fold import joined
from nestling.session.jsontext import Json, JsonObject, shown

_FOLDED: Final = ("text", "reasoning", "tool-call")
"""The kinds of blocks that have deltas."""


def drifts(chunks: Iterable[JsonObject]) -> Iterator[str]:
    """Yield where the chunks of a call say different things about one."""
    open_blocks: dict[int, list[JsonObject]] = {}
    for chunk in chunks:
        if chunk["type"] == "block-end":
            index, block = chunk["index"], chunk["block"]
            announced = open_blocks.pop(index, [])
            yield from _misnomers(index, announced, block)
            yield from _wrong_sum(index, announced, block)
        elif "index" in chunk:
            open_blocks.setdefault(chunk["index"], []).append(chunk)


def _misnomers(
    index: int, announced: Sequence[JsonObject], block: JsonObject
) -> Iterator[str]:
    found = (
        f"block {index}: its {chunk['type']} has the {key} {shown(value)}, "
        f"its end {shown(block.get(key))}"
        for chunk in announced
        for key, value in _claims(chunk, block)
        if value != block.get(key)
    )
    yield from dict.fromkeys(found)  # one delta after the other says it


def _claims(chunk: JsonObject, block: JsonObject) -> Iterator[tuple[str, Json]]:
    """Yield what a chunk says of the fields of its block."""
    if chunk["type"] == "block-start" or block.get("type") in _FOLDED:
        yield "type", _kind(chunk)
    for key in ("id", "name"):
        if chunk.get(key):  # nothing, or an empty text: as before
            yield key, chunk[key]


def _kind(chunk: JsonObject) -> str:
    kind: str = chunk.get("blockType", chunk["type"].removesuffix("-delta"))
    return kind


def _wrong_sum(
    index: int, announced: Sequence[JsonObject], block: JsonObject
) -> Iterator[str]:
    deltas = [c for c in announced if c["type"] != "block-start"]
    said = "".join(
        c["argumentsDelta" if "argumentsDelta" in c else "text"] for c in deltas
    )
    text, closed = joined(said), block.get("text", block.get("arguments"))
    if deltas and isinstance(closed, str) and joined(closed) != text:
        yield (
            f"block {index}: the deltas add up to {shown(text)}, "
            f"its end says {shown(closed)}"
        )
