"""Writing a session's file: the header line and the rows of each append batch."""

from __future__ import annotations

from collections.abc import Iterable

from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject, dumps
from nestling.session.packing import pack

_ENVELOPE = ("seq", "time", "seq0", "time0")


def encode_header(header: Header) -> bytes:
    """Write line 1, with its newline."""
    return dumps(header.row()) + b"\n"


def encode_rows(events: Iterable[Event]) -> bytes:
    """Write one append batch, runs of deltas packed."""
    return b"".join(dumps(row) + b"\n" for row in pack(events))


def encode_scalar_rows(events: Iterable[Event]) -> bytes:
    """Write one append batch, every event on a line of its own."""
    return b"".join(dumps(event.row()) + b"\n" for event in events)


def encode_projected(events: Iterable[Event]) -> bytes:
    """Write a batch without seqs and times, which a committed recording leaves out."""
    return b"".join(dumps(_projected(row)) + b"\n" for row in pack(events))


def _projected(row: JsonObject) -> JsonObject:
    return {key: value for key, value in row.items() if key not in _ENVELOPE}
