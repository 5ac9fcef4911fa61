"""The log of one live session: append-only, each event checked before it enters."""

from __future__ import annotations

from collections.abc import Iterable

from nestling.session.boundary import check_seed
from nestling.session.digest import PrefixDigest
from nestling.session.errors import AppendError, JsonDomainError, SeedError
from nestling.session.event import Event, event_from_content
from nestling.session.jsontext import JsonObject, check, is_safe_int
from nestling.session.packing import is_packed_type
from nestling.session.shape import check_shape
from nestling.session.surface import Surface
from nestling.session.turns import TurnTracker

END_SEED: JsonObject = {"type": "session/end-seed", "data": {}}


class SessionLog:
    """The events of one session and what follows from them.

    Attributes:
        events: the events, from seq 0; only ``append`` may add to it.
        surface: what the model sees.
        turns: which turn and step are open.
    """

    def __init__(self, seed: Iterable[Event] = ()) -> None:
        """Start a log with `seed`, whose events were checked when they were written.

        Raises:
            SeedError: if the seed leaves a turn open, has a gap, or replaces what is
                not on its surface.
        """
        self.events = list(seed)
        self.surface = Surface()
        self.turns = TurnTracker()
        self._digest = PrefixDigest(self.events)
        check_seed(self.events)
        for event in self.events:
            try:
                self._fold(event)
            except AppendError as error:
                raise SeedError(f"seed event {event.seq}: {error}") from None

    def __len__(self) -> int:
        return len(self.events)

    def append(self, event: Event) -> Event:
        """Append an event whose seq is the log's length, and return it.

        Raises:
            AppendError: if the seq, the shape or the surface fields do not fit, or the
                data is no JSON value.
        """
        if event.seq != len(self.events):
            raise AppendError(
                f"event has seq {event.seq}, the log continues at {len(self.events)}"
            )
        try:
            check(event.data)
        except JsonDomainError as error:
            raise AppendError(f"{event.type} data {error}") from None
        return self.append_trusted(event)

    def append_trusted(self, event: Event) -> Event:
        """Append an event whose seq and JSON the caller vouches for."""
        check_envelope(event)
        check_shape(event)
        self.surface.check(event)
        self.events.append(event)
        self._fold(event)
        return event

    def add(self, content: JsonObject, time: int) -> Event:
        """Append what `content` says (see ``Event.content``) at the end of the log."""
        return self.append(event_from_content(content, len(self.events), time))

    def prefix_digest(self, length: int) -> str:
        """Return the seed digest of the first `length` events."""
        return self._digest.at(length)

    def _fold(self, event: Event) -> None:
        self.surface.append(event)
        self.turns.append(event)


def check_envelope(event: Event) -> None:
    """Refuse what no reader of the log's file would take back."""
    if not isinstance(event.type, str) or is_packed_type(event.type):
        raise AppendError(f"an event cannot have the type {event.type!r}")
    if not is_safe_int(event.time):
        raise AppendError(
            f"{event.type} time must be a safe integer, found {event.time!r}"
        )
