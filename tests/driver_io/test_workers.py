"""Noticing how workers end: what they had still sent comes first."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nestling.driver import workers_io
from nestling.driver.exits import Birth, Exit
from nestling.driver.launcher_io import (
    LaunchRequest,
    OnFailed,
    OnStarted,
    Starter,
)
from nestling.driver.run_directory_io import RunDirectory
from nestling.driver.workers_io import Workers
from nestling.session.errors import LaunchError
from nestling.wire.admission import Admission

pytestmark = pytest.mark.parametrize("anyio_backend", ["asyncio"])


class Ended:
    """A process that has ended before anybody looked.

    Attributes:
        looks: how often somebody asked whether it had failed.
    """

    pid = os.getpid()
    launcher = "fake"
    reason = "a test wants it"

    def __init__(self, code: int) -> None:
        self.code = code
        self.looks = 0
        self.is_reaped = False
        self.on_look: Callable[[int], None] = lambda _: None

    def watch(self, on_end: Callable[[], None]) -> None:
        """Tell that it has ended."""
        asyncio.get_running_loop().call_soon(on_end)

    def has_ended(self) -> bool:
        """Tell that it has."""
        return True

    def has_failed(self) -> bool:
        """Tell whether it has, and count."""
        self.looks += 1
        self.on_look(self.looks)
        return self.code != 0

    def hang_up(self) -> None:
        """Leave it."""

    def terminate(self) -> None:
        """Leave it."""

    def kill(self) -> None:
        """Leave it."""

    def dump(self) -> None:
        """Leave it."""

    def sweep(self) -> bool:
        """Find nothing."""
        return True

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
        self.requests: list[LaunchRequest] = []
        self.waits = self.gives_up = False
        self.is_closed = False
        self.on_started: OnStarted = lambda _: None
        self.on_failed: OnFailed = lambda _: None

    def connect(self) -> Starter:
        """Begin to work."""
        return self

    def start(
        self, request: LaunchRequest, on_started: OnStarted, on_failed: OnFailed
    ) -> None:
        """Start it, now or when it is told to."""
        request.log.write_text("what it printed")
        self.requests.append(request)
        self.on_started, self.on_failed = on_started, on_failed
        if not self.waits:
            on_started(self.process)

    def give_up(self, launch: str) -> bool:
        """Give it up, or not."""
        return self.gives_up

    def close(self) -> None:
        """Take note."""
        self.is_closed = True


class Watch:
    """Workers of which one is started, and what they report."""

    def __init__(self, run: RunDirectory, process: Ended) -> None:
        self.exits: asyncio.Queue[tuple[str, Exit]] = asyncio.Queue()
        self.failures: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.pids: list[tuple[str, int]] = []
        self.launcher = Starting(process)
        self.workers = Workers(
            self.launcher,
            run,
            Admission(),
            os.getpid(),
            lambda launch, pid: self.pids.append((launch, pid)),
            lambda launch, problem: self.failures.put_nowait((launch, problem)),
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
    watch = Watch(run, Ended(0))
    for _ in range(2):  # the launch is forgotten, and can be tried again
        watch.workers.start("w0")
        assert watch.failures.empty()  # it is told later, never while it is asked for
        async with asyncio.timeout(20):
            launch, problem = await watch.failures.get()
        assert launch == "w0"
        assert "No space left on device" in problem
    assert watch.pids == []


# --- starting that takes its time ------------------------------------------------


async def test_which_launcher_it_was_and_why(run: RunDirectory) -> None:
    watch = Watch(run, Ended(1))
    watch.workers.start("w0", "my.agents")
    assert watch.pids == [("w0", os.getpid())]
    assert watch.launcher.requests[0].module == "my.agents"
    await watch.exits.get()
    birth = Birth(os.getpid(), "fake", "a test wants it")
    assert watch.workers.births == {"w0": birth}
    assert watch.failures.empty()


async def test_a_worker_may_speak_before_its_process_is_known(
    run: RunDirectory,
) -> None:
    watch = Watch(run, Ended(0))
    watch.launcher.waits = True
    watch.workers.start("w0")
    assert watch.workers.routing_id("w0") is not None
    watch.workers.heard_from("w0", was_last=True)
    watch.launcher.on_started(watch.launcher.process)
    async with asyncio.timeout(0.9):  # its goodbye is not waited for once more
        assert await watch.exits.get() == ("w0", Exit(0, None))


async def test_a_worker_that_is_not_wanted_any_more_when_it_comes(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[bool] = []
    monkeypatch.setattr(Ended, "kill", lambda self: killed.append(True))
    watch = Watch(run, Ended(1))
    watch.launcher.waits = True
    watch.workers.start("w0")
    watch.workers.kill("w0")
    assert killed == []
    watch.launcher.on_started(watch.launcher.process)
    assert killed == [True]
    await watch.exits.get()


async def test_a_launch_that_nothing_was_begun_for(run: RunDirectory) -> None:
    """It is not waited for."""
    watch = Watch(run, Ended(1))
    watch.launcher.waits = watch.launcher.gives_up = True
    watch.workers.start("w0")
    watch.workers.kill("w0")
    assert await watch.failures.get() == ("w0", "it was ended before")
    watch.workers.kill("w0")
    await watch.workers.close()
    assert watch.failures.empty()


async def test_a_launch_that_fails_late(run: RunDirectory) -> None:
    watch = Watch(run, Ended(1))
    watch.launcher.waits = True
    watch.workers.start("w0")
    watch.launcher.on_failed(LaunchError("no"))
    assert await watch.failures.get() == ("w0", "no")
    assert watch.workers.routing_id("w0") is None


async def test_closing_gives_up_what_has_not_started(run: RunDirectory) -> None:
    watch = Watch(run, Ended(1))
    watch.launcher.waits = True
    watch.workers.start("w0")
    await watch.workers.close()
    assert watch.launcher.is_closed
    assert watch.workers.routing_id("w0") is None


async def test_what_fails_at_the_end_is_not_told(run: RunDirectory) -> None:
    watch = Watch(run, Ended(1))
    watch.launcher.waits = True
    watch.workers.start("w0")
    watch.launcher.on_failed(LaunchError("no"))
    await watch.workers.close()
    await asyncio.sleep(0)
    assert watch.failures.empty()


async def test_descriptors_are_left_for_those_that_start(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection comes late, and libzmq aborts if there is no room for it."""
    counts: list[int] = []
    monkeypatch.setattr(workers_io, "require_descriptors", counts.append)
    watch = Watch(run, Ended(0))
    watch.launcher.waits = True
    for launch in ("w0", "w1", "w2"):
        watch.workers.start(launch)
    watch.launcher.on_started(watch.launcher.process)
    watch.workers.start("w3")
    watch.workers.heard_from("w2", was_last=False)
    watch.launcher.on_failed(LaunchError("no"))
    watch.workers.start("w4")
    assert counts == [20, 24, 28, 29, 28]


