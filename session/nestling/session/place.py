"""Where in a session something was asked for: a tool call's block, or a delegation."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """The place of a request in the session that makes it.

    Attributes:
        turn: the open turn.
        step: its open step; 0 where none is open yet.
        block: the position of the tool call in the message; None outside of tools.
        n: which delegation of that tool call, from 0; or, without a block and a key,
            of the step's delegations by code.
        key: the name that code gave the delegation.
    """

    turn: int
    step: int
    block: int | None = None
    n: int = 0
    key: str | None = None
