"""A backend that keeps sessions in memory, for as long as it lives.

For runs that nobody wants to keep, and for tests. What it takes it encodes at once, as
the others do: nobody can change it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from nestling.session.errors import (
    SessionExistsError,
    SessionNotFoundError,
    StoreError,
)
from nestling.session.event import Event
from nestling.session.header import Header, header_from_row
from nestling.session.jsontext import loads
from nestling.session.reading import row_object
from nestling.session.store_backend import Held, Listed, Write
from nestling.session.torn_tail import Row, sound_events
from nestling.session.writing import encode_header, encode_rows


class _Kept:
    """One session: its header's line, its rows, how often it was written."""

    def __init__(self, header: bytes, born: int) -> None:
        self.header = header
        self.rows = bytearray()
        self.length = 0
        self.born = born
        self.writes = 0

    @property
    def revision(self) -> str:
        return f"memory:{self.born}:{self.writes}"


class MemoryBackend:
    """Keeps sessions in memory (a ``Backend``)."""

    name = "memory:"
    shares_commits = True

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._born = 0

    def read(self, session_id: str) -> Held | None:
        """Return what is stored of a session."""
        kept = self._kept.get(session_id)
        if kept is None:
            return None
        header = header_from_row(loads(kept.header))
        events, tail = sound_events(_rows(bytes(kept.rows)))
        return Held(header, events, kept.revision, tail)

    def read_from(self, session_id: str, seq: int) -> list[Event] | None:
        """Return the events from `seq` on."""
        held = self.read(session_id)
        return None if held is None else held.events[seq:]

    def revision(self, session_id: str) -> str | None:
        """Return a session's revision."""
        kept = self._kept.get(session_id)
        return None if kept is None else kept.revision

    def write(self, writes: Sequence[Write]) -> list[StoreError | None]:
        """Keep events."""
        return [self._write(write) for write in writes]

    def _write(self, write: Write) -> StoreError | None:
        session_id = write.header.id
        kept = self._kept.get(session_id)
        named = f"{self.name} session {session_id!r}"
        if write.is_new and kept is not None:
            return SessionExistsError(f"{named} is stored already")
        if not write.is_new and kept is None:
            return SessionNotFoundError(f"{named} is not stored")
        length = 0 if kept is None else kept.length
        if write.events[0].seq != length:
            found = write.events[0].seq
            return StoreError(
                f"{named} has {length} events, it cannot continue at {found}"
            )
        rows = encode_rows(write.events)
        if kept is None:
            self._born += 1
            kept = _Kept(encode_header(write.header), self._born)
            self._kept[session_id] = kept
        self._grow(kept, rows, len(write.events))
        return None

    def repair(self, held: Held, closers: Sequence[Event]) -> None:
        """Append closers; there are no torn tails here."""
        kept = self._kept.get(held.header.id)
        if kept is None or kept.revision != held.revision:
            raise StoreError(f"{self.name} session {held.header.id!r} has changed")
        self._grow(kept, encode_rows(closers), len(closers))

    def _grow(self, kept: _Kept, rows: bytes, count: int) -> None:
        kept.rows += rows
        kept.length += count
        kept.writes += 1

    def sessions(self) -> list[Listed]:
        """Return every session."""
        return [
            Listed(session_id, header_from_row(loads(kept.header)), kept.revision)
            for session_id, kept in sorted(self._kept.items())
        ]

    def children(self, session_id: str) -> list[Header]:
        """Return the headers that name a session as their parent."""
        headers = [listed.header for listed in self.sessions()]
        return [h for h in headers if h is not None and h.parent_session == session_id]

    def delete(self, session_id: str) -> bool:
        """Forget a session."""
        return self._kept.pop(session_id, None) is not None

    def lease_folder(self) -> str | None:
        """Return None: nobody else can reach this store."""
        return None

    def close(self) -> None:
        """Do nothing: what is kept lives as long as this object."""


def _rows(data: bytes) -> Iterator[Row]:
    for number, line in enumerate(data.split(b"\n")[:-1]):
        yield Row(number, f"row {number}", partial(row_object, line))
