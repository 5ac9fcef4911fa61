"""The events a worker has appended and the hub has not yet acknowledged.

Numbered contiguously, sent in order, kept until they are durable so that a gap can
be filled again. A chunk that the hub served is named, not sent back: runs of them
become one reference ``{"call", "from", "to", "crc"}`` (see
``nestling.wire.chunk_sums``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from nestling.session.errors import WireError
from nestling.session.event import Event
from nestling.session.jsontext import dumps
from nestling.wire.messages import Events

BATCH_BYTES: Final = 256 * 1024
"""A batch is closed once it holds this much."""


class _Item:
    """One entry of the upload: an event, or a run of served chunks."""

    def __init__(
        self, first: int, event: bytes | None, call: int, start: int, crc: int = 0
    ) -> None:
        self.first = first
        self.count = 1
        self.event = event
        self.call = call
        self.start = start
        self.crc = crc
        self.is_sent = False
        self.is_sealed = False

    @property
    def end(self) -> int:
        return self.first + self.count

    def encode(self) -> bytes:
        if self.event is not None:
            return self.event
        return dumps(
            {
                "call": self.call,
                "from": self.start,
                "to": self._last_chunk,
                "crc": self.crc,
            }
        )

    @property
    def _last_chunk(self) -> int:
        return self.start + self.count

    def continues(self, seq: int, call: int, index: int) -> bool:
        # What was sent once may be known to the hub, which takes it whole or not.
        return (
            not self.is_sealed
            and self.event is None
            and self.call == call
            and self.end == seq
            and self._last_chunk == index
        )


class Upload:
    """What is still to be sent, or to be acknowledged, of one session."""

    def __init__(self, sid: int, first: int) -> None:
        """Start an upload whose first event has seq `first`."""
        self._sid = sid
        self._items: deque[_Item] = deque()
        self._end = first
        self.durable = first

    def add(self, event: Event) -> None:
        """Queue an event that the worker made."""
        text = dumps({**event.content(), "time": event.time})
        self._items.append(_Item(event.seq, text, 0, 0))
        self._end = event.seq + 1

    def add_chunk(self, event: Event, call: int, index: int, crc: int) -> None:
        """Queue the `index`-th chunk that the hub served for `call`."""
        last = self._items[-1] if self._items else None
        if last is not None and last.continues(event.seq, call, index):
            last.count += 1
            last.crc = crc
        else:
            self._items.append(_Item(event.seq, None, call, index, crc))
        self._end = event.seq + 1

    def take(self) -> Iterator[tuple[Events, bytes]]:
        """Yield the batches that were not sent yet, and mark them as sent."""
        batch: list[_Item] = []
        size = 0
        for item in self._unsent():
            item.is_sent = item.is_sealed = True
            batch.append(item)
            size += len(item.event or b"")
            if size >= BATCH_BYTES:
                yield self._message(batch)
                batch, size = [], 0
        if batch:
            yield self._message(batch)

    def _unsent(self) -> list[_Item]:
        """Return what was not sent yet, which always is the end of what is kept."""
        unsent = list(takewhile(lambda item: not item.is_sent, reversed(self._items)))
        return unsent[::-1]

    def _message(self, batch: list[_Item]) -> tuple[Events, bytes]:
        body = b"[" + b",".join(item.encode() for item in batch) + b"]"
        count = batch[-1].end - batch[0].first
        return Events(self._sid, batch[0].first, count), body

    def acknowledge(self, length: int) -> None:
        """Forget what is durable: every event before seq `length`.

        Raises:
            WireError: if `length` is beyond what was ever queued.
        """
        if length > self._end:
            raise WireError(f"an ack of {length} events, only {self._end} exist")
        self.durable = max(self.durable, length)
        while self._items and self._items[0].end <= length:
            self._items.popleft()

    def rewind(self, expected: int) -> None:
        """Send again from seq `expected` on.

        Raises:
            WireError: if those events were acknowledged before, or never existed.
        """
        if not self.durable <= expected <= self._end:
            raise WireError(
                f"a request for events from {expected}, "
                f"kept are {self.durable} to {self._end}"
            )
        for item in self._items:
            if item.end > expected:
                item.is_sent = False
