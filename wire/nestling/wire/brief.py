"""The brief: what an agent is told in ``create``, beside its session.

A JSON object; a tape agent gets its tape instead.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from nestling.session.errors import JsonDomainError, WireError
from nestling.session.jsontext import dumps, loads

Origin: TypeAlias = Literal["root", "spawn", "fork"]


class Brief(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a live agent is told.

    Attributes:
        origin: how its session came to be.
        description: the label that its parent gave the task; "" for a root.
        options: what its parent's code, or the user, tells the agent's code.
        waits: whether it waits before it calls a model again that failed.
        tool_timeout: seconds that a tool may take; None for any time.
        holds: so long is its log where it is stopped from outside: it goes on from there
            only when it has been.
    """

    origin: Origin
    description: str
    options: dict[str, Any]
    waits: bool = True
    tool_timeout: float | None = None
    holds: tuple[int, ...] = ()


def encode_brief(brief: Brief) -> bytes:
    """Write a brief as JSON."""
    return dumps(msgspec.to_builtins(brief))


def decode_brief(data: bytes) -> Brief:
    """Read a brief.

    Raises:
        WireError: if it is not what ``encode_brief`` writes.
    """
    try:
        return msgspec.convert(loads(data, 1), Brief)
    except (JsonDomainError, msgspec.ValidationError, UnicodeEncodeError) as error:
        raise WireError(f"the brief is not readable: {error}") from None
