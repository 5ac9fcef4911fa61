"""Write-behind: when what waits to be written is written.

Pure; whoever does the writing brings the time. The first item of an idle queue opens a
fixed window, and what comes within it is written together. ``flush`` closes the window
now: it is the barrier before a call or a tool. What could not be written goes back to
the front and waits for the next item or the next flush; it is not tried again on its
own. (Source: the session format's rules of durability.)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

WINDOW: Final = 0.2
"""Seconds from a queue's first item until it is written."""


class WriteBehind(Generic[Key, Item]):
    """One queue for each key."""

    def __init__(self, window: float = WINDOW, *, is_shared: bool = False) -> None:
        """Make the queues.

        Args:
            window: seconds; at least 0.
            is_shared: writing many queues costs about what writing one costs, so what
                is due takes all the others with it.
        """
        self._window = window
        self._is_shared = is_shared
        self._items: dict[Key, list[Item]] = {}
        self._due: dict[Key, float] = {}

    def add(self, key: Key, item: Item, now: float) -> None:
        """Queue an item that came at `now`, in seconds of any clock."""
        self._items.setdefault(key, []).append(item)
        self._due.setdefault(key, now + self._window)

    def flush(self, key: Key, now: float) -> None:
        """Let what is queued under a key be due now."""
        if key in self._items:
            self._due[key] = min(now, self._due.get(key, now))

    def flush_all(self, now: float) -> None:
        """Let everything that is queued be due now."""
        for key in self._items:
            self.flush(key, now)

    def drop(self, key: Key) -> None:
        """Forget what is queued under a key."""
        self._items.pop(key, None)
        self._due.pop(key, None)

    def next_due(self) -> float | None:
        """Return when something is to be written; None if nothing waits for its time."""
        return min(self._due.values(), default=None)

    def take(self, now: float) -> dict[Key, list[Item]]:
        """Return what is to be written now; it is not queued any more."""
        due = [key for key, when in self._due.items() if when <= now]
        if due and self._is_shared:
            due = list(self._due)
        for key in due:
            del self._due[key]
        return {key: self._items.pop(key) for key in due}

    def put_back(self, key: Key, items: Sequence[Item]) -> None:
        """Queue what could not be written before whatever came meanwhile."""
        self._items[key] = [*items, *self._items.get(key, ())]
