"""The sessions of one run, and the list of what is to be done about them."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from nestling.driver.director import Creation, Director, EndedBy, Resume
from nestling.driver.hub_session import HubSession, Parentage, State
from nestling.driver.instructions import (
    Dismiss,
    Flush,
    Instruction,
    Launch,
    Notice,
    Persist,
    Send,
)
from nestling.driver.ladder import KILL, climbed
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject, dumps
from nestling.session.log import END_SEED, SessionLog
from nestling.session.spawn_path import ROOT
from nestling.session.writing import encode_rows
from nestling.wire.messages import Create, ToWorker

_LISTENING: Final = (State.CREATING, State.RUNNING, State.IDLE, State.FINISHING)


class Now(NamedTuple):
    """The time, on the clock that only goes forward and on the one in logs.

    Attributes:
        monotonic: seconds.
        epoch_ms: milliseconds since 1970, UTC.
    """

    monotonic: float
    epoch_ms: int


class Tree:
    """The sessions of one run.

    Attributes:
        director: who decides.
        orders: instructions not yet carried out, oldest first.
        now: the time of the event that is being handled.
        is_aborting: nothing new is created any more.
        progress: grows whenever the run comes closer to its end; what a worker merely
            says does not count.
    """

    def __init__(self, director: Director) -> None:
        self.director = director
        self.orders: list[Instruction] = []
        self.now = Now(0.0, 0)
        self.is_aborting = False
        self.progress = 0
        self._sessions: list[HubSession] = []
        self._by_launch: dict[str, HubSession] = {}
        self._queue: deque[HubSession] = deque()
        self._launching: list[HubSession] = []
        self._unlaunched: list[HubSession] = []
        self._seeds: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self._reaped = 0
        self._due: list[Callable[[], bool]] = []

    def __iter__(self) -> Iterator[HubSession]:
        return iter(self._sessions)

    @property
    def root(self) -> HubSession:
        """The session that nobody delegated."""
        return self._sessions[0]

    def of_launch(self, launch: str) -> HubSession:
        """Return the session whose worker was admitted as `launch`."""
        return self._by_launch[launch]

    def of_sid(self, sid: int) -> HubSession:
        """Return the session with a number that the hub itself gave out."""
        return self._sessions[sid]

    def at(self, path: str) -> HubSession | None:
        """Return the session at a spawn path, if there is one."""
        return next((each for each in self if each.path == path), None)

    def is_reaped(self) -> bool:
        """Tell whether every session has ended, and its process, too."""
        while self._reaped < len(self._sessions):
            if self._sessions[self._reaped].state is not State.REAPED:
                return False
            self._reaped += 1  # and that is how it stays
        return True

    # --- creating --------------------------------------------------------------

    def add(
        self,
        creation: Creation,
        seed: Sequence[Event],
        path: str,
        parentage: Parentage | None,
    ) -> HubSession:
        """Create a session; its header, seed and end-seed are on their way to disk."""
        parent = None if parentage is None else parentage.parent
        log = SessionLog(seed)
        digest = None
        if parent is not None and seed:
            digest = parent.log.prefix_digest(len(seed))
            log.add(END_SEED, self.now.epoch_ms)
        header = creation.header.with_fields(
            seedLength=len(seed) or None, seedDigest=digest
        )
        depth = 0 if parent is None else parent.depth + 1
        session = self._keep(creation, header, log, path, depth, parentage)
        self.orders.append(
            Persist(session.sid, header.id, header, tuple(log.events), len(log))
        )
        return session

    def restore(self, creation: Creation, stored: Sequence[Event]) -> HubSession:
        """Take up a root session that is stored already, with the whole of its log."""
        header = creation.header
        log = SessionLog(stored)
        depth = header.delegation_depth or 0
        session = self._keep(creation, header, log, ROOT, depth, None)
        session.given = len(log)
        self.orders.append(Persist(session.sid, header.id, None, (), len(log)))
        if len(log) == header.seed_length:
            log.add(END_SEED, self.now.epoch_ms)  # whoever made it did not get so far
            self.persist(session)
        return session

    def _keep(
        self,
        creation: Creation,
        header: Header,
        log: SessionLog,
        path: str,
        depth: int,
        parentage: Parentage | None,
    ) -> HubSession:
        sid = len(self._sessions)
        session = HubSession(
            sid,
            creation,
            header,
            log,
            path,
            depth,
            parentage,
            lambda: self.orders.append(Flush(sid)),
        )
        self._sessions.append(session)
        self._by_launch[session.launch] = session
        if parentage is not None:
            parentage.parent.children.append(session)
        session.persisted = len(log)
        return session

    # --- launching -------------------------------------------------------------

    def launch(self, session: HubSession) -> None:
        """Start a session's worker, once it is its turn."""
        session.waits_for = "its turn to start"
        self._queue.append(session)
        self.launch_next()

    def resume(self, session: HubSession, how: Resume) -> None:
        """Have another worker go on with a session whose worker is gone.

        What an earlier worker still says is said under an earlier name.
        """
        session.renew(how.brief)
        if how.is_told_again and session.told is not None:
            session.prompts.appendleft(session.told)
            session.prompted -= 1
        self._by_launch[session.launch] = session
        self.launch(session)

    def launch_next(self) -> None:
        """Start those that wait, as many as may be starting at once.

        Many interpreters that start together take their time from each other until
        none is ready in time.
        """
        limit = self.director.limits.starting
        self._launching = [each for each in self._launching if self.is_starting(each)]
        while self._queue and len(self._launching) < limit:
            session = self._queue.popleft()
            session.started_at = self.now.monotonic
            session.waits_for = "its worker to start"
            self._launching.append(session)
            self.progress += 1
            agent = session.creation.agent
            self.orders.append(Launch(session.launch, session.path, agent))
            self.notice(session, "starting")

    def when_due(self, action: Callable[[], bool]) -> None:
        """Try `action` after this event and each one to come, until it returns True."""
        self._due.append(action)

    def do_due(self) -> None:
        """Try what waits to be due."""
        if self._due:
            self._due = [action for action in self._due if not action()]

    def is_starting(self, session: HubSession) -> bool:
        """Tell whether a session's worker was launched and is not ready yet."""
        has_begun = session.state in (State.STARTING, State.CREATING)
        return has_begun and session.started_at is not None

    def take_unlaunched(self) -> list[HubSession]:
        """Return the sessions that were ended before it was their turn to start."""
        unlaunched, self._unlaunched = self._unlaunched, []
        return unlaunched

    def create_message(self, session: HubSession) -> tuple[Create, bytes]:
        """Build the ``create`` of a session, with its body."""
        header = dumps(session.header.row())
        seed, digest = self._encoded_seed(session)
        brief = session.brief
        message = Create(
            sid=session.sid,
            agent=session.creation.agent,
            events=session.given,
            sha256=digest,
            header_size=len(header),
            seed_size=len(seed),
            brief_size=len(brief),
            calls=session.calls_started,
        )
        return message, header + seed + brief

    def _encoded_seed(self, session: HubSession) -> tuple[bytes, bytes]:
        """Encode a seed once for all siblings that share it."""
        parent = session.parent
        if parent is None or session.given != session.seed_length:
            return _encoded(session)  # its own log, which nobody shares
        key = (parent.sid, session.given)
        if key not in self._seeds:
            self._seeds[key] = _encoded(session)
        return self._seeds[key]

    # --- ordering --------------------------------------------------------------

    def say(self, session: HubSession, message: ToWorker, body: bytes = b"") -> None:
        """Tell a session's worker something, if it still listens."""
        if session.state in _LISTENING:
            self.orders.append(Send(session.launch, message, body))

    def persist(self, session: HubSession) -> None:
        """Send what is new in a session's log on its way to disk."""
        events = tuple(session.log.events[session.persisted :])
        if events:
            length = session.persisted = len(session.log)
            written = Persist(session.sid, session.id, None, events, length)
            self.orders.append(written)
            if session.is_awaited:
                self.flush(session)

    def flush(self, session: HubSession) -> None:
        """Have what is on its way to disk written now."""
        self.orders.append(Flush(session.sid))

    def dismiss(self, session: HubSession, failure: JsonObject | None = None) -> None:
        """Let the provider of a session's open call go, if one is at work.

        Args:
            session: whose.
            failure: how the call ends then, for those who still wait for it.
        """
        call = session.call
        if call is not None and call.answer is None:
            call.finish(failure)
            self.orders.append(Dismiss(session.sid, call.request.number))

    def kill(
        self, session: HubSession, reason: str, ended_by: EndedBy = "death"
    ) -> None:
        """End a session's worker now, for a reason that its records will name."""
        self.stop(session, reason, ended_by, KILL)

    def stop(
        self, session: HubSession, reason: str, ended_by: EndedBy, rung: int
    ) -> None:
        """End a session's worker, beginning at a rung of the ladder.

        One that is being ended already climbs, if it stands lower.
        """
        if session.state is State.REAPED:
            return
        self.dismiss(session)
        if session.state is State.STOPPING:
            if session.climb is None or session.climb.rung > rung:
                return
        elif not session.is_ended:
            session.state = State.STOPPING
            session.stop_reason, session.ended_by = reason, ended_by
        if session in self._queue:
            self._queue.remove(session)
            self._unlaunched.append(session)
        else:
            self.orders.append(climbed(session, self.now.monotonic, rung))

    def notice(self, session: HubSession, text: str) -> None:
        """Tell whoever watches what a session is doing."""
        self.orders.append(Notice(session.path, text))


def _encoded(session: HubSession) -> tuple[bytes, bytes]:
    seed = encode_rows(session.log.events[: session.given])
    return seed, hashlib.sha256(seed).digest()
