"""A backend that keeps sessions in one SQLite file: one row for each event.

Layout: ``sqlite_store.sql``, version 4 of Nestling's own application id. WAL and
``synchronous=FULL``: what was committed survives a crash of the machine, and what was
not is gone without a trace. Making many sessions durable costs one commit.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from nestling.session.errors import (
    CorruptError,
    SessionExistsError,
    SessionNotFoundError,
    StoreError,
    UnreadableError,
    UnsupportedError,
    VersionError,
)
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.sqlite_connection_io import StoreConnection
from nestling.session.sqlite_rows import (
    Columns,
    bytes_text,
    check_row,
    event_rows,
    header_from_columns,
    header_values,
    revision_token,
    stored_row,
    text_bytes,
)
from nestling.session.store_backend import Held, Listed, Write
from nestling.session.torn_tail import sound_events

BUSY_SECONDS = 5.0
"""How long another process may hold the file before an operation fails."""

_REFUSALS = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    TypeError,
    ValueError,
    OverflowError,
)
"""What one session's values may raise; everything else concerns the whole commit."""


class SqliteBackend:
    """Keeps sessions in an SQLite file (a ``Backend``).

    The file is opened at the first operation, and created at the first write. After a
    fork only the parent may use it.
    """

    shares_commits = True

    def __init__(self, path: str | Path, *, busy_seconds: float = BUSY_SECONDS) -> None:
        """Remember where the file is; nothing is opened.

        Args:
            path: of the file; what is relative is so to the directory of now.
            busy_seconds: how long to wait for another process.

        Raises:
            StoreError: if there can be no file of that name.
        """
        text = os.fspath(path)
        if not text or "\0" in text:
            raise StoreError(f"sqlite:{text!r}: expected the path of a file")
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            raise StoreError(
                f"sqlite:{text!r}: expected a path that the file system can name"
            ) from None
        self._path = os.path.abspath(text)
        self.name = f"sqlite:{self._path}"
        self._store = StoreConnection(self._path, self.name, busy_seconds)
        self._seen: dict[str, str] = {}

    # --- reading -----------------------------------------------------------------

    def read(self, session_id: str) -> Held | None:
        """Return what is stored of a session (see ``Backend``)."""
        key = text_bytes(session_id)
        with self._store.reading(f"read session {session_id!r}") as is_there:
            found = self._store.run("session", (key,)).fetchone() if is_there else None
            if found is None:
                return None
            header, revision = self._header(session_id, found)
            try:
                rows = map(stored_row, self._store.run("all_events", (key,)))
                events, tail = sound_events(rows)
            except CorruptError as error:
                raise CorruptError(f"{self._called(session_id)}: {error}") from None
        self._seen[session_id] = revision
        return Held(header, events, revision, tail)

    def read_from(self, session_id: str, seq: int) -> list[Event] | None:
        """Return the sound events from `seq` on (see ``Backend``)."""
        key = text_bytes(session_id)
        # The row before them is read, too: what stands behind a gap is not sound.
        first = max(0, seq - 1)
        with self._store.reading(f"read session {session_id!r}") as is_there:
            found = self._store.run("session", (key,)).fetchone() if is_there else None
            if found is None:
                return None
            self._header(session_id, found)
            try:
                rows = map(stored_row, self._store.run("events_from", (key, first)))
                events, _ = sound_events(rows, first)
            except CorruptError as error:
                raise CorruptError(f"{self._called(session_id)}: {error}") from None
        return events[seq - first :]

    def revision(self, session_id: str) -> str | None:
        """Return a stored session's revision, or None."""
        with self._store.reading(f"look at session {session_id!r}") as is_there:
            return self._revision(session_id) if is_there else None

    def sessions(self) -> list[Listed]:
        """Return every stored session, ordered by id."""
        with self._store.reading("list sessions") as is_there:
            if not is_there:
                return []
            return [_listed(columns) for columns in self._store.run("sessions")]

    def children(self, session_id: str) -> list[Header]:
        """Return the readable headers that name a session as their parent, by id."""
        key = text_bytes(session_id)
        with self._store.reading("list sessions") as is_there:
            if not is_there:
                return []
            listed = map(_listed, self._store.run("children", (key,)))
            return [one.header for one in listed if one.header is not None]

    def _header(self, session_id: str, columns: Columns) -> tuple[Header, str]:
        try:
            revision = revision_token(*columns[:2])
            header = header_from_columns(columns[2:])
        except VersionError as error:
            raise UnsupportedError(f"{self._called(session_id)}: {error}") from None
        except UnreadableError as error:
            raise CorruptError(f"{self._called(session_id)}: {error}") from None
        return header, revision

    def _revision(self, session_id: str) -> str | None:
        found = self._store.run("revision", (text_bytes(session_id),)).fetchone()
        if found is None:
            return None
        try:
            return revision_token(*found)
        except UnreadableError as error:
            raise CorruptError(f"{self._called(session_id)}: {error}") from None

    def _called(self, session_id: str) -> str:
        return f"{self.name} session {session_id!r}"

    # --- writing -----------------------------------------------------------------

    def write(self, writes: Sequence[Write]) -> list[StoreError | None]:
        """Make events durable in one commit (see ``Backend``).

        One session's refusal does not concern the others; a failure of the commit
        concerns them all.
        """
        if not writes:
            return []
        seen: dict[str, str] = {}
        known: dict[str, str] = {}
        try:
            with self._store.writing("write"):
                results = [self._write_apart(write, seen) for write in writes]
                known = self._forget(seen)
        except StoreError as error:
            self._seen.update(known)
            # One for each: callers raise them in different places.
            return [type(error)(str(error)) for _ in writes]
        self._remember(seen)
        return results

    def _forget(self, session_ids: Iterable[str]) -> dict[str, str]:
        """Forget and return what was seen of sessions that are about to change.

        If an interrupt comes between the commit and what is remembered of it, their
        next writes ask the store, instead of taking our own commit for another's.
        """
        seen = self._seen
        return {found: seen.pop(found) for found in session_ids if found in seen}

    def _remember(self, seen: dict[str, str]) -> None:
        self._seen.update(seen)

    def _write_apart(self, write: Write, seen: dict[str, str]) -> StoreError | None:
        session_id = write.header.id
        self._store.run("begin_session")
        problem: StoreError | None = None
        try:
            seen[session_id] = self._write(write)
        except StoreError as error:
            problem = error
        except _REFUSALS as error:
            problem = StoreError(f"{self._called(session_id)} cannot be kept: {error}")
        if problem is not None:
            self._store.run("roll_back_session")
        self._store.run("keep_session")
        return problem

    def _write(self, write: Write) -> str:
        """Write one session's events in the open transaction; return its revision."""
        session_id = write.header.id
        stored = self._revision(session_id)
        if write.is_new:
            if stored is not None:
                raise SessionExistsError(
                    f"{self._called(session_id)} is stored already"
                )
            incarnation = secrets.token_hex(16).encode()
            values = {**header_values(write.header), "incarnation": incarnation}
            self._store.run("insert_session", values)
            self._insert(session_id, write.events, 0)
            return revision_token(incarnation, 1)
        if stored is None:
            raise SessionNotFoundError(f"{self._called(session_id)} is not stored")
        if self._seen.get(session_id, stored) != stored:
            raise self._changed(session_id)
        self._insert(session_id, write.events, self._next_seq(session_id))
        return self._bumped(session_id)

    def _insert(self, session_id: str, events: Sequence[Event], next_seq: int) -> None:
        if events and events[0].seq != next_seq:
            raise StoreError(
                f"{self._called(session_id)} has {next_seq} events, "
                f"it cannot continue at {events[0].seq}"
            )
        try:
            rows = event_rows(session_id, events, next_seq)
            self._store.run_many("insert_event", rows)
        except StoreError as error:
            raise StoreError(f"{self._called(session_id)}: {error}") from None

    def _next_seq(self, session_id: str) -> int:
        """Return where a session continues; nothing is put behind a bad row."""
        key = text_bytes(session_id)
        last: Columns | None = self._store.run("last_event", (key,)).fetchone()
        if last is None:
            return 0
        try:
            check_row(last)
        except UnreadableError as error:
            raise StoreError(
                f"{self._called(session_id)} ends in a row that cannot be read, and "
                f"must be repaired first: event row {last[0]}: {error}"
            ) from None
        return int(last[0]) + 1

    def _bumped(self, session_id: str) -> str:
        self._store.run("bump_revision", (text_bytes(session_id),))
        revision = self._revision(session_id)
        assert revision is not None, "it was read in this transaction"
        return revision

    def _changed(self, session_id: str) -> StoreError:
        return StoreError(
            f"{self._called(session_id)} has changed since it was read here"
        )

    def repair(self, held: Held, closers: Sequence[Event]) -> None:
        """Remove a session's tail and append `closers` (see ``Backend``)."""
        session_id = held.header.id
        with self._store.writing(f"repair session {session_id!r}"):
            revision = self._revision(session_id)
            if revision != held.revision:
                raise self._changed(session_id)
            if held.tail is not None:
                key = text_bytes(session_id)
                self._store.run("delete_events_from", (key, held.tail.mark))
            if closers:
                self._insert(session_id, closers, self._next_seq(session_id))
            if closers or held.tail is not None:
                revision = self._bumped(session_id)
            self._forget([session_id])
        self._remember({session_id: revision})

    def delete(self, session_id: str) -> bool:
        """Remove a session with its events; return whether there was one."""
        if self.revision(session_id) is None:
            return False
        with self._store.writing(f"delete session {session_id!r}"):
            gone = self._store.run("delete_session", (text_bytes(session_id),))
            was_there = gone.rowcount > 0
            self._forget([session_id])
        return was_there

    # --- the file ----------------------------------------------------------------

    def lease_folder(self) -> str | None:
        """Return the directory of the store's leases, beside the file."""
        return f"{self._path}-leases"

    def close(self) -> None:
        """Close the file; may be called again."""
        self._store.close()


def _listed(columns: Columns) -> Listed:
    problem, header, revision = "", None, ""
    try:
        revision = revision_token(*columns[:2])
        header = header_from_columns(columns[2:])
    except UnreadableError as error:
        problem = str(error)
    if header is not None:
        return Listed(header.id, header, revision)
    return Listed(_stored_name(columns[2]), None, revision, problem)


def _stored_name(value: object) -> str:
    try:
        return bytes_text(value, "id")
    except UnreadableError:
        return (
            value.decode("utf-8", "backslashreplace")
            if isinstance(value, bytes)
            else repr(value)
        )
