"""What a live store takes and gives back: the one check for both directions.

Whatever was accepted can be loaded again, because it is loaded through the same rules:
known types (or ignorable ones), the shapes of what the agent loop makes, surface fields
that fit. Turns are not judged here: anything may be persisted, and repair closes what a
crash left open (``nestling.session.repair``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from nestling.session.boundary import check_boundary
from nestling.session.digest import seed_digest
from nestling.session.errors import (
    AppendError,
    JsonDomainError,
    SeedError,
    UnreadableError,
    UnsupportedError,
)
from nestling.session.event import Event
from nestling.session.header import Header, header_from_row
from nestling.session.jsontext import check, copied, is_int0, shown
from nestling.session.known_types import KNOWN_TYPES
from nestling.session.log import check_envelope
from nestling.session.shape import check_shape
from nestling.session.surface import Surface

LONGEST_ID: Final = 512
"""A session's id has at most so many characters."""

_RETIRED: Final = frozenset({"request/header-delta", "mode/set"})


class StrictLog:
    """Checks the events of one session, in order.

    Attributes:
        length: how many it has taken.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        """Take `events`, which are checked like all others.

        Raises:
            AppendError, UnsupportedError: as ``take``.
        """
        self.length = 0
        self._surface = Surface()
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """Check the next event, whose data is JSON.

        Raises:
            UnsupportedError: if its type is not known here and not to be skipped.
            AppendError: if its seq, shape or surface fields do not fit.
        """
        if event.seq != self.length:
            raise AppendError(
                f"event has seq {event.seq}, the log continues at {self.length}"
            )
        check_envelope(event)
        _check_known(event)
        check_shape(event)
        self._surface.check(event)
        self._surface.append(event)
        self.length += 1


def _check_known(event: Event) -> None:
    if event.type in KNOWN_TYPES:
        if event.type == "request/header" and _reason(event) == "fallback":
            raise UnsupportedError(
                f"event {event.seq}: the request header's reason fallback is retired"
            )
        return
    if event.type in _RETIRED:
        raise UnsupportedError(f"event {event.seq}: the type {event.type} is retired")
    if not event.ignorable:
        raise UnsupportedError(
            f"event {event.seq}: the type {shown(event.type)} is not known here, "
            "expected a known type or one that is ignorable"
        )


def _reason(event: Event) -> object:
    return event.data.get("reason") if type(event.data) is dict else None


def check_json(events: Iterable[Event]) -> None:
    """Check that all of what events say is lossless JSON.

    Raises:
        AppendError: naming the event, the place in it, what was found there.
    """
    for event in events:
        content = {**event.surface_fields(), "data": event.data}
        try:
            check(content, wraps=1)
        except JsonDomainError as error:
            raise AppendError(
                f"event {event.seq}: {shown_type(event)} is no lossless JSON: {error}"
            ) from None


def shown_type(event: Event) -> str:
    """Return an event's type for an error, also if it is no text."""
    return event.type if isinstance(event.type, str) else repr(event.type)


def checked_header(header: Header) -> Header:
    """Return a header that a store can hold, as it will be read back.

    Raises:
        AppendError: naming the field, what was found and expected.
    """
    session_id = header.id
    if type(session_id) is not str or not 0 < len(session_id) <= LONGEST_ID:
        raise AppendError(
            f"a session's id has 1 to {LONGEST_ID} characters, found {session_id!r:.80}"
        )
    if not is_int0(header.created_at):
        raise AppendError(
            "createdAt must be an integer >= 0, milliseconds, "
            f"found {header.created_at!r}"
        )
    try:
        row = header.row()
        check(row)
        _check_whole(row)
        return header_from_row(copied(row))  # nobody else can change it
    except (JsonDomainError, UnreadableError) as error:
        raise AppendError(f"session {session_id!r}: {error}") from None


def _check_whole(value: object) -> None:
    """Refuse cut characters: what names a session must be text everywhere."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UnreadableError(
                f"header: {value!r:.80} holds half a character, expected whole text"
            ) from None
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_whole(key)
            _check_whole(item)
    elif isinstance(value, list):
        for item in value:
            _check_whole(item)


def check_inheritance(header: Header, events: Sequence[Event]) -> None:
    """Check that a session's boundary lies in its log, and what stands before it.

    Raises:
        SeedError: if it does not, or what was inherited is not what was recorded.
    """
    length = header.seed_length
    if length == 0:
        return
    check_boundary(events, length)
    if header.seed_digest is not None:
        found = seed_digest(events[:length])
        if found != header.seed_digest:
            raise SeedError(
                f"its first {length} events have the digest {found[:12]}…, "
                f"its header says {header.seed_digest[:12]}…"
            )
