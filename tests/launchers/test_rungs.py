"""The rungs of the ladder on which a worker is ended, and what is left of it then."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nestling.driver import exec_process_io, template_io, workers_io
from nestling.driver.exits import Exit
from nestling.driver.processes_io import process_of
from nestling.driver.run_directory_io import RunDirectory
from nestling.driver.workers_io import Workers
from nestling.harness.leaks_io import end_process
from nestling.wire.admission import Admission
from nestling.worker.process_io import EXIT_ORPHANED
from support.launchers import LAUNCHERS, SECONDS, a_launcher, at_work, stand_in
from support.processes import (
    Lines,
    children_of,
    fifo,
    have_ended,
    needs_linux,
    pidfds,
    state_of,
)

pytestmark = [
    needs_linux,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.parametrize("launcher", LAUNCHERS),
]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """What stand-ins tell."""
    with fifo(tmp_path / "pipe") as lines:
        monkeypatch.setenv("LC_NESTLING_FIFO", str(tmp_path / "pipe"))
        yield lines


class Ladder:
    """Workers in a run directory, and how they ended."""

    def __init__(self, launcher: str, entry: str, run: RunDirectory) -> None:
        self.run = run
        self.pids: asyncio.Queue[int] = asyncio.Queue()
        self.exits: asyncio.Queue[tuple[str, Exit]] = asyncio.Queue()
        self.workers = Workers(
            a_launcher(launcher, entry),
            run,
            Admission(),
            os.getpid(),
            lambda _, pid: self.pids.put_nowait(pid),
            lambda launch, problem: pytest.fail(f"{launch}: {problem}"),
            lambda launch, exit: self.exits.put_nowait((launch, exit)),
        )

    async def start(self) -> int:
        """Start a worker, w0; return its pid."""
        self.workers.start("w0")
        async with asyncio.timeout(SECONDS):
            return await self.pids.get()

    async def exit(self) -> Exit:
        """Wait for its end."""
        async with asyncio.timeout(SECONDS):
            return (await self.exits.get())[1]

    def dumped(self, text: str) -> str:
        """Have it dump until that shows something; return all that it printed."""
        deadline = time.monotonic() + SECONDS
        while text not in (printed := self.run.printed_by("w0")):
            assert time.monotonic() < deadline, printed
            self.workers.dump("w0")
            os.sched_yield()
        return printed


@asynccontextmanager
async def ladder(launcher: str, name: str) -> AsyncIterator[Ladder]:
    run = RunDirectory()
    made = Ladder(launcher, stand_in(name), run)
    try:
        yield made
    finally:
        await made.workers.close()
        run.remove()


# --- each rung -----------------------------------------------------------------------


async def test_one_that_is_hung_up_ends_what_it_has_started(
    launcher: str, told: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_NESTLING_END", "loop")
    async with ladder(launcher, "litter") as made:
        pid = await made.start()
        left = map(int, told.until("left ").split())
        with pidfds(pid, *left) as fds:
            made.workers.hang_up("w0")
            made.workers.hang_up("w0")
            exit = await made.exit()
            assert have_ended(fds, 0.0)
    assert (exit.code, exit.swept, exit.unkillable) == (EXIT_ORPHANED, 0, ())


@pytest.mark.parametrize("rung", ["terminate", "kill"])
async def test_one_that_is_stuck_and_all_that_it_has_started(
    launcher: str, told: Lines, monkeypatch: pytest.MonkeyPatch, rung: str
) -> None:
    """Nothing of it is there any more when its end is told."""
    monkeypatch.setenv("LC_NESTLING_END", "stuck")
    async with ladder(launcher, "litter") as made:
        pid = await made.start()
        left = map(int, told.until("left ").split())
        with pidfds(pid, *left) as fds:
            made.workers.hang_up("w0")
            assert not have_ended(fds[:1], 0.1)
            getattr(made.workers, rung)("w0")
            exit = await made.exit()
            assert have_ended(fds, 0.0)
    assert exit.signal == {"terminate": "SIGTERM", "kill": "SIGKILL"}[rung]
    assert exit.unkillable == ()
    if rung == "terminate":
        # In sessions of their own, and so in no group that was sent anything.
        assert exit.swept >= 4


async def test_one_that_dies_by_itself_and_all_that_it_has_started(
    launcher: str, told: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could look what was below it; one of them bears no trace but the limit."""
    monkeypatch.setenv("LC_NESTLING_END", "stuck")
    async with ladder(launcher, "litter") as made:
        pid = await made.start()
        left = map(int, told.until("left ").split())
        with pidfds(pid, *left) as fds:
            os.kill(pid, signal.SIGKILL)
            exit = await made.exit()
            assert have_ended(fds, 0.0)
    assert (exit.signal, exit.unkillable) == ("SIGKILL", ())
    assert exit.swept >= 5


async def test_the_whole_group_is_terminated(launcher: str, told: Lines) -> None:
    """The worker does not heed it; its child does."""
    async with ladder(launcher, "polite") as made:
        pid = await made.start()
        child = int(told.until("child "))
        with pidfds(pid, child) as fds:
            made.workers.terminate("w0")
            assert int(told.until("terminated ")) == child
            assert have_ended(fds[1:], SECONDS)
            assert not have_ended(fds[:1], 0.0)
            made.workers.kill("w0")
            assert (await made.exit()).signal == "SIGKILL"


