"""Reading a recording: the bytes of one file to a header and logical events.

As lenient as the format's own replay reader: unknown event types are kept, seq and
time of projected rows are filled in, CRLF and blank lines are tolerated. Whether a
recording can be replayed is judged afterwards; a live store is loaded elsewhere, and
strictly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nestling.session.errors import JsonDomainError, UnreadableError
from nestling.session.event import ROW_KEYS, Event
from nestling.session.header import Header, header_from_row
from nestling.session.jsontext import Json, JsonObject, is_int0, is_safe_int, loads
from nestling.session.packing import is_packed, unpack

_ROW_WRAPS = 1
"""A row is one level around an event's data."""


class Recording(NamedTuple):
    """One recorded session.

    Attributes:
        name: what errors call it, usually the file's name.
        header: line 1.
        events: the logical events, packed rows unpacked.
        lines: for each event the line it came from, from 1.
    """

    name: str
    header: Header
    events: Sequence[Event]
    lines: Sequence[int]

    def place(self, seq: int) -> str:
        """Name an event for an error message."""
        return f"{self.name} line {self.lines[seq]} (event {seq})"


def read_recording(data: bytes, name: str) -> Recording:
    """Read a recording.

    Raises:
        UnreadableError: naming the file, the line, what was found and expected.
    """
    header = read_header(data, name)
    events: list[Event] = []
    lines: list[int] = []
    for line, event in _numbered_events(data, name):
        events.append(event)
        lines.append(line)
    return Recording(name, header, events, lines)


def read_header(data: bytes, name: str) -> Header:
    """Read the header, the first line that is not blank (see ``read_recording``)."""
    for line, text in _numbered_lines(data):
        try:
            return header_from_row(row_object(text))
        except UnreadableError as error:
            raise UnreadableError(f"{name} line {line}: {error}") from None
    raise UnreadableError(f"{name} is empty, expected a session header on line 1")


def read_events(data: bytes, name: str) -> list[Event]:
    """Read the events, whatever the first line holds (see ``read_recording``)."""
    return [event for _, event in _numbered_events(data, name)]


def _numbered_events(data: bytes, name: str) -> Iterator[tuple[int, Event]]:
    lines = _numbered_lines(data)
    next(lines, None)
    next_seq = 0
    for line, text in lines:
        try:
            for event in events_from_row(row_object(text), next_seq):
                yield line, event
                next_seq += 1
        except UnreadableError as error:
            raise UnreadableError(f"{name} line {line}: {error}") from None


def _numbered_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    for line, text in enumerate(data.split(b"\n"), start=1):
        if text.strip():
            yield line, text


def row_object(text: bytes) -> JsonObject:
    """Parse one line of a session's file.

    Raises:
        UnreadableError: if it is no JSON object.
    """
    try:
        value = loads(text, _ROW_WRAPS)
    except JsonDomainError as error:
        raise UnreadableError(str(error)) from None
    if type(value) is not dict:
        raise UnreadableError(f"expected a JSON object, found {_kind(value)}")
    return value


def _kind(value: Json) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def events_from_row(row: JsonObject, next_seq: int) -> list[Event]:
    """Return the logical events of one body row.

    Args:
        row: the parsed line.
        next_seq: the seq that the row's first event must have.

    Raises:
        UnreadableError: naming the field; the caller adds the place.
    """
    if type(row.get("type")) is not str:
        raise UnreadableError(f"an event must have a type, found {row.get('type')!r}")
    events = unpack(row, next_seq) if is_packed(row) else [_event(row, next_seq)]
    if events[0].seq != next_seq:
        raise UnreadableError(f"found seq {events[0].seq}, expected {next_seq}")
    return events


def _event(row: JsonObject, next_seq: int) -> Event:
    if not row.keys() <= ROW_KEYS:
        extra = min(row.keys() - ROW_KEYS)
        raise UnreadableError(f"unexpected key {extra!r} in {row['type']}")
    if "data" not in row:
        raise UnreadableError(f"{row['type']} has no data")
    seq, time = row.get("seq", next_seq), row.get("time", 0)
    if not is_int0(seq):
        raise UnreadableError(f"seq must be an integer >= 0, found {seq!r}")
    if not is_safe_int(time):
        raise UnreadableError(f"time must be a safe integer, found {time!r}")
    problem = _surface_problem(row)
    if problem is not None:
        raise UnreadableError(problem)
    operation, sources = row.get("surfaceOp"), row.get("sourceEventSeqs")
    ignorable = row.get("ignorable", False)
    return Event(seq, row["type"], time, row["data"], operation, sources, ignorable)


def _surface_problem(row: JsonObject) -> str | None:
    if "surfaceOp" in row and type(row["surfaceOp"]) not in (str, dict):
        return f"surfaceOp must be a string or an object, found {row['surfaceOp']!r}"
    if "sourceEventSeqs" in row:
        sources = row["sourceEventSeqs"]
        if type(sources) is not list or not all(is_int0(seq) for seq in sources):
            return "sourceEventSeqs must be a list of integers >= 0"
    if row.get("ignorable", True) is not True:
        return f"ignorable may only be true, found {row['ignorable']!r}"
    return None
