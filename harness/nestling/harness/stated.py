"""Stated delegations: a child's ``spawnedBy``, checked against its parent's log."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from nestling.harness.delegation import Delegation, delegation_by
from nestling.harness.own import own_part
from nestling.harness.tool_calls import ToolCall
from nestling.session.errors import UnreadableError
from nestling.session.header import SpawnedBy
from nestling.session.reading import Recording


class Parent(NamedTuple):
    """What a recorded parent's own events say about its delegations.

    Attributes:
        calls: its tool calls.
        steps: (turn, step) of each of its steps.
    """

    recording: Recording
    calls: Sequence[ToolCall]
    steps: AbstractSet[tuple[int, int]]


def own_steps(recording: Recording) -> set[tuple[int, int]]:
    """Return (turn, step) of every step among a session's own events."""
    return {
        (event.data["turn"], event.data["step"])
        for event in own_part(recording)
        if event.type == "step/start"
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
    for call in parent.calls:
        if (call.turn, call.step, call.block) == (
            stated.turn,
            stated.step,
            stated.block,
        ):
            _check_call_id(child, call, stated)
            return delegation_by(call, stated)
    raise _not_there(child, parent, f"{place}, block {stated.block}", "tool call")


def _not_there(
    child: Recording, parent: Parent, place: str, what: str
) -> UnreadableError:
    return UnreadableError(
        f"{child.name}: spawnedBy names {place}, where the own events of its parent "
        f"{parent.recording.name} have no {what}"
    )


def _check_call_id(child: Recording, call: ToolCall, stated: SpawnedBy) -> None:
    if stated.call_id not in (None, call.call_id):
        raise UnreadableError(
            f"{child.name}: spawnedBy.callId is {stated.call_id!r}, but the tool call "
            f"at turn {call.turn}, step {call.step}, block {call.block} is "
            f"{call.call_id!r}"
        )
