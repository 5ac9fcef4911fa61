"""Stores: where sessions are kept, one contract whatever keeps them.

::

    with open_store("sqlite:runs.db") as store:
        store.create(header)
        store.append(header.id, events)       # durable when it returns
        stored = store.resume(other_id)       # repaired, and ours to append to

A session has one live writer, across processes: whoever creates, resumes or appends to
it holds its lease until ``release`` or ``close``, or until the process is gone.

Source of the rules: the session format, version 0 (``docs/format.md``).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from nestling.session.digest import PrefixDigest
from nestling.session.errors import (
    AppendError,
    CorruptError,
    LeaseError,
    SeedError,
    SessionExistsError,
    SessionNotFoundError,
    StoreError,
    UnsupportedError,
)
from nestling.session.event import Event
from nestling.session.families import below, families
from nestling.session.header import Header
from nestling.session.jsontext import is_int0, shown
from nestling.session.lease_io import Leases
from nestling.session.memory_backend import MemoryBackend
from nestling.session.recovery import made_by, open_delegations, told
from nestling.session.repair import closers
from nestling.session.store_backend import Backend, Held, Listed, Write
from nestling.session.strict import (
    StrictLog,
    check_inheritance,
    check_json,
    checked_header,
)
from nestling.session.turns import tracked


class Stored(NamedTuple):
    """One session as a store gives it; the events are the caller's own.

    Attributes:
        header: its header, as it was created.
        events: its log, from seq 0.
        revision: an opaque token that changes whenever the stored session does.
        closers: how many events at the end close a turn that was interrupted.
        tail: why a torn tail was left out, or "".
        is_live: somebody is writing the session, so nothing was closed.
    """

    header: Header
    events: list[Event]
    revision: str
    closers: int = 0
    tail: str = ""
    is_live: bool = False


class Batch(NamedTuple):
    """The next events of a session, which its ``SessionLog`` has taken already."""

    session_id: str
    events: Sequence[Event]


class _Writing:
    """A session that this store may append to.

    Attributes:
        header: its header.
        length: how many events are stored; None while that is being changed, and
            afterwards if it was cut short.
        checks: has taken them all; None if it would have to be made.
    """

    def __init__(self, header: Header, length: int, checks: StrictLog | None) -> None:
        self.header = header
        self.length: int | None = length
        self.checks = checks


class SessionStore:
    """Keeps sessions; may be used from any thread, and as a context manager."""

    def __init__(self, backend: Backend) -> None:
        """Make a store of a backend; nothing is opened or created yet."""
        self._backend = backend
        self._leases = Leases(backend.lease_folder())
        self._writing: dict[str, _Writing] = {}
        self._families: Mapping[str, Sequence[Header]] | None = None
        self._parent: tuple[str, str, PrefixDigest] | None = None
        self._lock = threading.RLock()
        self._is_closed = False

    @property
    def name(self) -> str:
        """The store's address, absolute."""
        return self._backend.name

    @property
    def shares_commits(self) -> bool:
        """Whether making many sessions durable at once costs about what one costs."""
        return self._backend.shares_commits

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- writing -----------------------------------------------------------------

    def create(self, header: Header) -> None:
        """Reserve a new session; it is stored with its first events, and not before.

        Raises:
            AppendError: if the header cannot be stored.
            SessionExistsError: if there is a session of that id.
            LeaseError: if somebody else is about to create it.
        """
        header = checked_header(header)
        with self._lock:
            self.require_new(header.id)
            self._leases.take(header.id)
            try:
                if self._is_stored(header.id):  # by whoever had the lease until now
                    raise self._exists(header.id)
            except BaseException:
                self._leases.release(header.id)
                raise
            self._writing[header.id] = _Writing(header, 0, StrictLog())

    def require_new(self, session_id: str) -> None:
        """Check that no session of that id is stored.

        Raises:
            SessionExistsError: if one is.
            StoreError: if the store cannot be used.
        """
        with self._lock:
            self._require_open()
            if session_id in self._writing or self._is_stored(session_id):
                raise self._exists(session_id)

    def _is_stored(self, session_id: str) -> bool:
        return self._backend.revision(session_id) is not None

    def append(self, session_id: str, events: Sequence[Event]) -> None:
        """Append events; they are durable when this returns, or none of them is.

        A session that is only stored is resumed first (see ``resume``).

        Raises:
            AppendError: if an event does not continue the log, breaks one of its rules,
                or is no lossless JSON.
            UnsupportedError: if a type is not known and not ignorable: the log could
                not be loaded again.
            SessionNotFoundError, CorruptError, LeaseError: as ``resume``.
            StoreError: if they could not be made durable.
        """
        batch = list(events)
        if not batch:
            return
        with self._lock:
            self._require_open()
            if session_id not in self._writing:
                self.resume(session_id)
            writing = self._writing[session_id]
            check_json(batch)
            checks = self._checks_of(writing)
            writing.checks = None  # until what it takes now is stored
            for event in batch:
                checks.take(event)
            problem = self._write([Batch(session_id, batch)])[0]
            if problem is not None:
                raise problem
            writing.checks = checks

    def append_logged(self, batches: Sequence[Batch]) -> list[StoreError | None]:
        """Append what logs have taken, all of it with as few commits as possible.

        Args:
            batches: at most one for each session, none of them empty; every session was
                created or resumed here.

        Returns:
            For each batch None, once it is durable, or why it is not; then nothing of
            it is stored, and the others are not affected.
        """
        with self._lock:
            self._require_open()
            for batch in batches:
                if batch.session_id in self._writing:
                    self._writing[batch.session_id].checks = None
            return self._write(batches)

    def _write(self, batches: Sequence[Batch]) -> list[StoreError | None]:
        outcomes = [self._problem(batch) for batch in batches]
        due = [number for number, problem in enumerate(outcomes) if problem is None]
        writes = []
        for number in due:
            session_id, events = batches[number]
            writing = self._writing[session_id]
            is_new = self._length_of(writing) == 0
            writes.append(Write(writing.header, events, is_new))
        for write in writes:
            self._writing[write.header.id].length = None
        written = self._backend.write(writes) if writes else []
        for number, write, problem in zip(due, writes, written, strict=True):
            outcomes[number] = problem
            if problem is None:
                length = write.events[0].seq + len(write.events)
                self._writing[write.header.id].length = length
        return outcomes

    def _length_of(self, writing: _Writing) -> int:
        """Return how many events are stored; looked up where a write did not end well."""
        if writing.length is None:
            held = self._backend.read(writing.header.id)
            writing.length = 0 if held is None else len(held.events)
        return writing.length

    def _problem(self, batch: Batch) -> StoreError | None:
        writing = self._writing.get(batch.session_id)
        if writing is None:
            return StoreError(
                f"{self._named(batch.session_id)} was neither created nor resumed here"
            )
        length = self._length_of(writing)
        if batch.events[0].seq != length:
            return StoreError(
                f"{self._named(batch.session_id)} has {length} events, "
                f"it cannot continue at {batch.events[0].seq}"
            )
        return None

    def _checks_of(self, writing: _Writing) -> StrictLog:
        if writing.checks is not None:
            return writing.checks
        held = None
        if self._length_of(writing):
            held = self._backend.read(writing.header.id)
        return StrictLog(() if held is None else held.events)

    def resume(self, session_id: str) -> Stored:
        """Take up a stored session: repaired, and this store's to append to.

        Its header comes back as it was created, boundary and time included: what is
        resumed is a whole log, of which only the first ``seedLength`` events were
        inherited.

        Raises:
            SessionNotFoundError: if it is not stored.
            LeaseError: if it is being written, here or elsewhere.
            CorruptError, UnsupportedError: if it cannot be read faithfully; it is left
                as it is.
            StoreError: if it cannot be repaired.
        """
        with self._lock:
            self._require_open()
            if session_id in self._writing:
                raise LeaseError(f"{self._named(session_id)} is being written here")
            if not self._is_stored(session_id):
                raise self._not_found(session_id)  # before anything is created for it
            self._leases.take(session_id)
            try:
                stored = self._repaired(session_id)
            except BaseException:
                self._leases.release(session_id)
                raise
            length = len(stored.events)
            self._writing[session_id] = _Writing(stored.header, length, None)
            return stored

    def resume_tree(self, session_id: str) -> Stored:
        """Resume a session, and close what was left open in those below it.

        What cannot be repaired below it stays as it is: its parent is told that it was
        interrupted, and somebody may be writing it.

        Raises:
            SessionNotFoundError, LeaseError, CorruptError, UnsupportedError, StoreError:
                as ``resume``.
        """
        with self._lock:
            self._require_open()
            # Headers are read once, however many sessions ask for their children.
            self._families = families(self._backend.sessions())
            try:
                stored = self.resume(session_id)
                for child in below(session_id, self._families):
                    with suppress(StoreError):
                        self.load(child)
            finally:
                self._families = None
            return stored

    def release(self, session_id: str) -> None:
        """Let others write a session; nothing if it is not being written here."""
        with self._lock:
            if self._writing.pop(session_id, None) is not None:
                self._leases.release(session_id)

    def delete(self, session_id: str) -> None:
        """Remove a session and its events; its children keep what they inherited.

        Raises:
            SessionNotFoundError: if it is not stored.
            LeaseError: if it is being written, here or elsewhere.
            StoreError: if it cannot be removed.
        """
        with self._lock:
            self._require_open()
            if session_id in self._writing:
                raise LeaseError(f"{self._named(session_id)} is being written here")
            if not self._is_stored(session_id):
                raise self._not_found(session_id)
            self._leases.take(session_id)
            try:
                if not self._backend.delete(session_id):
                    raise self._not_found(session_id)
            finally:
                self._leases.release(session_id)

    def close(self) -> None:
        """Release every session and free the store; may be called again."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._writing.clear()
                try:
                    self._backend.close()
                finally:
                    self._leases.close()

    # --- reading -----------------------------------------------------------------

    def load(self, session_id: str) -> Stored:
        """Return a session; what a crash left of its last turn is closed, durably.

        Raises:
            SessionNotFoundError: if it is not stored.
            LeaseError: if its turn is open because it is being written.
            CorruptError, UnsupportedError: if it cannot be read faithfully; it is left
                as it is.
            StoreError: if it cannot be repaired.
        """
        with self._lock:
            stored = self.inspect(session_id)
            if stored.is_live and tracked(stored.events).turn is not None:
                raise LeaseError(
                    f"{self._named(session_id)} is being written, and its turn is open"
                )
            if stored.is_live or not (stored.closers or stored.tail):
                return stored
            self._leases.take(session_id)
            try:
                return self._repaired(session_id)
            finally:
                self._leases.release(session_id)

    def inspect(self, session_id: str) -> Stored:
        """Return a session as ``load`` would; nothing is written.

        Of a session that is being written it is what is stored so far.

        Raises:
            SessionNotFoundError, CorruptError, UnsupportedError, StoreError: as
                ``load``.
        """
        with self._lock:
            self._require_open()
            held, is_live = self._seen(session_id)
            self._check(held)
            return _stored(held, () if is_live else self._closers(held), is_live)

    def read_from(self, session_id: str, seq: int) -> list[Event]:
        """Return the stored events from `seq` on, unrepaired; none past the end.

        Raises:
            SessionNotFoundError: if the session is not stored.
            StoreError: if `seq` is no integer >= 0, or the session cannot be read.
        """
        with self._lock:
            self._require_open()
            if not is_int0(seq):
                raise StoreError(f"a seq is an integer >= 0, found {seq!r}")
            events = self._backend.read_from(session_id, seq)
            if events is None:
                raise self._not_found(session_id)
            return events

    def revision(self, session_id: str) -> str:
        """Return the token that changes whenever the stored session does.

        Raises:
            SessionNotFoundError: if it is not stored.
            StoreError: if the store cannot be read.
        """
        with self._lock:
            self._require_open()
            revision = self._backend.revision(session_id)
            if revision is None:
                raise self._not_found(session_id)
            return revision

    def sessions(self) -> list[Listed]:
        """Return every stored session, ordered by id; damaged ones, too.

        Raises:
            StoreError: if the store itself cannot be read.
        """
        with self._lock:
            self._require_open()
            return self._backend.sessions()

    def children(self, session_id: str) -> list[Header]:
        """Return the headers of the stored sessions that a session delegated, by id.

        Raises:
            StoreError: if the store itself cannot be read.
        """
        with self._lock:
            self._require_open()
            return self._backend.children(session_id)

    def is_live(self, session_id: str) -> bool:
        """Tell whether somebody is writing a session, here or elsewhere."""
        with self._lock:
            self._require_open()
            is_here = session_id in self._writing
            return is_here or self._leases.is_elsewhere(session_id)

    # --- repair ------------------------------------------------------------------

    def _held(self, session_id: str) -> Held:
        held = self._backend.read(session_id)
        if held is None:
            raise self._not_found(session_id)
        return held

    def _seen(self, session_id: str) -> tuple[Held, bool]:
        """Return a session, and whether somebody was writing it as it stood there.

        Its writer may end the turn and let it go after it was read here. Then it is
        read again: nothing of it was cut off.
        """
        while True:
            held = self._held(session_id)
            is_live = self.is_live(session_id)
            if is_live or self._backend.revision(session_id) == held.revision:
                return held, is_live

    def _repaired(self, session_id: str) -> Stored:
        """Commit the repair of a session whose lease is held."""
        held = self._held(session_id)
        self._check(held)
        closing = self._closers(held)
        if closing or held.tail is not None:
            self._backend.repair(held, closing)
            revision = self._backend.revision(session_id) or ""
            held = held._replace(revision=revision)
        return _stored(held, closing)

    def _closers(self, held: Held) -> list[Event]:
        """Return what closes a session; its children's logs say what they came to."""
        calls = open_delegations(held.events)
        children = self._children_of(held.header.id) if calls else []
        results = {}
        for call, child in made_by(calls, children):
            events = self._child_events(child)
            if events is not None:
                results[call] = told(call, child, events)
        return closers(held.events, results)

    def _children_of(self, session_id: str) -> Sequence[Header]:
        if self._families is not None:
            return self._families.get(session_id, ())
        return self._backend.children(session_id)

    def _child_events(self, child: Header) -> list[Event] | None:
        """Return what is stored of a child; None if that cannot be read."""
        try:
            held = self._backend.read(child.id)
            if held is None:
                return None
            self._check(held)
        except (CorruptError, UnsupportedError):
            return None
        return held.events

    def _check(self, held: Held) -> None:
        named = self._named(held.header.id)
        try:
            StrictLog(held.events)
            check_inheritance(held.header, held.events)
            self._check_parent(held.header)
        except UnsupportedError as error:
            raise UnsupportedError(f"{named}: {error}") from None
        except (AppendError, SeedError) as error:
            raise CorruptError(f"{named}: {error}") from None

    def _check_parent(self, header: Header) -> None:
        """Check that what a session inherited is what its parent holds, if it is here.

        Raises:
            SeedError: if it is not.
        """
        parent, digest, length = (
            header.parent_session,
            header.seed_digest,
            header.seed_length,
        )
        if parent is None or digest is None or not length:
            return
        try:
            prefixes = self._prefixes_of(parent)
        except (CorruptError, UnsupportedError):
            return  # what is wrong with the parent is not the child's fault
        if prefixes is not None and prefixes.at(length) != digest:
            raise SeedError(
                f"the first {length} events of its parent {shown(parent)} "
                "are not those it inherited"
            )

    def _prefixes_of(self, session_id: str) -> PrefixDigest | None:
        """Return the digests of a stored log's prefixes, read once for its children."""
        revision = self._backend.revision(session_id)
        if revision is None:
            return None
        if self._parent is None or self._parent[:2] != (session_id, revision):
            held = self._backend.read(session_id)
            if held is None:
                return None
            self._parent = session_id, held.revision, PrefixDigest(held.events)
        return self._parent[2]

    # --- words -------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._is_closed:
            raise StoreError(f"{self.name} is closed")

    def _named(self, session_id: str) -> str:
        return f"{self.name} session {shown(session_id)}"

    def _exists(self, session_id: str) -> SessionExistsError:
        return SessionExistsError(f"{self._named(session_id)} exists already")

    def _not_found(self, session_id: str) -> SessionNotFoundError:
        return SessionNotFoundError(f"{self._named(session_id)} is not stored")


