"""Stream chunks: what a model call yields, one JSON object each.

The union (source: the format's stream chunk type, version 0)::

    {type: block-start, index, blockType}
    {type: text-delta | reasoning-delta, index, text}
    {type: tool-call-delta, index, id, name?, argumentsDelta}
    {type: block-end, index, block}
    {type: usage, usage}
    {type: finish, reason, replayState?}

A stream has at most one ``finish``, which ends it.
"""

from __future__ import annotations

from typing import Final

from nestling.session.jsontext import Json, JsonObject, shown

_FIELDS: Final[dict[str, dict[str, type]]] = {
    "block-start": {"index": int, "blockType": str},
    "text-delta": {"index": int, "text": str},
    "reasoning-delta": {"index": int, "text": str},
    "tool-call-delta": {"index": int, "id": str, "argumentsDelta": str},
    "block-end": {"index": int, "block": dict},
    "usage": {"usage": dict},
    "finish": {"reason": dict},
}

FAILED: Final = frozenset({"error", "aborted"})
"""The kinds of finish that no message follows."""

CHUNK_TYPES: Final = frozenset(_FIELDS)


def chunk_problem(value: Json) -> str | None:
    """Say what keeps `value` from being a chunk that can be folded, if anything."""
    if type(value) is not dict:
        return "a chunk must be an object"
    kind = value.get("type")
    if type(kind) is not str or kind not in _FIELDS:
        return f"a chunk must have a known type, found {shown(kind)}"
    for key, expected in _FIELDS[kind].items():
        if type(value.get(key)) is not expected:
            return f"{key} of a {kind} chunk must be {expected.__name__}"
    if kind == "finish" and type(value["reason"].get("kind")) is not str:
        return "reason of a finish chunk must have a kind"
    if kind == "tool-call-delta" and type(value.get("name", "")) is not str:
        return "name of a tool-call-delta chunk must be str"
    return None


def is_finish(chunk: JsonObject) -> bool:
    """Tell whether `chunk` ends its stream."""
    return bool(chunk["type"] == "finish")


def error_finish(failure: JsonObject) -> JsonObject:
    """Build the finish chunk of a call whose stream failed.

    Args:
        failure: at least ``message`` and ``code``.
    """
    return {"type": "finish", "reason": {"kind": "error", "failure": failure}}
