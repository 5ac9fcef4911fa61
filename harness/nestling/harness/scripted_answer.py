"""What a scripted model says in one call, and the chunks that say it.

An answer is cut into chunks as real providers do it: each block is opened, streamed in
deltas and closed; then come the token usage and the finish. How the stream goes wrong
(late, broken off, hanging) is part of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from nestling.harness.compose_stream import (
    PIECE,
    finish_chunk,
    usage_chunk,
    usage_of,
)
from nestling.harness.compose_stream import reasoning as reasoning_block
from nestling.harness.compose_stream import text as text_block
from nestling.session.errors import ProviderError, ScriptedModelError
from nestling.session.jsontext import JsonObject
from nestling.session.request import Request

_FIELDS: Final = {
    "text": ("text",),
    "reasoning": ("text",),
    "tool-call": ("name", "arguments"),
}
"""The texts that a block which is streamed in deltas has; others come whole."""


@dataclass(frozen=True)
class Break:
    """Where a stream stops short of its finish.

    Attributes:
        after: how many chunks are sent before.
        code: the code of the failure then; None to hang until cancelled.
        message: what the failure says.
        retry_after_ms: how long the provider asks to be left alone, milliseconds.
    """

    after: int
    code: str | None = None
    message: str | None = None
    retry_after_ms: int | None = None

    def error(self) -> ProviderError | None:
        """Return what is raised, new each time; None to hang."""
        if self.code is None:
            return None
        return ProviderError(self.message, self.code, self.retry_after_ms)


@dataclass(frozen=True)
class Answer:
    """The answer to one call.

    Attributes:
        text: what the model says.
        reasoning: what it thinks before.
        calls: the tool calls that it ends with (``tool_call``, ``spawn_call`` and
            ``fork_call`` build them). One without an id gets one, a pure function of
            the request: the same under every schedule.
        blocks: all content blocks in their order, instead of the three above.
        usage: the token usage; made up if None.
        finish: the kind of finish: ``tool-calls`` or ``stop`` by default.
        chunk_size: characters a delta; up to one word each by default.
        chunks: raw chunks, sent as they are, instead of all of the above.
        delay: seconds before the first chunk.
        chunk_delay: seconds between two chunks.
        broken: where the stream stops (see ``fails`` and ``hangs``).
    """

    text: str = ""
    reasoning: str = ""
    calls: Sequence[JsonObject] = ()
    blocks: Sequence[JsonObject] = ()
    usage: JsonObject | None = None
    finish: str | None = None
    chunk_size: int | None = None
    chunks: Sequence[JsonObject] | None = None
    delay: float = 0
    chunk_delay: float = 0
    broken: Break | None = None

    def __post_init__(self) -> None:
        """Check what would otherwise only be found when a call is made.

        Raises:
            ScriptedModelError: naming what was found and expected.
        """
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ScriptedModelError(
                f"chunk_size must be at least 1 character, found {self.chunk_size}"
            )
        if self.delay < 0 or self.chunk_delay < 0:
            raise ScriptedModelError(
                "delays must be at least 0 seconds, "
                f"found {min(self.delay, self.chunk_delay)}"
            )
        self._check_content()
        if self.broken is not None:
            self._check_break(self.broken)

    def fails(
        self,
        code: str = "SERVER",
        message: str = "the scripted model fails here",
        *,
        after: int = 0,
        retry_after_ms: int | None = None,
    ) -> Answer:
        """Return this answer, but its stream fails after `after` chunks.

        Args:
            code: the failure's code, by which a retry policy decides.
            message: what the failure says.
            after: how many chunks come before.
            retry_after_ms: how long the provider asks to be left alone, milliseconds.

        Raises:
            ScriptedModelError: if there are fewer chunks before the finish.
        """
        return replace(self, broken=Break(after, code, message, retry_after_ms))

    def hangs(self, *, after: int = 0) -> Answer:
        """Return this answer, but after `after` chunks it hangs until cancelled.

        Raises:
            ScriptedModelError: if there are fewer chunks before the finish.
        """
        return replace(self, broken=Break(after))

    def stream(self, message_count: int) -> list[JsonObject]:
        """Return the chunks that the answer sends, up to where it breaks.

        Args:
            message_count: how many messages the request has.
        """
        chunks = self._whole(message_count)
        return chunks if self.broken is None else chunks[: self.broken.after]

    def _whole(self, message_count: int) -> list[JsonObject]:
        if self.chunks is not None:
            return list(self.chunks)
        blocks = [
            {**block, "id": block.get("id", f"call-{message_count}-{index}")}
            if block["type"] == "tool-call"
            else block
            for index, block in enumerate(self._content())
        ]
        chunks = [c for i, b in enumerate(blocks) for c in self._block(i, b)]
        usage = usage_of(chunks, message_count) if self.usage is None else self.usage
        return [*chunks, usage_chunk(usage), finish_chunk(self._finish(blocks))]

    def _content(self) -> list[JsonObject]:
        if self.blocks:
            return list(self.blocks)
        thought = [reasoning_block(self.reasoning)] if self.reasoning else []
        said = [text_block(self.text)] if self.text else []
        return [*thought, *said, *self.calls]

    def _finish(self, blocks: Sequence[JsonObject]) -> str:
        if self.finish is not None:
            return self.finish
        has_calls = any(block["type"] == "tool-call" for block in blocks)
        return "tool-calls" if has_calls else "stop"

    def _block(self, index: int, block: JsonObject) -> Iterator[JsonObject]:
        kind = block["type"]
        yield {"type": "block-start", "index": index, "blockType": kind}
        if kind == "tool-call":
            head = {"index": index, "id": block["id"], "name": block["name"]}
            for piece in self._pieces(block["arguments"]):
                yield {"type": "tool-call-delta", **head, "argumentsDelta": piece}
        elif kind in _FIELDS:
            for piece in self._pieces(block["text"]):
                yield {"type": f"{kind}-delta", "index": index, "text": piece}
        yield {"type": "block-end", "index": index, "block": block}

    def _pieces(self, value: str) -> list[str]:
        size = self.chunk_size
        if size is None:
            return PIECE.findall(value)
        return [value[at : at + size] for at in range(0, len(value), size)]

    # --- checks ----------------------------------------------------------------

    def _check_content(self) -> None:
        has_parts = bool(self.text or self.reasoning or self.calls)
        if self.blocks and has_parts:
            raise ScriptedModelError(
                "an answer has either blocks, or text, reasoning and calls, found both"
            )
        if self.chunks is not None and (self.blocks or has_parts):
            raise ScriptedModelError(
                "an answer has either raw chunks or content, found both"
            )
        for block in self._content():
            _check_block(block)

    def _check_break(self, broken: Break) -> None:
        kinds = [chunk.get("type") for chunk in self._whole(0)]
        most = kinds.index("finish") if "finish" in kinds else len(kinds)
        if not 0 <= broken.after <= most:
            raise ScriptedModelError(
                f"an answer cannot break after {broken.after} chunks, "
                f"it has {most} before its finish"
            )


def _check_block(block: object) -> None:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str):
        raise ScriptedModelError(
            f"a content block is an object with a type, found {block!r}"
        )
    for key in _FIELDS.get(kind, ()):
        if not isinstance(block.get(key), str):
            raise ScriptedModelError(
                f"{key} of a {kind} block must be text, found {block.get(key)!r}"
            )


def last_user_text(request: Request) -> str:
    """Return the text of the last message that is not the model's nor a tool's."""
    for message in reversed(request.messages):
        blocks = message["content"]
        if message["role"] == "user" and not _has_result(blocks):
            return "".join(b["text"] for b in blocks if b["type"] == "text")
    return ""


def _has_result(blocks: Sequence[JsonObject]) -> bool:
    return any(block["type"] == "tool-result" for block in blocks)
