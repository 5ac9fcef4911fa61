"""The tool calls of a recorded session, each with its place in the message.

A block is counted in the content of the step's assistant message, all types of
blocks included; a tool's delegations are named after it (see ``pairing``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from nestling.harness.own import own_part, require_shape
from nestling.session.errors import JsonDomainError
from nestling.session.event import Event
from nestling.session.header import SpawnedBy
from nestling.session.jsontext import JsonObject, loads
from nestling.session.reading import Recording

_DELEGATING: Final = {"subagent": "spawn", "subagent_fork": "fork"}
_TYPES: Final = frozenset({"assistant/message", "tool/call", "tool/result"})


class ToolCall(NamedTuple):
    """One recorded tool call.

    Attributes:
        block: position of its block in the assistant message.
        seq: the ``tool/call`` event.
        result_seq: the ``tool/result`` event; None where the log has none.
        is_error: whether that result is an error; None where there is none.
    """

    turn: int
    step: int
    block: int
    call_id: str
    name: str
    arguments: str
    seq: int
    result_seq: int | None = None
    is_error: bool | None = None

    @property
    def context(self) -> str | None:
        """What the call delegates: ``spawn``, ``fork``, or None for other tools."""
        return _DELEGATING.get(self.name)

    @property
    def place(self) -> SpawnedBy:
        """Where a child that this call delegates sits in its parent."""
        return SpawnedBy(
            self.turn,
            self.step,
            self.context or "spawn",
            block=self.block,
            call_id=self.call_id,
        )

    @property
    def prompt(self) -> str | None:
        """The delegated prompt, if the arguments can be read."""
        prompt = self._parsed().get("prompt")
        return prompt if type(prompt) is str else None

    @property
    def is_background(self) -> bool:
        """Whether the child was to run while the parent goes on."""
        return self._parsed().get("run_in_background") is True

    def _parsed(self) -> JsonObject:
        """Return the arguments; a model may write what is no JSON object."""
        try:
            value = loads(self.arguments)
        except JsonDomainError:
            return {}
        return value if type(value) is dict else {}


def own_tool_calls(recording: Recording) -> list[ToolCall]:
    """Return the tool calls among a session's own events, in log order.

    A ``tool/call`` that no block of its step's message asked for has no place and is
    left out.

    Raises:
        UnreadableError: if an event that this stands on is malformed.
    """
    collector = _Collector()
    for event in own_part(recording):
        if event.type in _TYPES:
            require_shape(recording, event)
            collector.take(event)
    return list(collector.calls)


class _Collector:
    """Joins messages, calls and results of one log."""

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []
        self._place = (0, 0)
        self._blocks: dict[str, list[int]] = {}
        self._unanswered: dict[tuple[int, int, str], list[int]] = {}

    def take(self, event: Event) -> None:
        place = (event.data["turn"], event.data["step"])
        # A rewritten message or result is not what happened, but how it is told later.
        if type(event.surface_op) is dict:
            return
        if event.type == "assistant/message":
            self._place = place
            self._blocks = _blocks_by_id(event.data["message"]["content"])
        elif event.type == "tool/call":
            self._take_call(event, place)
        else:
            self._take_result(event, place)

    def _take_call(self, event: Event, place: tuple[int, int]) -> None:
        data = event.data
        blocks = self._blocks.get(data["callId"]) if place == self._place else None
        if not blocks:
            return
        # A model may repeat an id: the k-th call is the k-th block that has it.
        block = blocks.pop(0)
        call = ToolCall(
            *place, block, data["callId"], data["name"], data["arguments"], event.seq
        )
        self._unanswered.setdefault((*place, call.call_id), []).append(len(self.calls))
        self.calls.append(call)

    def _take_result(self, event: Event, place: tuple[int, int]) -> None:
        call_id = event.data["message"]["source"]["callId"]
        indexes = self._unanswered.get((*place, call_id))
        if indexes:
            index = indexes.pop(0)
            self.calls[index] = self.calls[index]._replace(
                result_seq=event.seq, is_error=_is_error(event.data)
            )


def _blocks_by_id(content: Iterable[JsonObject]) -> dict[str, list[int]]:
    blocks: dict[str, list[int]] = {}
    for position, block in enumerate(content):
        if block["type"] == "tool-call":
            blocks.setdefault(block["id"], []).append(position)
    return blocks


def _is_error(data: JsonObject) -> bool:
    block = data["message"]["content"][0]
    return block.get("isError") is True or "error" in data
