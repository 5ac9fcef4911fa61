"""The tool calls of one assistant message: each dispatched once, answered once."""

from __future__ import annotations

from collections.abc import Sequence

from nestling.session.errors import LoopError
from nestling.session.jsontext import JsonObject


class PendingTool:
    """One tool call of the message.

    Attributes:
        block: its position in the message's content, all block types counted.
        seq: the seq of its ``tool/call``, once dispatched.
        is_answered: whether its result is in the log.
    """

    def __init__(self, block: int, content: JsonObject) -> None:
        self.block = block
        self.call_id: str = content["id"]
        self.name: str = content["name"]
        self.arguments: str = content["arguments"]
        self.seq: int | None = None
        self.is_answered = False


class ToolBatch:
    """The tool calls of one message and how far each one is."""

    def __init__(self, blocks: Sequence[JsonObject]) -> None:
        """Take the content of the message."""
        self._tools = {
            position: PendingTool(position, block)
            for position, block in enumerate(blocks)
            if block["type"] == "tool-call"
        }

    @property
    def is_answered(self) -> bool:
        """Whether every call has its result."""
        return not self.owed

    @property
    def owed(self) -> list[PendingTool]:
        """The calls that have no result yet, in order."""
        return [tool for tool in self._tools.values() if not tool.is_answered]

    def take(self, block: int) -> PendingTool:
        """Return the call at `block`, to be dispatched.

        Raises:
            LoopError: if no tool call stands there, or it was dispatched before.
        """
        tool = self._tools.get(block)
        if tool is None:
            raise LoopError(f"block {block} of the message is no tool call")
        if tool.seq is not None:
            raise LoopError(f"the tool call of block {block} was dispatched before")
        return tool

    def answer(self, block: int, result: JsonObject) -> PendingTool:
        """Mark the call at `block` as answered by `result`, and return it.

        Raises:
            LoopError: if the call was not dispatched, was answered before, or the
                result answers another one.
        """
        tool = self._tools.get(block)
        if tool is None or tool.seq is None:
            raise LoopError(f"the tool call of block {block} was not dispatched")
        if tool.is_answered:
            raise LoopError(f"the tool call of block {block} was answered before")
        answered = result["block"].get("toolCallId")
        if answered != tool.call_id:
            raise LoopError(
                f"the result answers {answered!r}, block {block} is {tool.call_id!r}"
            )
        tool.is_answered = True
        return tool

    def state(self) -> str:
        """Say which calls wait, for an error message."""
        waiting = self.owed
        if not waiting:
            return "has all its tool results"
        first = waiting[0]
        missing = "call" if first.seq is None else "result"
        return f"awaits the tool {missing} of block {first.block} ({first.name})"
