"""A stored session's file, strictly: its header line and the rows behind it.

A recording is read leniently (``nestling.session.reading``). What a store keeps is to
be continued, so here every line must be one that a store wrote; only the tail may be
torn (``nestling.session.torn_tail``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from nestling.session.errors import (
    CorruptError,
    UnreadableError,
    UnsupportedError,
    VersionError,
)
from nestling.session.event import Event
from nestling.session.header import Header, header_from_row
from nestling.session.jsontext import JsonObject
from nestling.session.reading import row_object
from nestling.session.store_backend import Tail
from nestling.session.torn_tail import Row, sound_events


class StoredLog(NamedTuple):
    """What a file holds: see ``nestling.session.store_backend.Held``."""

    header: Header
    events: list[Event]
    tail: Tail | None


def read_log(data: bytes, path: str, session_id: str) -> StoredLog:
    """Read a whole file.

    Args:
        data: all of it.
        path: what errors call it.
        session_id: whose log it must be.

    Raises:
        CorruptError, UnsupportedError: see ``Backend.read``; they name the file, the
            line and the byte at which it begins.
    """
    end = data.find(b"\n") + 1
    header = read_header_line(data[:end] if end else data, path)
    check_owner(header, path, session_id)
    try:
        events, tail = sound_events(_rows(data, end))
    except CorruptError as error:
        raise CorruptError(f"{path}: {error}") from None
    return StoredLog(header, events, tail)


def read_header_line(line: bytes, path: str) -> Header:
    """Read the first line of a file, with its newline.

    Raises:
        CorruptError, UnsupportedError: as ``read_log``.
    """
    place = f"{path}: line 1 (byte 0)"
    if not line:
        raise CorruptError(f"{place}: the file is empty, expected a session header")
    try:
        if not line.endswith(b"\n"):
            raise UnreadableError("the header ends without a newline")
        return header_from_row(row_object(line))
    except VersionError as error:
        raise UnsupportedError(f"{place}: {error}") from None
    except UnreadableError as error:
        raise CorruptError(f"{place}: {error}") from None


def check_owner(header: Header, path: str, session_id: str) -> None:
    """Check whose header stands in a file: a file system may ignore case.

    Raises:
        CorruptError: if it is another session's.
    """
    if header.id != session_id:
        raise CorruptError(
            f"{path}: line 1 (byte 0): found the header of session {header.id!r}, "
            f"expected that of {session_id!r}"
        )


def _rows(data: bytes, begin: int) -> Iterator[Row]:
    line = 2
    while begin < len(data):
        end = data.find(b"\n", begin)
        place = f"line {line} (byte {begin})"
        if end < 0:
            # Whether it can be parsed says nothing: "12" may have been meant to be
            # "123", and the next append would be glued to it.
            yield Row(begin, place, _cut_off)
            return
        yield Row(begin, place, partial(row_object, data[begin:end]))
        begin, line = end + 1, line + 1


def _cut_off() -> JsonObject:
    raise UnreadableError("ends without a newline")
