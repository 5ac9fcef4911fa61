"""A clock that a test owns: who sleeps on it wakes when the test says so.

::

    clock = OwnedClock()
    model = ScriptedModel([Answer("Late.", delay=3600)], sleep=clock.sleep)
    ...
    await clock.sleepers(1)  # somebody sleeps
    clock.advance(3600)

It can be given where Nestling takes a ``sleep``. What Nestling bounds by itself (stalls,
timeouts, limits of a driver) goes by the system's clock, in another thread.
"""

from __future__ import annotations

import math

import anyio
import anyio.lowlevel


class OwnedClock:
    """Time that stands still until it is advanced. For one event loop, any backend."""

    def __init__(self) -> None:
        """Begin at 0."""
        self._now = 0.0
        self._sleeping: dict[anyio.Event, float] = {}
        self._changed = anyio.Event()

    @property
    def now(self) -> float:
        """The time, in seconds since the beginning."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Sleep until the clock was advanced by so many seconds."""
        if seconds <= 0:
            await anyio.lowlevel.checkpoint()
            return
        wake = anyio.Event()
        self._sleeping[wake] = self._now + seconds
        self._tell()
        try:
            await wake.wait()
        finally:
            self._sleeping.pop(wake, None)
            self._tell()

    async def sleepers(self, count: int = 1) -> None:
        """Wait until at least so many sleep."""
        while len(self._sleeping) < count:
            await self._changed.wait()

    def advance(self, seconds: float) -> None:
        """Let time pass, and wake those whose time has come.

        Args:
            seconds: how long; not negative.

        Raises:
            ValueError: if it is negative, or no number.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"a clock goes forward by seconds, found {seconds!r}")
        self._now += seconds
        for wake in [each for each, due in self._sleeping.items() if due <= self._now]:
            del self._sleeping[wake]
            wake.set()

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
