"""Reading a batch of uploaded events into the hub's copy of a session's log."""

from __future__ import annotations

from typing import Any, NamedTuple

from nestling.driver.streams import OpenCall
from nestling.session.errors import (
    AppendError,
    JsonDomainError,
    UnreadableError,
    WireError,
)
from nestling.session.event import Event
from nestling.session.jsontext import Json, JsonObject, canonical, is_int0, loads, shown
from nestling.session.log import SessionLog
from nestling.session.reading import events_from_row
from nestling.wire.messages import Events

_REFERENCE_KEYS = {"call", "from", "to", "crc"}


_BATCH_WRAPS = 2
"""A batch is a list of rows around events' data."""


class Gap(NamedTuple):
    """Events are missing before this batch; the log needs `expected` next."""

    expected: int


def take_events(
    log: SessionLog,
    call: OpenCall | None,
    batch: Events,
    body: bytes,
    end: int | None = None,
) -> list[Event] | Gap:
    """Append a batch to a log and return what was new.

    Events that the log already holds are compared, not appended again.

    Args:
        end: what comes once the log has so many events is let go.

    Raises:
        WireError: if the batch is malformed, breaks a rule of the log, or says
            something else than before about an event.
    """
    if batch.first > len(log):
        return Gap(len(log))
    seq = batch.first
    fresh: list[Event] = []
    for item in _items(body):
        if end is not None and seq >= end:
            return fresh
        count, events = _read(item, seq, log, call, end)
        fresh.extend(events)
        seq += count
    if seq != batch.first + batch.count:
        raise WireError(
            f"a batch of {batch.count} events holds {seq - batch.first} of them"
        )
    return fresh


def _items(body: bytes) -> list[Any]:
    try:
        items = loads(body, _BATCH_WRAPS)
    except JsonDomainError as error:
        raise WireError(f"a batch of events is not readable: {error}") from None
    if type(items) is not list:
        raise WireError("a batch of events is no list")
    return items


def _read(
    item: Json, seq: int, log: SessionLog, call: OpenCall | None, end: int | None
) -> tuple[int, list[Event]]:
    """Take one item of a batch; return how many events it is and the new ones."""
    if type(item) is not dict:
        raise WireError(f"event {seq} is no object")
    if item.keys() == _REFERENCE_KEYS:
        return _read_chunks(item, seq, log, call, end)
    return _read_event(item, seq, log)


def _read_event(item: JsonObject, seq: int, log: SessionLog) -> tuple[int, list[Event]]:
    try:
        events = events_from_row(item, seq)
        if seq >= len(log):
            return len(events), [log.append(event) for event in events]
    except (UnreadableError, AppendError) as error:
        raise WireError(f"event {seq}: {error}") from None
    for event in events:
        _compare(event, log)
    return len(events), []


def _compare(event: Event, log: SessionLog) -> None:
    if event.seq >= len(log):
        raise WireError(f"event {event.seq} straddles the end of the log")
    if canonical(event.content()) != canonical(log.events[event.seq].content()):
        raise WireError(f"event {event.seq} was sent again with other contents")


def _read_chunks(
    item: JsonObject,
    seq: int,
    log: SessionLog,
    call: OpenCall | None,
    end: int | None,
) -> tuple[int, list[Event]]:
    number, start, stop, crc = (item[key] for key in ("call", "from", "to", "crc"))
    if not all(map(is_int0, (number, start, stop, crc))) or start >= stop:
        raise WireError(f"event {seq} refers to chunks as {shown(item)}")
    if seq < len(log):
        _compare_chunks(log, seq, stop - start)
        return stop - start, []
    if call is None or call.request.number != number:
        raise WireError(f"event {seq} refers to call {number}, which is not the last")
    events = call.logged_events(start, stop, crc, seq)
    kept = events if end is None else events[: end - seq]
    for event in kept:
        log.append_trusted(event)
    return len(events), kept


def _compare_chunks(log: SessionLog, seq: int, count: int) -> None:
    """Check that a reference which was sent again stands for chunks, as it did."""
    if seq + count > len(log):
        raise WireError(f"event {seq} straddles the end of the log")
    for event in log.events[seq : seq + count]:
        if event.type != "assistant/chunk":
            raise WireError(f"event {event.seq} was sent again with other contents")
