"""What an agent's code gets back: a model's message, a child's result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nestling.session.jsontext import JsonObject, copied


@dataclass(frozen=True)
class ToolCall:
    """A tool call of a message.

    Attributes:
        block: its position in the message's content, all block types counted.
        id: the model's id for it.
        name: the tool's name.
        arguments: JSON text, as the model wrote it.
    """

    block: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """The message that a model call came to.

    Attributes:
        id: the message's id in the log.
        content: its content blocks.
        finish: why the model stopped: ``stop``, ``tool-calls``, ``max-tokens`` …
        usage: the token usage, as the provider told it; None if it did not.
    """

    id: str
    content: Sequence[JsonObject]
    finish: str
    usage: JsonObject | None

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return _text(self.content)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls, in order."""
        return [
            ToolCall(n, block["id"], block["name"], block["arguments"])
            for n, block in enumerate(self.content)
            if block["type"] == "tool-call"
        ]


@dataclass(frozen=True)
class Result:
    """What a tool call or a delegation came to.

    Attributes:
        content: content blocks.
        is_error: whether it failed; the text then says how.
        stop_reason: of a child: ``completed, aborted, error, max-tokens, refusal``;
            "" of a tool.
    """

    content: Sequence[JsonObject]
    is_error: bool
    stop_reason: str = ""

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return _text(self.content)


@dataclass(frozen=True)
class Seen:
    """A message that the model sees.

    Attributes:
        seq: its place in the log, by which ``Turn.replace`` names it.
        role: ``user`` or ``assistant``; tool results are the user's.
        content: content blocks.
    """

    seq: int
    role: str
    content: Sequence[JsonObject]

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return _text(self.content)


def result_of(body: JsonObject) -> Result:
    """Read a result as the log holds it: ``{"block", "stopReason"?, …}``."""
    block = body["block"]
    is_error = block.get("isError") is True
    reason = body.get("stopReason", "error" if is_error else "completed")
    return Result(copied(block.get("content", [])), is_error, reason)


def _text(content: Sequence[JsonObject]) -> str:
    return "".join(
        block["text"]
        for block in content
        if block.get("type") == "text" and isinstance(block.get("text"), str)
    )
