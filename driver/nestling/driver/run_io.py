"""Running one tree of sessions from any anyio event loop.

The hub lives in a thread of its own, so that a blocked caller does not stall workers
(one that burns the CPU still shares the interpreter's lock with it).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

import anyio
import anyio.to_thread

from nestling.driver.descriptors_io import DESCRIPTORS, require_descriptors
from nestling.driver.director import Director
from nestling.driver.hub_io import Bounds, HubLoop, RunEnd
from nestling.driver.instructions import Notice
from nestling.driver.launcher_io import Launcher
from nestling.driver.run_directory_io import RunDirectory
from nestling.session.errors import LaunchError


async def run_tree(
    director: Director,
    launcher: Launcher,
    bounds: Bounds | None = None,
    watch: Callable[[Notice], None] = lambda notice: None,
) -> RunEnd:
    """Run a tree to its end; cancelling it ends every process of the run first.

    Args:
        director: decides; called in the hub's thread only.
        launcher: how workers are started.
        bounds: when a run that does not end by itself is over.
        watch: called in the hub's thread with what a person may want to see.

    Raises:
        LaunchError: if there is no room for the run: its directory, its thread, its
            descriptors.
    """
    thread = _HubThread(director, launcher, bounds or Bounds(), watch)
    try:
        thread.start()
    except RuntimeError as error:
        raise LaunchError(f"no room for the hub's thread: {error}") from None
    try:
        await anyio.to_thread.run_sync(thread.join, abandon_on_cancel=True)
    finally:
        with anyio.CancelScope(shield=True):
            thread.abort()
            await anyio.to_thread.run_sync(thread.join)
    return thread.result()


class _HubThread(threading.Thread):
    """The thread of one run."""

    def __init__(
        self,
        director: Director,
        launcher: Launcher,
        bounds: Bounds,
        watch: Callable[[Notice], None],
    ) -> None:
        super().__init__(name="nestling-hub")
        self._director = director
        self._launcher = launcher
        self._bounds = bounds
        self._watch = watch
        self._lock = threading.Lock()
        self._hub: HubLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_aborted = False
        self._end: RunEnd | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run the hub's loop to the end of the tree."""
        try:
            require_descriptors(DESCRIPTORS)
            run_directory = RunDirectory()
            try:
                self._end = asyncio.run(self._main(run_directory))
            finally:
                run_directory.remove()
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            self._error = error

    async def _main(self, run_directory: RunDirectory) -> RunEnd:
        hub = HubLoop(
            self._director,
            run_directory,
            self._launcher,
            os.getpid(),
            self._bounds,
            self._watch,
        )
        with self._lock:
            self._hub, self._loop = hub, asyncio.get_running_loop()
            if self._is_aborted:
                self._loop.call_soon(hub.abort, "aborted")
        try:
            return await hub.run()
        finally:
            with self._lock:
                self._hub = self._loop = None

    def abort(self) -> None:
        """End the run now, if it has not ended."""
        with self._lock:
            self._is_aborted = True
            if self._hub is not None and self._loop is not None:
                self._loop.call_soon_threadsafe(self._hub.abort, "aborted")

    def result(self) -> RunEnd:
        """Return how the run ended, or raise what broke it."""
        if self._error is not None:
            raise self._error
        if self._end is None:
            raise AssertionError("the hub's thread has not run")
        return self._end
