"""The tape: what a tape agent is told of its recorded session.

The recorded own events in order, the inputs verbatim and everything that the loop
produces reduced to a marker. A tape holds no chunks, no assistant content and no
finish reasons: those reach a worker only as served chunks, or a replay would prove
nothing about the routing.

Crosses the wire as a JSON array of tagged objects, written by the harness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from nestling.session.errors import JsonDomainError, WireError
from nestling.session.jsontext import JsonObject, dumps, loads
from nestling.wire.messages import Context

TAPE_WRAPS = 5
"""So many levels lie around the data of an input that arrived during a call."""


class _Item(
    msgspec.Struct,
    frozen=True,
    tag_field="at",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """One position of a tape."""


class Input(_Item, frozen=True, tag="input"):
    """An event that is appended as it was recorded (see ``Event.content``)."""

    content: dict[str, Any]


class CallInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input that arrived after `after` chunks of the call it stands in."""

    after: int
    content: dict[str, Any]


class TurnStart(_Item, frozen=True, tag="turn/start"):
    """A turn opens."""

    turn: int


class StepStart(_Item, frozen=True, tag="step/start"):
    """A step opens."""

    turn: int
    step: int


class Call(_Item, frozen=True, tag="call"):
    """The model is called, with the inputs that arrived while it answered."""

    inputs: tuple[CallInput, ...] = ()


class Summary(_Item, frozen=True, tag="summary"):
    """The model is called for a summary, and an event tells what it answered.

    Attributes:
        content: the event, without the answer: its ``rawOutput`` and ``usage``.
    """

    content: dict[str, Any]


class Message(_Item, frozen=True, tag="assistant/message"):
    """The assistant message of the last call, under its recorded id.

    Attributes:
        provider: who answered, in a log where no request header says so.
        model: which model did, likewise.
    """

    id: str
    provider: str | None = None
    model: str | None = None


class ToolCall(_Item, frozen=True, tag="tool/call"):
    """The tool call of a block of the message is dispatched."""

    block: int


class ToolResult(_Item, frozen=True, tag="tool/result"):
    """The result of a block's tool call, in a message of its recorded id."""

    block: int
    id: str


class Delegate(_Item, frozen=True, tag="delegate"):
    """A delegation that no delegation tool's call makes: by code, or inside a tool.

    Attributes:
        context: ``fork`` if the child started with the completed turns so far.
        prompt: the child's task.
        block: the tool call whose body made it; None outside of tools.
        n: which delegation of its place it is.
        key: the name that code gave it.
        call_id: the model's id of that tool call.
    """

    context: Context
    prompt: str
    block: int | None = None
    n: int = 0
    key: str | None = None
    call_id: str = ""


class Settle(_Item, frozen=True, tag="settle"):
    """Wait for what the delegations of the markers before it come to."""


class StepEnd(_Item, frozen=True, tag="step/end"):
    """The step closes."""


class TurnEnd(_Item, frozen=True, tag="turn/end"):
    """The turn closes.

    Attributes:
        cancelled: it was cancelled; the hub says so, the worker waits for it.
        reason: where something outside of the loop decided, what it decided.
    """

    cancelled: bool = False
    reason: dict[str, Any] | None = None


class Hold(_Item, frozen=True, tag="hold"):
    """The recorded worker died here: wait for the same end."""


Item: TypeAlias = (
    Input
    | TurnStart
    | StepStart
    | Call
    | Summary
    | Message
    | ToolCall
    | ToolResult
    | Delegate
    | Settle
    | StepEnd
    | TurnEnd
    | Hold
)


def encode_tape(items: Sequence[Item]) -> bytes:
    """Write a tape as JSON."""
    return dumps([_object(item) for item in items])


def _object(item: Item) -> JsonObject:
    built: JsonObject = msgspec.to_builtins(item)
    return built


def decode_tape(data: bytes) -> list[Item]:
    """Read a tape.

    Raises:
        WireError: if it is not what ``encode_tape`` writes.
    """
    try:
        tape = msgspec.convert(loads(data, TAPE_WRAPS), list[Item])
    except (JsonDomainError, msgspec.ValidationError, UnicodeEncodeError) as error:
        raise WireError(f"the tape is not readable: {error}") from None
    for content in _inputs(tape):
        if type(content.get("type")) is not str or "data" not in content:
            raise WireError("the tape is not readable: an input is no event")
    for item in tape:
        if isinstance(item, Summary) and type(item.content["data"]) is not dict:
            raise WireError("the tape is not readable: a summary's data is no object")
    return tape


def _inputs(tape: Sequence[Item]) -> Iterator[JsonObject]:
    for item in tape:
        if isinstance(item, Input | Summary):
            yield item.content
        elif isinstance(item, Call):
            yield from (entry.content for entry in item.inputs)
