"""What a store must do with rows, and the words in which it is asked to.

The rules of sessions are not a backend's business: ``nestling.session.store_io`` has
them, once, for every backend. A backend keeps headers and events, makes them durable,
finds where a torn tail begins (``nestling.session.torn_tail``), and refuses what it
cannot read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from nestling.session.errors import StoreError
from nestling.session.event import Event
from nestling.session.header import Header


class Tail(NamedTuple):
    """What stands behind the last sound row of a session.

    Attributes:
        mark: where it begins, in the backend's own measure (a byte, a seq).
        problem: names the place, what was found there and what was expected.
    """

    mark: int
    problem: str


class Held(NamedTuple):
    """What a backend holds of one session.

    Attributes:
        header: its header.
        events: its sound events, from seq 0, without a gap; they are the caller's.
        revision: an opaque token that changes whenever the stored session does.
        tail: what stands behind them, if something does.
    """

    header: Header
    events: list[Event]
    revision: str
    tail: Tail | None


class Write(NamedTuple):
    """Events to be made durable.

    Attributes:
        header: of the session they belong to.
        events: not empty; the first one's seq says how many are stored already.
        is_new: the session is not stored yet: header and events appear together.
    """

    header: Header
    events: Sequence[Event]
    is_new: bool


class Listed(NamedTuple):
    """One stored session in a list.

    Attributes:
        id: its id; where that cannot be read, the name by which it is stored.
        header: its header, or None if that cannot be read.
        revision: see ``Held``.
        problem: why its header cannot be read, or "".
    """

    id: str
    header: Header | None
    revision: str
    problem: str = ""


class Backend(Protocol):
    """Keeps sessions.

    Every method may raise ``StoreError``; where nothing is said about it, it leaves
    what is stored as it was. Methods are called one at a time, from any thread.

    Attributes:
        name: what errors call the store, as ``open_store`` takes it.
        shares_commits: making many sessions durable at once costs about what one costs.
    """

    name: str
    shares_commits: bool

    def read(self, session_id: str) -> Held | None:
        """Return what is stored of a session, or None if nothing is; write nothing.

        Raises:
            CorruptError: if a bad row stands before a later ``turn/end``, or the header
                is damaged or another session's.
            UnsupportedError: if the header is of another version.
        """
        ...

    def read_from(self, session_id: str, seq: int) -> list[Event] | None:
        """Return the sound events from `seq` on, or None; write nothing.

        What stands before them need not be looked at.

        Raises:
            CorruptError, UnsupportedError: as ``read``.
        """
        ...

    def revision(self, session_id: str) -> str | None:
        """Return a stored session's revision, or None if it is not stored."""
        ...

    def write(self, writes: Sequence[Write]) -> list[StoreError | None]:
        """Make events durable; all that is returned without an error is.

        A session appears at most once. A failed write leaves its session as it was, or
        with a tail that ``read`` bounds and the next write removes. A stored session
        that has changed since this backend wrote or read it is not written.

        Returns:
            For each write what became of it: ``SessionExistsError`` for a new session
            that is stored, ``SessionNotFoundError`` for another that is not.
        """
        ...

    def repair(self, held: Held, closers: Sequence[Event]) -> None:
        """Remove a session's tail, if it has one, and append `closers`, durably.

        Whenever this is cut short, a repair that is done again comes to the same.

        Args:
            held: what ``read`` returned; a session that has changed since is refused.
            closers: may be empty.
        """
        ...

    def sessions(self) -> list[Listed]:
        """Return every stored session, ordered by id."""
        ...

    def children(self, session_id: str) -> list[Header]:
        """Return the readable headers that name a session as their parent, by id."""
        ...

    def delete(self, session_id: str) -> bool:
        """Remove a session with everything of it; return whether there was one.

        Raises:
            CorruptError: if another session is stored under its name.
        """
        ...

    def lease_folder(self) -> str | None:
        """Return the directory of the store's leases; None if no process shares it."""
        ...

    def close(self) -> None:
        """Free what is open; may be called again."""
        ...
