"""Running one tree of sessions to its end, from any anyio event loop."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.to_thread

from nestling.driver.director import Director
from nestling.driver.feeder_io import Feeder
from nestling.driver.hub_io import Bounds, RunEnd
from nestling.driver.hub_thread_io import HubThread
from nestling.driver.instructions import Notice
from nestling.driver.launcher_io import Launcher
from nestling.driver.writer_io import StoreWriter
from nestling.session.errors import LaunchError
from nestling.session.store_io import open_store


async def run_tree(
    director: Director,
    launcher: Launcher,
    bounds: Bounds | None = None,
    watch: Callable[[Notice], None] = lambda notice: None,
    feeder: Feeder | None = None,
) -> RunEnd:
    """Run a tree to its end; cancelling it ends every process of the run first.

    Its sessions are kept in memory, and come back as the run's logs.

    Args:
        director: decides; called in the hub's thread only.
        launcher: how workers are started.
        bounds: when a run that does not end by itself is over.
        watch: called in the hub's thread with what a person may want to see.
        feeder: says when paced answers may be served, if the director gives any.

    Raises:
        LaunchError: if there is no room for the run: its directory, its thread, its
            descriptors, its writer.
    """
    with open_store("memory:") as store, StoreWriter(store) as writer:
        thread = HubThread(
            director, launcher, writer, bounds or Bounds(), watch, feeder=feeder
        )
        start(thread)
        try:
            await anyio.to_thread.run_sync(thread.join, abandon_on_cancel=True)
        finally:
            await end(thread)
        return thread.result()


def start(thread: HubThread) -> None:
    """Start a hub's thread.

    Raises:
        LaunchError: if there is no room for it.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise LaunchError(f"no room for the hub's thread: {error}") from None


async def end(thread: HubThread) -> None:
    """End a run that has not ended, and wait until nothing is left of it."""
    with anyio.CancelScope(shield=True):
        thread.abort()
        await anyio.to_thread.run_sync(thread.join)
