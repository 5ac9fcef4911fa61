"""What ``bench_store`` compares with: the same bytes and rows, and no store around."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import orjson

from nestling.session.event import Event
from nestling.session.sqlite_file_io import statements
from nestling.session.sqlite_rows import event_rows, text_bytes
from nestling.session.writing import encode_rows

_APPENDING: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class RawFiles:
    """One file a session; a batch is one write and one ``fdatasync``."""

    def __init__(
        self, folder: Path, ids: Sequence[str], slices: Sequence[Sequence[Event]]
    ) -> None:
        """Encode everything, and open the files."""
        folder.mkdir()
        self._payloads = [encode_rows(each) for each in slices]
        self._fds = [os.open(folder / name, _APPENDING, 0o600) for name in ids]

    def append(self, number: int) -> None:
        """Append the slice of that number to every session."""
        payload = self._payloads[number]
        for fd in self._fds:
            os.write(fd, payload)
            os.fdatasync(fd)

    def close(self) -> None:
        """Close the files."""
        for fd in self._fds:
            os.close(fd)


class RawRows:
    """The same table and statement; a batch of all sessions is one transaction."""

    def __init__(
        self, path: Path, ids: Sequence[str], slices: Sequence[Sequence[Event]]
    ) -> None:
        """Make every row's values, and the tables."""
        self._rows = [
            [row for name in ids for row in event_rows(name, each, each[0].seq)]
            for each in slices
        ]
        self._insert = statements()["insert_event"]
        self._connection = sqlite3.connect(path, isolation_level=None)
        for name in ("create_sessions", "create_sessions_by_parent", "create_events"):
            self._connection.execute(statements()[name])
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")

    def append(self, number: int) -> None:
        """Insert the slice of that number for every session."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(self._insert, self._rows[number])
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def publish_raw(folder: Path, payload: bytes) -> None:
    """Make a new file in a new directory durable, with nothing checked."""
    folder.mkdir()
    fd = os.open(folder / "session.jsonl", _APPENDING, 0o600)
    try:
        os.write(fd, payload)
        os.fdatasync(fd)
    finally:
        os.close(fd)
    for directory in (folder, folder.parent):
        fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def decoded(path: Path) -> list[Any]:
    """Parse every line of a file."""
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def first_lines(root: Path) -> list[Any]:
    """Parse the first line of every session's file."""
    found = []
    with ExitStack() as stack:
        for entry in stack.enter_context(os.scandir(root)):
            if not entry.name.startswith("."):
                with open(f"{entry.path}/session.jsonl", "rb") as file:
                    found.append(orjson.loads(file.readline()))
    return found


def selected(path: Path, name: str, session_id: str | None = None) -> list[Any]:
    """Fetch all that the statement of that name gives, through a new connection."""
    values = () if session_id is None else (text_bytes(session_id),)
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        return connection.execute(statements()[name], values).fetchall()
