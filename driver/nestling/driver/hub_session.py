"""What the hub knows of one session."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from nestling.driver.director import CancelAt, Creation, EndedBy, KillAt, Prompt
from nestling.driver.exits import Exit
from nestling.driver.open_step import OpenStep
from nestling.driver.streams import OpenCall
from nestling.session.boundary import own_events
from nestling.session.errors import WireError
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject
from nestling.session.log import SessionLog
from nestling.session.outcome import Outcome, last_turn, outcome
from nestling.wire.messages import Delegate, ToWorker

MOST_WAITING: Final = 10_000
"""So many requests of one session may wait for the disk."""


class State(enum.Enum):
    """How far a session's worker is."""

    STARTING = "starting"
    CREATING = "creating"
    RUNNING = "running"
    IDLE = "idle"
    FINISHING = "finishing"
    STOPPING = "stopping"
    SETTLED = "settled"
    REAPED = "reaped"


class Cancelling(NamedTuple):
    """A turn that is being cancelled.

    Attributes:
        cause: why, as the log will hold it.
        turn: its number, once the hub knows of it and the worker was told.
    """

    cause: JsonObject
    turn: int | None


class Climb(NamedTuple):
    """Where a worker stands on the ladder: before `rung`, since a monotonic time."""

    rung: int
    since: float


class Parentage(NamedTuple):
    """By which delegation of which session this one exists."""

    parent: HubSession
    request: Delegate
    call_id: str


def _claim_nothing() -> None:
    """Hold a request against nothing but the length of the log."""


