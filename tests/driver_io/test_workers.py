"""Noticing how workers end: what they had still sent comes first."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nestling.driver import workers_io
from nestling.driver.exits import Exit
from nestling.driver.launcher_io import LaunchRequest
from nestling.driver.run_directory_io import RunDirectory
from nestling.driver.workers_io import Workers
from nestling.session.errors import LaunchError
from nestling.wire.admission import Admission

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])


class Ended:
    """A process that has ended before anybody looked.

    Attributes:
        looks: how often somebody asked whether it had succeeded.
    """

    pid = os.getpid()

    def __init__(self, code: int) -> None:
        self.code = code
        self.looks = 0
        self.is_reaped = False
        self.on_look: Callable[[int], None] = lambda _: None

    def fileno(self) -> None:
        """Tell that it can only be polled."""

    def has_ended(self) -> bool:
        """Tell that it has."""
        return True

    def has_succeeded(self) -> bool:
        """Tell whether it has, and count."""
        self.looks += 1
        self.on_look(self.looks)
        return self.code == 0

    def kill(self) -> None:
        """Leave it."""

    def reap(self) -> Exit:
        """Collect the exit."""
        self.is_reaped = True
        return Exit(self.code, None)

    def abandon(self) -> None:
        """Leave it."""


class Starting:
    """A launcher of one process."""

    name = "fake"

    def __init__(self, process: Ended) -> None:
        self.process = process

    def start(self, request: LaunchRequest) -> Ended:
        """Start it."""
        request.log.write_text("what it printed")
        return self.process


class Watch:
    """Workers of which one is started, and what they report."""

    def __init__(self, run: RunDirectory, process: Ended) -> None:
        self.exits: asyncio.Queue[tuple[str, Exit]] = asyncio.Queue()
        self.workers = Workers(
            Starting(process),
            run,
            Admission(),
            os.getpid(),
            lambda launch, exit: self.exits.put_nowait((launch, exit)),
        )

    async def exit(self) -> Exit:
        """Start the worker and return how it ended."""
        self.workers.start("w0")
        async with asyncio.timeout(20):
            launch, exit = await self.exits.get()
        assert launch == "w0"
        assert self.workers.routing_id("w0") is None
        return exit


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run directory; who is silent is taken at its word soon."""
    monkeypatch.setattr(workers_io, "QUIET", 0.001)
    made = RunDirectory()
    yield made
    made.remove()


async def test_the_goodbye_of_a_worker_that_ended_well_is_waited_for(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its goodbye is on the way; on a busy machine that takes a while."""
    monkeypatch.setattr(workers_io, "QUIET_BOUND", 20.0)
    process = Ended(0)
    watch = Watch(run, process)

    def look(count: int) -> None:
        if count == 10:
            watch.workers.heard_from("w0", was_last=True)

    process.on_look = look
    assert await watch.exit() == Exit(0, None)
    assert process.looks >= 10


async def test_a_goodbye_that_never_comes_is_waited_for_within_bounds(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_io, "QUIET_BOUND", 0.01)
    assert await Watch(run, Ended(0)).exit() == Exit(0, None, "what it printed")


async def test_a_worker_that_failed_is_waited_for_while_it_is_heard(
    run: RunDirectory,
) -> None:
    process = Ended(1)
    watch = Watch(run, process)

    def look(count: int) -> None:
        if count < 5:
            watch.workers.heard_from("w0", was_last=False)

    process.on_look = look
    assert await watch.exit() == Exit(1, None, "what it printed")


async def test_a_worker_is_reported_once(run: RunDirectory) -> None:
    """The run is closed while the end of a worker is being looked into."""
    process = Ended(0)
    watch = Watch(run, process)
    watch.workers.start("w0")
    await watch.workers.close()
    assert process.is_reaped
    watch.workers._ended("w0")
    watch.workers._drain("w0", 0, 0.0)
    assert watch.exits.empty()


async def test_what_is_gone_can_be_asked_about(run: RunDirectory) -> None:
    workers = Watch(run, Ended(0)).workers
    workers.kill("nobody")
    workers.heard_from("nobody", was_last=True)
    assert workers.routing_id("nobody") is None


async def test_a_place_for_a_worker_that_cannot_be_made(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Path, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", fail)
    workers = Watch(run, Ended(0)).workers
    for _ in range(2):  # the launch is forgotten, and can be tried again
        with pytest.raises(LaunchError, match="No space left on device"):
            workers.start("w0")


async def test_a_peer_that_is_not_the_process_is_the_end_of_it(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[bool] = []
    monkeypatch.setattr(Ended, "kill", lambda self: killed.append(True))
    monkeypatch.setattr(Admission, "set_pid", lambda *_: "pid 7, expected 8")
    await Watch(run, Ended(1)).exit()
    assert killed
