"""Whether a recorded call says one thing: what its deltas add up to, and its blocks.

A script and the expectation it is held against come from the same log, and a fold takes
a closed block before its deltas. So a delta that was changed by itself would go
unnoticed in a replay, unless the two are compared here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nestling.session.fold import joined
from nestling.session.jsontext import JsonObject, shown


def drifts(chunks: Iterable[JsonObject]) -> Iterator[str]:
    """Yield where the deltas of a call and a closed block say different things."""
    deltas: dict[int, list[str]] = {}
    for chunk in chunks:
        if chunk["type"] == "block-end":
            said = deltas.pop(chunk["index"], None)
            if said is not None:
                yield from _drift(chunk["index"], said, chunk["block"])
        elif chunk["type"].endswith("-delta"):
            key = "argumentsDelta" if "argumentsDelta" in chunk else "text"
            deltas.setdefault(chunk["index"], []).append(chunk[key])


def _drift(index: int, said: Sequence[str], block: JsonObject) -> Iterator[str]:
    text, closed = joined("".join(said)), block.get("text", block.get("arguments"))
    if isinstance(closed, str) and joined(closed) != text:
        yield (
            f"block {index}: the deltas add up to {shown(text)}, "
            f"its end says {shown(closed)}"
        )
