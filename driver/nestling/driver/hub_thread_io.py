"""The thread in which a hub lives, with an event loop of its own.

A blocked caller does not stall workers so (one that burns the CPU still shares the
interpreter's lock with it).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

from nestling.driver.descriptors_io import DESCRIPTORS, require_descriptors
from nestling.driver.director import Director
from nestling.driver.feeder_io import Feeder
from nestling.driver.hub_io import Bounds, HubLoop, RunEnd
from nestling.driver.instructions import HubEvent, Notice
from nestling.driver.launcher_io import Launcher
from nestling.driver.providers_io import Providers
from nestling.driver.run_directory_io import RunDirectory
from nestling.driver.writer_io import StoreWriter


class HubThread(threading.Thread):
    """The thread of one run.

    ``abort`` and ``tell`` may be called from any thread, before the start and after the
    end, too.
    """

    def __init__(
        self,
        director: Director,
        launcher: Launcher,
        writer: StoreWriter,
        bounds: Bounds,
        watch: Callable[[Notice], None],
        providers: Providers | None = None,
        on_end: Callable[[], None] | None = None,
        on_failure: Callable[[], None] | None = None,
        feeder: Feeder | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            director: decides; called in this thread only.
            launcher: how workers are started.
            writer: makes sessions durable.
            bounds: when a run is over though it has not ended.
            watch: called with what a person may want to see.
            providers: answer calls, if anybody is to be asked.
            on_end: called in this thread when nothing of the run is left.
            on_failure: called before, if the run never came so far as to write.
            feeder: says when paced answers may be served, if there are any.
        """
        # Whoever leaves a driver waits for it. A program that ends without that, after a
        # third Ctrl-C for instance, is not held up by it; its workers end with it.
        super().__init__(name="nestling-hub", daemon=True)
        self._director = director
        self._launcher = launcher
        self._writer = writer
        self._bounds = bounds
        self._watch = watch
        self._providers = providers
        self._feeder = feeder
        self._on_end = on_end
        self._on_failure = on_failure
        self._has_begun = False
        self._lock = threading.Lock()
        self._hub: HubLoop | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_aborted = False
        self._told: list[HubEvent] = []
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
        if not self._has_begun and self._on_failure is not None:
            self._on_failure()
        if self._on_end is not None:
            self._on_end()

    async def _main(self, run_directory: RunDirectory) -> RunEnd:
        hub = HubLoop(
            self._director,
            run_directory,
            self._launcher,
            self._writer,
            os.getpid(),
            self._bounds,
            self._watch,
            self._providers,
            self._feeder,
        )
        self._has_begun = True
        with self._lock:
            self._hub, self._loop = hub, asyncio.get_running_loop()
            for event in self._told:
                hub.tell_soon(event)
            if self._is_aborted:
                self._loop.call_soon(hub.abort, "aborted")
        try:
            return await hub.run()
        finally:
            with self._lock:
                self._hub = self._loop = None

    def tell(self, event: HubEvent) -> None:
        """Let the hub know of something; too late for a run that is over."""
        with self._lock:
            if self._hub is not None:
                self._hub.tell_soon(event)
            elif self._end is None and self._error is None:
                self._told.append(event)

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
            raise AssertionError("the hub's thread has not ended")
        return self._end


def abort_all(seconds: float) -> None:
    """End every run of this process now, and wait until nothing is left of them.

    Args:
        seconds: so long; what the kernel does not let go of is left.
    """
    deadline = time.monotonic() + seconds
    hubs = [each for each in threading.enumerate() if isinstance(each, HubThread)]
    for hub in hubs:
        hub.abort()
    for hub in hubs:
        hub.join(max(0.0, deadline - time.monotonic()))
