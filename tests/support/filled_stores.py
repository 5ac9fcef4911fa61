"""Stores for tests: filled, damaged behind their backs, and compared byte for byte."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.recording_io import read_file
from nestling.session.store_io import open_store
from support.examples import FOLDER

ADDRESSES = ("jsonl:{}/store", "sqlite:{}/runs.db")


def fill(address: str, *sessions: tuple[Header, Sequence[Event]]) -> None:
    """Put sessions into a store, which nobody writes afterwards."""
    with open_store(address) as store:
        for header, events in sessions:
            store.create(header)
            store.append(header.id, events)


def example_sessions(name: str) -> list[tuple[Header, Sequence[Event]]]:
    """Return the recorded sessions of an example."""
    recordings = map(read_file, sorted((FOLDER / name).glob("session*.jsonl")))
    return [(each.header, each.events) for each in recordings]


def log_file(address: str, session_id: str) -> Path:
    """Return the file of a session in a store of files."""
    start = f'{{"type":"session","version":0,"id":"{session_id}"'.encode()
    (found,) = (
        path
        for path in Path(address.removeprefix("jsonl:")).rglob("*.jsonl")
        if path.read_bytes().startswith(start)
    )
    return found


def spoil(address: str, session_id: str, seq: int) -> None:
    """Make one event unreadable, which is alone in its row."""
    if address.startswith("jsonl:"):
        path = log_file(address, session_id)
        lines = path.read_bytes().split(b"\n")
        mark = f'"seq":{seq},'.encode()
        lines = [b"{" if mark in line else line for line in lines]
        path.write_bytes(b"\n".join(lines))
        return
    with closing(sqlite3.connect(address.removeprefix("sqlite:"))) as connection:
        connection.execute(
            "UPDATE events SET data = '{' WHERE session_id = ? AND seq = ?",
            (session_id, seq),
        )
        connection.commit()


def outdate(address: str, session_id: str) -> None:
    """Give a session's header a version that nobody knows."""
    if address.startswith("jsonl:"):
        path = log_file(address, session_id)
        path.write_bytes(path.read_bytes().replace(b'"version":0', b'"version":7', 1))
        return
    with closing(sqlite3.connect(address.removeprefix("sqlite:"))) as connection:
        connection.execute(
            "UPDATE sessions SET version = 7 WHERE id = ?", (session_id,)
        )
        connection.commit()


def files(folder: Path) -> dict[str, bytes]:
    """Return what every file below a folder holds."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in _below(folder)
        if path.is_file()
    }


def _below(folder: Path) -> Iterable[Path]:
    return sorted(folder.rglob("*"))
