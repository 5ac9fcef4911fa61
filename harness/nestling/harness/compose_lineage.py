"""What a composed child has from its parent: lineage, seed, place in the tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from nestling.harness.compose_rows import Call, SessionRows
from nestling.session.delegation import parse_arguments
from nestling.session.event import Event
from nestling.session.header import SpawnedBy
from nestling.session.jsontext import JsonObject
from nestling.session.spawn_path import child_path


class Parentage(NamedTuple):
    """What a delegated session has from its parent.

    Attributes:
        parent: the parent.
        path: the child's spawn path.
        call: the delegating tool call.
        spawned_by: where in the parent that was.
        seed: the events that the child inherits.
    """

    parent: SessionRows
    path: str
    call: Call
    spawned_by: SpawnedBy
    seed: Sequence[Event]

    @property
    def prompt(self) -> str:
        """The child's first user message."""
        return parse_arguments(self.call.arguments).prompt

    def header_fields(self) -> JsonObject:
        """Return the lineage as the child's header states it."""
        fields: JsonObject = {"parentSession": self.parent.id}
        if self.seed:
            length = len(self.seed)
            fields["seedLength"] = length
            fields["seedDigest"] = self.parent.log.prefix_digest(length)
        fields["origin"] = "subagent"
        fields["delegationDepth"] = (self.parent.header.delegation_depth or 0) + 1
        fields["spawnedBy"] = msgspec.to_builtins(self.spawned_by)
        return fields

    def descriptor(self) -> JsonObject:
        """Return the data of the child's ``subagent/descriptor``."""
        return {
            "version": 2,
            "mode": "one-shot",
            "provider": self.spawned_by.context,
            "label": parse_arguments(self.call.arguments).description,
        }


def parentage(
    parent: SessionRows, path: str, call: Call, context: str, n: int
) -> Parentage:
    """Return what the next child of a call has from its parent.

    Args:
        parent: the parent as it is now.
        path: the parent's spawn path.
        call: the delegating tool call.
        context: ``fork`` with the parent's completed turns, ``spawn`` without.
        n: how many children the call has already.

    Raises:
        ToolArgumentError: if the call's arguments are no delegation's.
    """
    parse_arguments(call.arguments)
    inherited = parent.log.turns.balanced_length if context == "fork" else 0
    spawned_by = SpawnedBy(
        call.turn, call.step, context, call.block, n=n, call_id=call.id
    )
    seed = parent.log.events[:inherited]
    return Parentage(parent, child_path(path, spawned_by), call, spawned_by, seed)
