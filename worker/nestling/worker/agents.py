"""Which agent steers a session, told from its agent reference."""

from __future__ import annotations

from nestling.session.errors import WireError
from nestling.wire.agent_reference import TAPE
from nestling.wire.messages import Create
from nestling.worker.endpoint import Endpoint, Pilot
from nestling.worker.tape import decode_tape
from nestling.worker.tape_pilot import TapePilot


def pilot_for(endpoint: Endpoint, create: Create, tape: bytes) -> Pilot:
    """Return the pilot of a new session.

    Raises:
        WireError: if the agent is unknown, or the tape unreadable.
    """
    if create.agent != TAPE:
        raise WireError(f"unknown agent {create.agent!r}, expected {TAPE!r}")
    return TapePilot(endpoint, decode_tape(tape))
