"""SQLite stores for tests: made, damaged from outside, and compared byte by byte."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject
from nestling.session.sqlite_backend_io import SqliteBackend
from nestling.session.store_backend import Held, Write
from support.session_logs import LogWriter


@contextmanager
def opened(path: Path, busy_seconds: float = 5.0) -> Iterator[SqliteBackend]:
    """A backend that is closed at the end."""
    backend = SqliteBackend(path, busy_seconds=busy_seconds)
    try:
        yield backend
    finally:
        backend.close()


def header(session_id: str = "s", **fields: Any) -> Header:
    """A header."""
    return Header(session_id, 5, fields)


def turns(count: int, start: int = 0) -> list[Event]:
    """Events of whole turns: all of them, or those from the seq `start`."""
    writer = LogWriter()
    for number in range(count):
        writer.answered_turn(f"question {number}", f"answer {number}")
    return writer.events[start:]


def notes(seqs: Sequence[int], data: Any = None) -> list[Event]:
    """Ignorable events that no turn needs, of these seqs."""
    return [Event(seq, "x/note", 7, data, ignorable=True) for seq in seqs]


def put(backend: SqliteBackend, session_id: str, events: Sequence[Event]) -> None:
    """Store a new session."""
    assert backend.write([Write(header(session_id), events, True)]) == [None]


def more(backend: SqliteBackend, session_id: str, events: Sequence[Event]) -> None:
    """Append to a stored session."""
    assert backend.write([Write(header(session_id), events, False)]) == [None]


def ready_to_write(backend: SqliteBackend) -> None:
    """Have the connection opened that writes, as the first write does."""
    with backend._store.writing("open"):
        pass


def held(backend: SqliteBackend, session_id: str = "s") -> Held:
    """What is stored of a session that is stored."""
    found = backend.read(session_id)
    assert found is not None
    return found


def kept(path: Path, session_id: str = "s") -> list[JsonObject]:
    """The rows of a session, read by a backend of its own."""
    with opened(path) as backend:
        return [event.row() for event in held(backend, session_id).events]


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program's connection."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def tamper(path: Path, *statements: str) -> None:
    """Change a store from outside, leaving nothing in a log."""
    with raw(path) as connection:
        for statement in statements:
            connection.execute(statement).fetchall()


def print_of(path: Path) -> dict[str, str]:
    """The digests of a file and of all that stands beside it, by name."""
    return {
        found.name: hashlib.sha256(found.read_bytes()).hexdigest()
        for found in path.parent.iterdir()
        if found.is_file()
    }
