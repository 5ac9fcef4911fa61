"""Cancelling: a model call, or a turn with everything below it.

A cancel is flat: the hub knows the whole subtree and tells every session of it at once,
whatever they wait for. A turn is cancelled once; a second time changes nothing. Who does
not heed climbs the ladder (``nestling.driver.ladder``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nestling.driver.director import Answer, EncodedChunks
from nestling.driver.hub_session import Cancelling, Climb, HubSession, State
from nestling.driver.tree import Tree
from nestling.session.jsontext import JsonObject, dumps
from nestling.wire.messages import Cancel

PARENT: Final[JsonObject] = {"kind": "parent"}
"""Why a session is cancelled whose parent was."""

_STARTS: Final = (State.STARTING, State.CREATING)

_IS_OVER: Final = (State.STOPPING, State.FINISHING, State.SETTLED, State.REAPED)


class Cancels:
    """Cancels sessions of one run."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def cancel(self, session: HubSession, cause: JsonObject) -> bool:
        """Cancel what a session is doing, and all sessions below it.

        What it was told and has not begun is dropped.

        Args:
            session: any one.
            cause: why, as its log will hold it: ``{"kind", …}``.

        Returns:
            Whether there was something to cancel.
        """
        is_busy = self._cancel_one(session, cause)
        for child in _below(session):
            is_busy = self._cancel_one(child, PARENT) or is_busy
        return is_busy

    def stated(self, path: str, cause: JsonObject) -> bool:
        """Cancel a session where that was said ahead; not while one below it starts.

        Returns:
            Whether that has been done.
        """
        session = self._tree.at(path)
        if session is None:
            return True
        if any(each.state in _STARTS for each in _below(session)):
            return False
        self.cancel(session, cause)
        return True

    def _cancel_one(self, session: HubSession, cause: JsonObject) -> bool:
        if session.state in _IS_OVER:
            return False
        dropped = len(session.prompts)
        session.prompts.clear()
        session.prompted += dropped
        session.never_began |= dropped > 0  # though what it does now may complete
        if session.state in _STARTS:
            session.never_began = True
            if not session.is_open:
                why = f"it was cancelled before it began ({cause['kind']})"
                self._tree.kill(session, why, "cancel")
            return True
        if session.state is State.IDLE or session.is_between_turns:
            return dropped > 0
        if session.cancelling is None:
            session.cancelling = Cancelling(cause, None)
            session.climb = Climb(0, self._tree.now.monotonic)
            self.tell(session)
        return True

    def tell(self, session: HubSession) -> None:
        """Tell a worker that its turn is cancelled, once the hub knows of the turn."""
        cancelling, turn = session.cancelling, session.log.turns.turn
        if cancelling is None or cancelling.turn is not None or turn is None:
            return
        session.cancelling = cancelling._replace(turn=turn)
        if session.is_opening:
            return  # the call is cut where it would be answered
        call, number, after = session.call, None, None
        if call is not None and not call.is_closed:
            self._tree.dismiss(session)
            call.is_closed = True
            number, after = call.request.number, call.served
        message = Cancel(session.sid, number, after)
        self._tree.say(session, message, dumps(cancelling.cause))

    def grown(self, session: HubSession) -> None:
        """Look at a log that has grown: the turn may have begun, or ended."""
        cancelling = session.cancelling
        if cancelling is None:
            return
        if cancelling.turn is None:
            self.tell(session)
        elif session.log.turns.turn != cancelling.turn:
            session.cancelling = None
            if session.state is not State.STOPPING:
                session.climb = None


def cut_of(session: HubSession) -> Answer | None:
    """Return how a call is answered that is opened in a cancelled turn."""
    if session.cancelling is None:
        return None
    return Answer(EncodedChunks(()), cut=session.cancelling.cause)


def _below(session: HubSession) -> Iterator[HubSession]:
    for child in session.children:
        yield child
        yield from _below(child)
