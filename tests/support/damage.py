"""What a crash, a full disk or another program does to a stored session."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from nestling.session.event import Event
from nestling.session.jsontext import dumps, loads
from support.stores import Place


def log_file(place: Place, session_id: str = "s") -> Path:
    """The file of a session in a store of files."""
    for path in place.path.rglob("session.jsonl"):
        first = path.read_bytes().partition(b"\n")[0]
        if loads(first)["id"] == session_id:
            return path
    raise AssertionError(f"no file of session {session_id}")


@contextmanager
def database(place: Place) -> Iterator[sqlite3.Connection]:
    """The file of a store in a database; what is done to it is committed."""
    with closing(sqlite3.connect(place.path)) as connection:
        yield connection
        connection.commit()


def add_rows(place: Place, events: Iterable[Event], session_id: str = "s") -> None:
    """Append rows as a program would that knows no rules and no locks."""
    if place.scheme == "jsonl":
        with log_file(place, session_id).open("ab") as file:
            file.writelines(dumps(event.row()) + b"\n" for event in events)
        return
    with database(place) as connection:
        for event in events:
            connection.execute(_INSERT, (session_id, *_columns(event)))


def tear(place: Place, event: Event, session_id: str = "s") -> None:
    """Append a row that was cut short."""
    if place.scheme == "jsonl":
        row = dumps(event.row())
        with log_file(place, session_id).open("ab") as file:
            file.write(row[: len(row) // 2])
        return
    with database(place) as connection:
        seq, kind, time, data, *rest = _columns(event)
        values = (session_id, seq, kind, time, data[: len(data) // 2], *rest)
        connection.execute(_INSERT, values)


def spoil(place: Place, seq: int, session_id: str = "s") -> None:
    """Make the row of an event one that cannot be read; it is one of its own."""
    if place.scheme == "jsonl":
        path = log_file(place, session_id)
        lines = path.read_bytes().split(b"\n")
        (number,) = [
            number
            for number, line in enumerate(lines)
            if line.strip() and loads(line).get("seq") == seq
        ]
        lines[number] = lines[number].replace(b"{", b"[", 1)
        path.write_bytes(b"\n".join(lines))
        return
    with database(place) as connection:
        connection.execute(
            "UPDATE events SET data = '[[' WHERE session_id = ? AND seq = ?",
            (session_id, seq),
        )


def stored_size(place: Place, session_id: str = "s") -> int:
    """How many bytes a session's events take."""
    if place.scheme == "jsonl":
        return log_file(place, session_id).stat().st_size
    with database(place) as connection:
        found = connection.execute(
            "SELECT sum(length(type) + length(data) + 20) FROM events"
            " WHERE session_id = ?",
            (session_id,),
        )
        return int(found.fetchone()[0])


_INSERT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


def _columns(event: Event) -> Sequence[Any]:
    operation, sources = event.surface_op, event.source_event_seqs
    return (
        event.seq,
        event.type,
        event.time,
        dumps(event.data).decode(),
        None if sources is None else dumps(sources).decode(),
        dumps(operation).decode() if isinstance(operation, dict) else operation,
        1 if event.ignorable else None,
    )