def _stored(held: Held, closing: Sequence[Event], is_live: bool = False) -> Stored:
    tail = "" if held.tail is None else held.tail.problem
    events = [*held.events, *closing]
    return Stored(held.header, events, held.revision, len(closing), tail, is_live)


def open_store(address: str) -> SessionStore:
    """Return the store at an address; nothing is opened or created yet.

    Args:
        address: ``jsonl:DIR``, ``sqlite:FILE``, or ``memory:`` for one that lives as
            long as the object. Paths are relative to the working directory of now.

    Raises:
        StoreError: if it is no such address.
    """
    return SessionStore(backend_of(address))


def backend_of(address: str) -> Backend:
    """Return what keeps the sessions of the store at an address (see ``open_store``)."""
    if not isinstance(address, str):
        raise StoreError(
            f"a store's address is jsonl:DIR, sqlite:FILE or memory:, found {address!r}"
        )
    scheme, _, path = address.partition(":")
    # Imported where they are used: a run without a store needs neither of them.
    if scheme == "jsonl" and path:
        from nestling.session.jsonl_backend_io import JsonlBackend

        return JsonlBackend(path)
    if scheme == "sqlite" and path:
        from nestling.session.sqlite_backend_io import SqliteBackend

        return SqliteBackend(path)
    if address == MemoryBackend.name:
        return MemoryBackend()
    raise StoreError(
        f"no store at {shown(address)}, expected jsonl:DIR, sqlite:FILE or memory:"
    )
