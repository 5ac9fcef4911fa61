"""Delegations: how a recorded child came to be."""

from __future__ import annotations

import msgspec

from nestling.harness.tool_calls import ToolCall
from nestling.session.delegation import DELEGATION_TOOLS
from nestling.session.header import SpawnedBy


class Delegation(msgspec.Struct, frozen=True):
    """The delegation that started one recorded child.

    Attributes:
        spawned_by: its place in the parent, as the child's header states it or as it
            was found by pairing.
        call_seq: the parent's ``tool/call``; None for a delegation by code.
        result_seq: that call's ``tool/result``, if the parent's log has one.
        is_background: the parent was to go on while the child runs.
        tool: the tool that was called; None for a delegation by code.
    """

    spawned_by: SpawnedBy
    call_seq: int | None = None
    result_seq: int | None = None
    is_background: bool = False
    tool: str | None = None


def is_by_code(delegation: Delegation) -> bool:
    """Tell whether code delegated, by itself or inside a tool: no delegation tool's call."""
    return delegation.tool not in DELEGATION_TOOLS or delegation.spawned_by.n > 0


def delegation_by(call: ToolCall, spawned_by: SpawnedBy) -> Delegation:
    """Return the delegation that a tool call made."""
    return Delegation(
        spawned_by, call.seq, call.result_seq, call.is_background, call.name
    )