# --- what it leaves behind --------------------------------------------------------


async def test_an_end_is_told_when_nothing_is_left(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, looks = Ended(1), iter((False, False, True))
    monkeypatch.setattr(workers_io, "LOOK", 0.001)
    monkeypatch.setattr(process, "sweep", lambda: next(looks))
    assert (await Watch(run, process).exit()).code == 1
    assert list(looks) == []


async def test_what_cannot_be_ended_is_waited_for_within_bounds(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Ended(1)
    monkeypatch.setattr(workers_io, "SWEEP", 0.01)
    monkeypatch.setattr(process, "sweep", lambda: False)
    assert (await Watch(run, process).exit()).code == 1


async def test_one_that_said_goodbye_has_left_nothing(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look costs milliseconds, for each of many."""
    process = Ended(0)
    monkeypatch.setattr(process, "sweep", lambda: pytest.fail("it was looked for"))
    watch = Watch(run, process)
    watch.launcher.waits = True
    watch.workers.start("w0")
    watch.workers.heard_from("w0", was_last=True)
    watch.launcher.on_started(process)
    async with asyncio.timeout(20):
        assert await watch.exits.get() == ("w0", Exit(0, None))


async def test_one_that_is_gone_while_it_is_swept(run: RunDirectory) -> None:
    watch = Watch(run, Ended(1))
    watch.workers._sweep("w0", 0.0)
    for rung in ("hang_up", "terminate", "kill", "dump"):
        getattr(watch.workers, rung)("w0")
    assert watch.exits.empty()


# --- the wrong peer ---------------------------------------------------------------


async def test_a_peer_that_is_not_the_process_is_the_end_of_it(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[bool] = []
    monkeypatch.setattr(Ended, "kill", lambda self: killed.append(True))
    monkeypatch.setattr(Admission, "set_pid", lambda *_: "pid 7, expected 8")
    await Watch(run, Ended(1)).exit()
    assert killed
