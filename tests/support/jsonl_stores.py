"""Small stores of files of lines, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from nestling.session.errors import StoreError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.store_backend import Backend, Held, Write
from support.session_logs import LogWriter

HEADER: Final = b'{"type":"session","version":0,"id":"s","createdAt":5}\n'
"""The line of ``header()``."""


def header(session_id: str = "s", **fields: Any) -> Header:
    return Header(session_id, 5, fields)


def turns(count: int, text: str = "hello") -> list[Event]:
    """Whole turns of three events each."""
    log = LogWriter()
    for _ in range(count):
        log.start_turn()
        log.user(text)
        log.end_turn()
    return log.events


def create(backend: Backend, events: list[Event], session_id: str = "s") -> None:
    assert backend.write([Write(header(session_id), events, True)]) == [None]


def append(backend: Backend, events: list[Event], session_id: str = "s") -> None:
    assert backend.write([Write(header(session_id), events, False)]) == [None]


def refused(
    backend: Backend, events: list[Event], is_new: bool = False, session_id: str = "s"
) -> StoreError:
    (outcome,) = backend.write([Write(header(session_id), events, is_new)])
    assert outcome is not None
    return outcome


def held(backend: Backend, session_id: str = "s") -> Held:
    found = backend.read(session_id)
    assert found is not None
    return found


def put(root: Path, data: bytes, name: str = "s") -> Path:
    """Make a session's file by hand."""
    path = root / name / "session.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
