"""Gates: a test holds a replayed stream at a chunk, looks, and lets it go on.

::

    gate = Gate("/t1s1b0", call=1, chunk=3)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_replay)             # replay(scenario, …, gates=[gate])
        await gate.reached()
        ...                                      # three chunks were served, no more
        gate.release()
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import anyio

from nestling.session.errors import NestlingError
from nestling.session.spawn_path import ROOT


class Gate:
    """Holds one call of a replay at one of its chunks, once."""

    def __init__(self, path: str = ROOT, call: int = 1, chunk: int = 0) -> None:
        """Say where it holds.

        Args:
            path: the spawn path of the session whose call is held.
            call: which of its recorded calls, from 1.
            chunk: after so many chunks; as many as the call has hold back its end.
        """
        self.place = (path, call, chunk)
        self._lock = threading.Lock()
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._open: Callable[[], None] | None = None
        self._is_reached = self._is_released = self._is_over = False
        self._waiting: list[anyio.Event] = []

    def __repr__(self) -> str:
        """Return how it was made."""
        path, call, chunk = self.place
        return f"Gate({path!r}, call={call}, chunk={chunk})"

    @property
    def is_reached(self) -> bool:
        """Whether the replay has come to it."""
        return self._is_reached

    async def reached(self) -> None:
        """Wait until the replay has come to it; in the event loop that replays.

        Raises:
            NestlingError: if the replay ends before.
        """
        while not self._is_reached:
            if self._is_over:
                raise NestlingError(f"the replay has ended and did not come to {self}")
            event = anyio.Event()
            self._waiting.append(event)
            await event.wait()

    def release(self) -> None:
        """Let the call go on; one that has not come here yet will not be held."""
        with self._lock:
            self._is_released, open_ = True, self._open
            self._open = None
        if open_ is not None:
            open_()

    # --- for the replay ----------------------------------------------------------

    def bind(self, post: Callable[[Callable[[], None]], None]) -> None:
        """Belong to a replay; `post` has a call run in its event loop.

        Raises:
            ValueError: if it has belonged to one already.
        """
        if self._post is not None:
            raise ValueError(f"{self} has held a replay already, expected a new one")
        self._post = post

    def reach(self, opened: Callable[[], None]) -> None:
        """Hold (see ``nestling.driver.feeder_io.Held``)."""
        with self._lock:
            self._is_reached = True
            if not self._is_released:
                self._open, opened = opened, _nothing
        opened()
        if self._post is not None:
            self._post(self._wake)

    def end(self) -> None:
        """Take note that the replay is over; in its event loop."""
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            event.set()


def _nothing() -> None:
    """Open nothing: it is held."""
