"""The digest of inherited events.

``seedDigest`` is sha256, in hex, over one canonical JSON line an event: its ``type``,
``data``, ``surfaceOp``, ``sourceEventSeqs`` and ``ignorable``, absent keys left out,
without seq and time (see ``nestling.session.jsontext.canonical``). It says what a
child inherited, wherever and whenever that was written down.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from nestling.session.errors import SeedError
from nestling.session.event import Event
from nestling.session.jsontext import canonical


def seed_digest(events: Iterable[Event]) -> str:
    """Return the digest of `events`, 64 hex digits."""
    digest = hashlib.sha256()
    for event in events:
        digest.update(_line(event))
    return digest.hexdigest()


def _line(event: Event) -> bytes:
    return canonical(event.content()) + b"\n"


class PrefixDigest:
    """The digests of a growing log's prefixes, hashed once.

    Nothing is hashed until a prefix is asked for; each event is hashed at most once
    as long as the prefixes asked for do not get shorter.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._hashed = 0
        self._running = hashlib.sha256()

    def at(self, length: int) -> str:
        """Return the digest of the first `length` events.

        Raises:
            SeedError: if there are fewer.
        """
        if not 0 <= length <= len(self._events):
            raise SeedError(
                f"a prefix of {length} events is beyond the log "
                f"of {len(self._events)} events"
            )
        if length < self._hashed:
            self._hashed, self._running = 0, hashlib.sha256()
        for event in self._events[self._hashed : length]:
            self._running.update(_line(event))
        self._hashed = length
        return self._running.copy().hexdigest()