async def test_one_that_ignores_sigterm_is_killed(launcher: str, told: Lines) -> None:
    async with ladder(launcher, "stubborn") as made:
        pid = await made.start()
        child = int(told.until("up "))
        with pidfds(pid, child) as fds:
            made.workers.hang_up("w0")
            made.workers.terminate("w0")
            made.workers.terminate("w0")
            assert not have_ended(fds[:1], 0.1)
            made.workers.kill("w0")
            made.workers.kill("w0")
            exit = await made.exit()
            assert have_ended(fds, 0.0)
    assert (exit.signal, exit.unkillable) == ("SIGKILL", ())


# --- dumps ---------------------------------------------------------------------------


async def test_one_that_hangs_tells_where(launcher: str, told: Lines) -> None:
    """It is blocked in C with the interpreter's lock held."""
    async with ladder(launcher, "wedged") as made:
        pid = await made.start()
        assert int(told.until("wedged ")) == pid
        printed = made.dumped("in _wedge")
        assert "Thread 0x" in printed  # the other one
        with pidfds(pid) as fds:
            assert not have_ended(fds, 0.0)
        made.workers.kill("w0")
        assert (await made.exit()).signal == "SIGKILL"


async def test_one_that_is_not_ready_for_a_dump_is_spared(
    launcher: str, told: Lines
) -> None:
    async with ladder(launcher, "mute") as made:
        pid = await made.start()
        assert int(told.until("up ")) == pid
        with pidfds(pid) as fds:
            made.workers.dump("w0")
            assert not have_ended(fds, 0.1)
        made.workers.kill("w0")
        assert (await made.exit()).signal == "SIGKILL"


# --- before the start and after the end ------------------------------------------------


@pytest.mark.parametrize("rung", ["hang_up", "terminate", "kill"])
async def test_one_that_is_to_end_before_it_has_started(
    launcher: str, rung: str
) -> None:
    async with ladder(launcher, "mute") as made:
        made.workers.dump("w0")
        for _ in range(2):
            getattr(made.workers, rung)("w0")
        await made.start()
        made.workers.dump("w0")
        getattr(made.workers, rung)("w0")
        made.workers.kill("w0")
        # A fresh interpreter is there at once, and is asked before it is killed.
        assert (await made.exit()).signal in ("SIGKILL", "SIGTERM")
        for late in ("hang_up", "terminate", "kill", "dump"):
            getattr(made.workers, late)("w0")


async def test_after_the_end_nobody_else_is_hit(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pid may be another process's by then."""
    async with at_work(a_launcher(launcher, stand_in("quits")), tmp_path) as bench:
        process = await bench.start()
        await bench.exit_of(process)

        def fail(*_: object) -> None:
            pytest.fail("a signal was sent")

        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", fail)
            patch.setattr(os, "killpg", fail)
            patch.setattr(signal, "pidfd_send_signal", fail)
            for rung in ("hang_up", "terminate", "kill", "dump"):
                getattr(process, rung)()


# --- what cannot be ended, and zombies -------------------------------------------------


async def test_what_cannot_be_ended_is_named(
    launcher: str, told: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_NESTLING_END", "badly")
    monkeypatch.setattr(exec_process_io, "end", lambda _: None)
    monkeypatch.setattr(template_io, "ENTRY", stand_in("lax_template"))
    monkeypatch.setattr(workers_io, "SWEEP", 0.1)
    async with ladder(launcher, "daemon") as made:
        pid = await made.start()
        left = int(told.until("left "))
        while state_of(pid) != "T":
            os.sched_yield()
        os.kill(pid, signal.SIGCONT)
        exit = await made.exit()
        end_process(left)
    assert exit.code == 1
    assert exit.swept == 1
    assert exit.unkillable == (f"process {left} (sleep)",)


async def test_many_in_a_row_leave_no_zombie(launcher: str, tmp_path: Path) -> None:
    async with at_work(a_launcher(launcher, stand_in("brief")), tmp_path) as bench:
        for _ in range(40):
            process = await bench.start()
            parent = os.getpid() if launcher == "exec" else bench.template
            assert (await bench.exit_of(process)).code == 1
            assert process.pid not in children_of(parent)
        # A template may have a spare, which is alive.
        states = [process_of(child) for child in children_of(parent)]
        assert all(process is None or process.is_alive for process in states)


# --- what tools print ------------------------------------------------------------------


async def test_bytes_that_are_no_text(launcher: str) -> None:
    async with ladder(launcher, "babble") as made:
        await made.start()
        exit = await made.exit()
        log = made.run.log_of("w0").read_bytes()
        made.run.printed_by("w0")
    assert exit.code == 0
    assert log == (
        "wörter\n".encode("utf-16-le") + "wörter €\n".encode("cp1252")
        + b"\0\xff\xfe\n" + b"\\ud83d\n"
    )  # fmt: skip
    assert "\\xf6rter" in exit.stderr_tail
    assert exit.stderr_tail.endswith("\\ud83d")
