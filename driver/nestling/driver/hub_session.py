"""What the hub knows of one session."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from nestling.driver.director import Creation, EndedBy
from nestling.driver.exits import Exit
from nestling.driver.streams import OpenCall
from nestling.session.boundary import own_events
from nestling.session.errors import WireError
from nestling.session.header import Header
from nestling.session.log import SessionLog
from nestling.session.outcome import Outcome, outcome
from nestling.wire.messages import Delegate


class State(enum.Enum):
    """How far a session's worker is."""

    STARTING = "starting"
    CREATING = "creating"
    RUNNING = "running"
    FINISHING = "finishing"
    STOPPING = "stopping"
    SETTLED = "settled"
    REAPED = "reaped"


Place: TypeAlias = tuple[int, int, int | None, int, str | None]
"""Where a request stands: turn, step, block, n, key."""


class Parentage(NamedTuple):
    """By which delegation of which session this one exists."""

    parent: HubSession
    request: Delegate
    call_id: str


class HubSession:
    """One session: its log, its worker, its open call, what waits for the disk.

    Attributes:
        sid: its number on the wire.
        launch: who its worker is admitted as.
        log: the hub's own copy, which is the truth.
        seed_length: how many events it inherited, counted.
        durable: how many events are on disk.
        call: the open or last call.
        is_opening: whether a call waits for the events before it to be durable.
        observed: how many events the director was shown.
        ended_by: what ends it, if it does not end by itself.
        stop_reason: why the driver ends it, if it does.
        has_lost_store: whether its events can no longer be written.
        last_heard: when its worker last said that it lives, in monotonic seconds.
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
    ) -> None:
        self.sid = sid
        self.launch = f"w{sid}"
        self.creation = creation
        self.header = header
        self.log = log
        self.seed_length = header.seed_length
        self.path = path
        self.depth = depth
        self.parentage = parentage
        self.children: list[HubSession] = []
        self.state = State.STARTING
        self.pid: int | None = None
        self.exit: Exit | None = None
        self.started_at = 0.0
        self.durable = 0
        self.persisted = 0
        self.call: OpenCall | None = None
        self.calls_started = 0
        self.is_opening = False
        self.observed = 0
        self.ended_by: EndedBy = "death"
        self.stop_reason: str | None = None
        self.has_lost_store = False
        self.last_heard = 0.0
        self.waits_for = "its worker to start"
        self._when_durable: list[tuple[int, Callable[[], None]]] = []
        self._places: set[Place] = set()

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

    def outcome(self) -> Outcome:
        """Return what the session has come to so far."""
        return outcome(own_events(self.log.events, self.seed_length))

    def when_durable(self, length: int, action: Callable[[], None]) -> None:
        """Do `action` once the first `length` events are on disk; now if they are."""
        if self.durable >= length:
            action()
        else:
            self._when_durable.append((length, action))

    def became_durable(self, length: int) -> None:
        """Take note that the first `length` events are on disk."""
        self.durable = max(self.durable, length)
        due = [action for n, action in self._when_durable if n <= self.durable]
        self._when_durable = [e for e in self._when_durable if e[0] > self.durable]
        for action in due:
            action()

    def claim_place(self, place: Place) -> None:
        """Take note of a tool call or delegation, of which each place has one.

        Raises:
            WireError: if that place had one, or is not in the open step.
        """
        turns = self.log.turns
        if place[:2] != (turns.turn, turns.step):
            raise WireError(
                f"a request of turn {place[0]}, step {place[1]}; "
                f"the log is at {turns.turn}, {turns.step}"
            )
        if place in self._places:
            raise WireError(f"a second request of turn {place[0]}, step {place[1]}")
        self._places.add(place)

    def require(self, message: str, *states: State) -> None:
        """Check that a message may come now.

        Raises:
            WireError: if not.
        """
        if self.state not in states:
            raise WireError(f"{message} from a session that is {self.state.value}")
