"""Places where stores can be: one for each backend, opened as often as a test likes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from nestling.session.event import Event
from nestling.session.header import Header, header_from_row
from nestling.session.jsontext import dumps
from nestling.session.memory_backend import MemoryBackend
from nestling.session.store_io import SessionStore, open_store

DURABLE: Final = ("jsonl", "sqlite")
"""The backends that outlive a process, and that two processes can share."""

BACKENDS: Final = ("memory", *DURABLE)


class Place:
    """Where a store is.

    Attributes:
        scheme: ``memory``, ``jsonl`` or ``sqlite``.
        path: its folder or file.
    """

    def __init__(self, scheme: str, folder: Path) -> None:
        self.scheme = scheme
        self.path = folder / ("runs.db" if scheme == "sqlite" else "runs")
        self._memory = MemoryBackend()

    @property
    def address(self) -> str:
        """What ``open_store`` takes."""
        return "memory:" if self.scheme == "memory" else f"{self.scheme}:{self.path}"

    def open(self) -> SessionStore:
        """Open the store, or another object that looks at the same sessions."""
        if self.scheme == "memory":
            return SessionStore(self._memory)
        return open_store(self.address)

    def files(self) -> dict[str, bytes]:
        """Every file of the store with its bytes, leases left out; none in memory."""
        if self.scheme == "memory":
            return {}
        found = self.path.parent.rglob("*")
        return {
            str(path.relative_to(self.path.parent)): path.read_bytes()
            for path in found
            if path.is_file() and not _is_lease(path)
        }


def _is_lease(path: Path) -> bool:
    # SQLite's shared memory is rebuilt by whoever reads; it holds nothing.
    is_shared_memory = path.name.endswith("-shm")
    return is_shared_memory or any("lease" in part for part in path.parts)


def header(session_id: str = "s", created_at: int = 1000, **fields: Any) -> Header:
    """A session's header."""
    row = {"type": "session", "version": 0, "id": session_id, "createdAt": created_at}
    return header_from_row({**row, **fields})


def exact(events: Iterable[Event]) -> list[bytes]:
    """What events say, to the byte: 1 is not 1.0, and keys keep their order."""
    return [dumps(event.row()) for event in events]


def written(place: Place, events: Iterable[Event], head: Header | None = None) -> str:
    """Store a session in one batch, let it go, and return its id."""
    head = header() if head is None else head
    with place.open() as store:
        store.create(head)
        store.append(head.id, list(events))
    return head.id
