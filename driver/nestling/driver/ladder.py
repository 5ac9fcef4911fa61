"""The ladder: how a worker is ended that should have stopped by itself.

Rung by rung, each after so many seconds on the one before: its end of input, SIGTERM to
its group, SIGKILL to its group and to whatever descends from it. About twelve seconds in
all, for any number of workers at once; who is there still is ``unkillable``, and nobody
waits for it any more.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from nestling.driver.director import EndedBy
from nestling.driver.hub_session import Climb, HubSession
from nestling.driver.instructions import Abandon, HangUp, Instruction, Kill, Terminate


class Rung(NamedTuple):
    """One step: what is ordered, after so many seconds on the one before."""

    seconds: float
    order: type[HangUp | Terminate | Kill | Abandon]


RUNGS: Final = (
    Rung(2.0, HangUp),
    Rung(2.0, Terminate),
    Rung(3.0, Kill),
    Rung(5.0, Abandon),
)

HANG_UP: Final = 0
KILL: Final = 2
GIVE_UP: Final = 3


def is_due(session: HubSession, now: float) -> bool:
    """Tell whether a session has stood on its rung for too long."""
    climb = session.climb
    return climb is not None and now - climb.since >= RUNGS[climb.rung].seconds


def climbed(session: HubSession, now: float, rung: int | None = None) -> Instruction:
    """Take a session to a rung, the next one by default; return what is ordered there."""
    climb = session.climb
    at = rung if rung is not None else (0 if climb is None else climb.rung)
    session.climb = None if at == GIVE_UP else Climb(at + 1, now)
    return RUNGS[at].order(session.launch)


def why_stopped(session: HubSession) -> tuple[str, EndedBy]:
    """Say why a session is ended that did not heed a cancel."""
    cancelling = session.cancelling
    kind = "" if cancelling is None else f" ({cancelling.cause.get('kind')})"
    return f"it was cancelled{kind} and did not stop", "cancel"
