"""What has taken too long: a start, a silence, a token, a turn, a goodbye, a rung.

Judged on the hub's own clock, which does not run while the hub itself does not (see
``HubLoop``): a driver that was stopped, or starved, suspects nobody.
"""

from __future__ import annotations

from typing import Final

from nestling.driver.calls import Calls
from nestling.driver.cancels import Cancels
from nestling.driver.endings import Endings
from nestling.driver.exits import UNKILLABLE, Exit
from nestling.driver.hub_session import HubSession, State
from nestling.driver.instructions import Abandon, Dump
from nestling.driver.ladder import GIVE_UP, HANG_UP, climbed, is_due, why_stopped
from nestling.driver.tree import Tree

LEAVING: Final = 5.0
"""Seconds that a worker has to end after its goodbye."""

SUSPECTED: Final = 10.0
"""Seconds that a suspected worker has to say something."""

_SPEAKS: Final = (State.CREATING, State.RUNNING, State.IDLE, State.FINISHING)


class Watch:
    """Ends what takes too long."""

    def __init__(
        self, tree: Tree, endings: Endings, calls: Calls, cancels: Cancels
    ) -> None:
        self._tree = tree
        self._endings = endings
        self._calls = calls
        self._cancels = cancels

    def tick(self) -> None:
        """Look at every session."""
        for session in self._tree:
            if session.state is not State.REAPED:
                self._look(session)

    def _look(self, session: HubSession) -> None:
        now, limits = self._tree.now.monotonic, self._tree.director.limits
        if is_due(session, now):
            self._climb(session)
        elif session.state in _SPEAKS and session.climb is None:
            self._listen(session, now - session.last_heard, limits.silence)
        self._end_if_late(session, now)
        self._end_if_not_started(session, now, limits.start_timeout)
        if session.state is State.RUNNING:
            self._calls.expire(session)
            self._end_turn_if_late(session, now, limits.turn_timeout)

    def _climb(self, session: HubSession) -> None:
        climb, now = session.climb, self._tree.now.monotonic
        assert climb is not None, "it is due"
        if climb.rung != GIVE_UP:
            if session.state is not State.STOPPING and not session.is_ended:
                self._tree.stop(session, *why_stopped(session), climb.rung)
            else:
                self._tree.orders.append(climbed(session, now))
            return
        session.climb = None
        self._tree.orders.append(Abandon(session.launch))
        self._endings.reaped(session, Exit(None, None, cause=UNKILLABLE))

    def _listen(self, session: HubSession, silence: float, bound: float) -> None:
        """Suspect a worker whose loop does not turn, and end it if it stays so."""
        if silence <= bound:
            session.is_suspect = False
        elif not session.is_suspect:
            session.is_suspect = True
            self._tree.notice(session, f"has said nothing for {silence:.0f} s")
            self._tree.orders.append(Dump(session.launch))
        elif silence > bound + SUSPECTED:
            why = (
                f"wedged: its loop has not turned for {silence:.0f} s, "
                "what it printed ends with where its threads were"
            )
            self._tree.stop(session, why, "death", HANG_UP)

    def _end_if_late(self, session: HubSession, now: float) -> None:
        """End a worker that has said goodbye and does not go."""
        left_at = session.left_at
        if left_at is None or session.state is not State.SETTLED:
            return
        if now - left_at > LEAVING:
            session.left_at = None
            self._tree.kill(session, "it did not end")

    def _end_if_not_started(
        self, session: HubSession, now: float, bound: float
    ) -> None:
        started_at = session.started_at
        if started_at is None or not self._tree.is_starting(session):
            return
        if now - started_at > bound:
            reason = f"its worker did not start within {bound:g} s"
            self._tree.kill(session, reason)

    def _end_turn_if_late(self, session: HubSession, now: float, bound: float) -> None:
        began = session.turn_began
        if began is not None and now - began > bound:
            text = f"the turn took longer than {bound:g} s"
            self._cancels.cancel(session, {"kind": "timeout", "reason": text})
