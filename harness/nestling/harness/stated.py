"""Stated delegations: a child's ``spawnedBy``, checked against its parent's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from nestling.harness.delegation import Delegation, delegation_by
from nestling.harness.own import own_part
from nestling.harness.tool_calls import ToolCall, own_tool_calls
from nestling.session.errors import UnreadableError
from nestling.session.header import SpawnedBy
from nestling.session.reading import Recording


class Parent(NamedTuple):
    """What a recorded parent's own events say about its delegations.

    Attributes:
        calls: its tool calls.
        call_at: the first of them at each (turn, step, block).
        steps: (turn, step) of each of its steps.
    """

    recording: Recording
    calls: Sequence[ToolCall]
    call_at: Mapping[tuple[int, int, int], ToolCall]
    steps: AbstractSet[tuple[int, int]]


def own_parent(recording: Recording) -> Parent:
    """Read what a recorded parent says.

    Raises:
        UnreadableError: if an event that this stands on is malformed.
    """
    calls = own_tool_calls(recording)
    call_at = {(c.turn, c.step, c.block): c for c in reversed(calls)}
    return Parent(recording, calls, call_at, own_steps(recording))


def own_steps(recording: Recording) -> set[tuple[int, int]]:
    """Return (turn, step) of every step among a session's own events.

    A turn has a step 0, too: what comes before its first one.
    """
    return {
        (event.data["turn"], event.data.get("step", 0))
        for event in own_part(recording)
        if event.type in ("turn/start", "step/start")
    }


def stated_delegation(
    parent: Parent, child: Recording, stated: SpawnedBy
) -> Delegation:
    """Return the delegation that a child's header states.

    Args:
        parent: what is known of the recorded parent.
        child: the recorded child.
        stated: its ``spawnedBy``.

    Raises:
        UnreadableError: if the parent's log has no such tool call or step, or the
            header contradicts itself.
    """
    if stated.context == "spawn" and child.header.seed_length > 0:
        raise UnreadableError(
            f"{child.name}: spawnedBy.context is spawn, but seedLength is "
            f"{child.header.seed_length}; expected 0 of a spawn"
        )
    place = f"turn {stated.turn}, step {stated.step}"
    if stated.block is None:
        if (stated.turn, stated.step) not in parent.steps:
            raise _not_there(child, parent, place, "step")
        return Delegation(stated)
    call = parent.call_at.get((stated.turn, stated.step, stated.block))
    if call is None:
        raise _not_there(child, parent, f"{place}, block {stated.block}", "tool call")
    _check_call(child, call, stated)
    return delegation_by(call, stated)


def _not_there(
    child: Recording, parent: Parent, place: str, what: str
) -> UnreadableError:
    return UnreadableError(
        f"{child.name}: spawnedBy names {place}, where the own events of its parent "
        f"{parent.recording.name} have no {what}"
    )


def _check_call(child: Recording, call: ToolCall, stated: SpawnedBy) -> None:
    if call.context is not None and call.context != stated.context:
        raise UnreadableError(
            f"{child.name}: spawnedBy.context is {stated.context}, but the tool call "
            f"at turn {call.turn}, step {call.step}, block {call.block} is "
            f"{call.name}, expected {call.context}"
        )
    if stated.call_id not in (None, call.call_id):
        raise UnreadableError(
            f"{child.name}: spawnedBy.callId is {stated.call_id!r}, but the tool call "
            f"at turn {call.turn}, step {call.step}, block {call.block} is "
            f"{call.call_id!r}"
        )
