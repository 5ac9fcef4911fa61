"""The stream of a composed model call: content blocks cut into chunks.

Everything is a pure function of the blocks, so composing twice gives equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from nestling.session.delegation import FORK_TOOL, SPAWN_TOOL
from nestling.session.jsontext import Json, JsonObject, dumps

PIECE: Final = re.compile(r"\s*\S{1,6}|\s+")
"""What one delta holds: up to six visible characters and the blanks before them."""

_TOKENS_PER_MESSAGE: Final = 8

# --- blocks --------------------------------------------------------------------


def text(value: str) -> JsonObject:
    """Build a text block."""
    return {"type": "text", "text": value}


def reasoning(value: str) -> JsonObject:
    """Build a reasoning block."""
    return {"type": "reasoning", "text": value}


def tool_call(
    name: str, arguments: Mapping[str, Json] | str, call_id: str | None = None
) -> JsonObject:
    """Build a tool-call block.

    Args:
        name: the tool's name.
        arguments: an object, or the text that the model wrote, valid or not.
        call_id: the model's id of the call; None lets the composer give one.
    """
    written = arguments if isinstance(arguments, str) else dumps(arguments).decode()
    block = {"type": "tool-call", "name": name, "arguments": written}
    return block if call_id is None else {**block, "id": call_id}


def spawn_call(description: str, prompt: str) -> JsonObject:
    """Build the tool-call block that delegates to a fresh child."""
    return tool_call(SPAWN_TOOL, {"description": description, "prompt": prompt})


def fork_call(description: str, prompt: str) -> JsonObject:
    """Build the tool-call block that delegates to a child with the conversation."""
    return tool_call(FORK_TOOL, {"description": description, "prompt": prompt})


# --- chunks --------------------------------------------------------------------


def block_chunks(
    blocks: Iterable[JsonObject], *, is_cut: bool = False
) -> list[JsonObject]:
    """Return the chunks of `blocks`, one block after the other.

    Args:
        blocks: what the model says; tool calls have their ids.
        is_cut: leave the last block without its ``block-end``, as a stream does that
            stops in the middle of one.
    """
    chunks: list[JsonObject] = []
    for index, block in enumerate(blocks):
        start = {"type": "block-start", "index": index, "blockType": block["type"]}
        end = {"type": "block-end", "index": index, "block": block}
        chunks += [start, *_deltas(index, block), end]
    return chunks[:-1] if is_cut else chunks


def _deltas(index: int, block: JsonObject) -> Iterator[JsonObject]:
    kind = block["type"]
    if kind == "tool-call":
        head = {"index": index, "id": block["id"], "name": block["name"]}
        for piece in PIECE.findall(block["arguments"]):
            yield {"type": "tool-call-delta", **head, "argumentsDelta": piece}
        return
    for piece in PIECE.findall(block["text"]):
        yield {"type": f"{kind}-delta", "index": index, "text": piece}


def usage_of(chunks: Sequence[JsonObject], message_count: int) -> JsonObject:
    """Make up a token usage: one output token a delta, eight input tokens a message.

    Args:
        chunks: the chunks of the call.
        message_count: how many messages the model was shown.
    """
    deltas = [chunk["type"] for chunk in chunks if chunk["type"].endswith("-delta")]
    usage = {
        "inputTokens": _TOKENS_PER_MESSAGE * message_count,
        "outputTokens": len(deltas),
    }
    thoughts = deltas.count("reasoning-delta")
    return {**usage, "reasoningTokens": thoughts} if thoughts else usage


def usage_chunk(usage: JsonObject) -> JsonObject:
    """Build the chunk that reports a token usage."""
    return {"type": "usage", "usage": usage}


def finish_chunk(kind: str) -> JsonObject:
    """Build the chunk that ends a stream: stop, tool-calls or max-tokens."""
    return {"type": "finish", "reason": {"kind": kind}}