class HubSession:
    """One session: its log, its worker, its open call, what waits for the disk.

    Attributes:
        sid: its number on the wire.
        launch: who its worker is admitted as.
        launches: that, after those of the workers that it had before.
        log: the hub's own copy, which is the truth.
        seed_length: how many events it inherited, counted.
        given: how many events its worker starts with: those, or all of a resumed log.
        brief: what its agent is told.
        durable: how many events are on disk.
        call: the open or last call.
        started_at: when its worker was launched, in monotonic seconds.
        left_at: when its worker said goodbye, until it is gone.
        is_opening: whether a call waits for the events before it to be durable.
        observed: how many events the director was shown.
        step: the tool calls of the open step and what was asked about them.
        gap_at: the event that was asked for again, until it comes.
        cancels: where its turns are still to be cancelled, by the length of the log.
        cancelled: the turn that was, last.
        left_open: what is said to requests without an answer once their turn is
            cancelled.
        kills: where its workers are still to be killed.
        exits: how the workers that it was resumed after had ended.
        has_result: whether its worker has said that it is done.
        is_refused: whether its worker has said that it cannot go on.
        prompts: what it will be told, turn by turn.
        prompted: how many of them it was told.
        is_open: whether it may be told more than that.
        ended_by: what ends it, if it does not end by itself.
        stop_reason: why the driver ends it, if it does.
        has_lost_store: whether its events can no longer be written.
        last_heard: when its worker last said something, in monotonic seconds.
        is_suspect: whether it has been silent for too long.
        cancelling: the cancel of its open turn, until that has ended.
        climb: where its worker stands on the ladder, if it is to be ended.
        never_began: whether it was cancelled before the turn that it was told last.
        told: what it was told last.
        begun: how many prompts its worker was sent.
        turns_ended: how many turns its log has seen the end of since it was created.
        turn_began: when its open turn began, in monotonic seconds.
        waits_for: what the session waits for now, in words.
    """

    def __init__(
        self,
        sid: int,
        creation: Creation,
        header: Header,
        log: SessionLog,
        path: str,
        depth: int,
        parentage: Parentage | None,
        flush: Callable[[], None],
    ) -> None:
        """Begin to keep track of a session.

        Args:
            flush: has what is on its way to disk written now.
        """
        self.sid = sid
        self.launches = [f"w{sid}"]
        self.creation = creation
        self.header = header
        self.log = log
        self.seed_length = self.given = header.seed_length
        self.brief = creation.brief
        self.path = path
        self.depth = depth
        self.parentage = parentage
        self.cancels: dict[int, CancelAt] = {
            stop.length: stop for stop in creation.stops.cancels
        }
        self.kills: deque[KillAt] = deque(creation.stops.kills)
        self.children: list[HubSession] = []
        self.exits: list[Exit] = []
        self.durable = 0
        self.persisted = 0
        self.calls_started = 0
        self.observed = 0
        self.has_lost_store = False
        self._flush = flush
        self._await_worker()
        self.prompts = deque(creation.prompts)
        self.prompted = 0
        self.told: Prompt | None = None
        self.is_open = creation.is_open

    def _await_worker(self) -> None:
        """Know nothing of a worker yet."""
        self.state = State.STARTING
        self.pid: int | None = None
        self.exit: Exit | None = None
        self.started_at: float | None = None
        self.left_at: float | None = None
        self.call: OpenCall | None = None
        self.is_opening = False
        self.ended_by: EndedBy = "death"
        self.stop_reason: str | None = None
        self.last_heard = 0.0
        self.is_suspect = False
        self.cancelling: Cancelling | None = None
        self.climb: Climb | None = None
        self.never_began = False
        self.turn_began: float | None = None
        self.begun = 0
        self.turns_ended = 0
        self.waits_for = "its worker to start"
        self._when_durable: list[tuple[int, Callable[[], None]]] = []
        self.step = OpenStep()
        self.gap_at: int | None = None
        self.has_result = False
        self.is_refused = False
        self.cancelled: int | None = None
        self.left_open: list[tuple[ToWorker, bytes]] = []

    def renew(self, brief: bytes | None) -> None:
        """Expect another worker, which is given the whole log; no turn is open.

        What the one before had asked for is forgotten.
        """
        if self.exit is not None:
            self.exits.append(self.exit)
        self.launches.append(f"w{self.sid}.{len(self.launches)}")
        self.given = len(self.log)
        self.brief = self.brief if brief is None else brief
        while self.kills and self.kills[0].length <= self.given:
            self.kills.popleft()
        self._await_worker()

    @property
    def launch(self) -> str:
        """Who its worker is admitted as."""
        return self.launches[-1]

    @property
    def log_end(self) -> int | None:
        """How long the log is when its worker is killed, if that is known."""
        return self.kills[0].length if self.kills else None

    def is_beyond(self, length: int) -> bool:
        """Tell whether a log of this length is longer than its worker lives for."""
        end = self.log_end
        return end is not None and length > end

    @property
    def ended_children(self) -> int:
        """How many of its children have ended."""
        return sum(child.is_ended for child in self.children)

    def is_alone(self) -> bool:
        """Tell whether every session below this one has ended."""
        return all(child.is_ended and child.is_alone() for child in self.children)

    @property
    def id(self) -> str:
        """The session's id."""
        return self.header.id

    @property
    def is_ended(self) -> bool:
        """Whether the session has settled; its process may still be there."""
        return self.state in (State.SETTLED, State.REAPED)

    @property
    def parent(self) -> HubSession | None:
        """The session that delegated this one."""
        return None if self.parentage is None else self.parentage.parent

    @property
    def is_between_turns(self) -> bool:
        """Whether it has done all that it was told, though it may not have said so."""
        return self.has_result or 0 < self.begun <= self.turns_ended

    def outcome(self) -> Outcome:
        """Return what the session has come to so far.

        Of one that is told one thing after the other it is what came of the last one.
        """
        if self.never_began:
            return Outcome("aborted", [])
        own = own_events(self.log.events, self.seed_length)
        return outcome(last_turn(own) if self.creation.is_open else own)

    def when_asked(
        self,
        length: int,
        action: Callable[[], None],
        claim: Callable[[], None] = _claim_nothing,
    ) -> None:
        """Do what a worker asks for, once the log that it was asked from is on disk.

        Args:
            length: how many events that log has.
            action: does it.
            claim: holds the request against the log, as soon as that is here.

        Raises:
            WireError: if the log is shorter, and nothing of it is on its way, or more
                is waiting already than any worker has reason to ask for.
        """
        is_here = length <= len(self.log)
        if not is_here and self.gap_at is None:
            raise WireError(
                f"a request made from {length} events, the log has {len(self.log)}"
            )
        if len(self._when_durable) >= MOST_WAITING:
            raise WireError(f"more than {MOST_WAITING} requests at once")
        if is_here:
            claim()
        else:
            self.when_durable(length, claim)
        self.when_durable(length, action)

    def when_durable(self, length: int, action: Callable[[], None]) -> None:
        """Do `action` once the first `length` events are on disk; now if they are."""
        if self.durable >= length:
            action()
        else:
            self._when_durable.append((length, action))
            self._flush()

    @property
    def is_awaited(self) -> bool:
        """Whether something waits for events to be durable."""
        return bool(self._when_durable)

    def became_durable(self, length: int) -> None:
        """Take note that the first `length` events are on disk."""
        self.durable = max(self.durable, length)
        due = [action for n, action in self._when_durable if n <= self.durable]
        self._when_durable = [e for e in self._when_durable if e[0] > self.durable]
        for action in due:
            action()

    def require(self, message: str, *states: State) -> None:
        """Check that a message may come now.

        Raises:
            WireError: if not.
        """
        if self.state not in states:
            raise WireError(f"{message} from a session that is {self.state.value}")
