"""A driver that was started to ignore SIGCHLD: the kernel reaps what it starts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nestling.driver.exits import Exit
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from nestling.wire.fork import WorkerExited
from nestling.wire.messages import Stream, ToHub
from nestling.worker import offspring_io, template_io
from support.launchers import LAUNCHERS, a_launcher, at_work, stand_in
from support.processes import needs_linux, run_nestling
from support.runs import on_each_message
from support.scenarios import MIXED

pytestmark = needs_linux

on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])
with_launchers = pytest.mark.parametrize("launcher", LAUNCHERS)


def _ignore() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@pytest.fixture
def _ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@with_launchers
def test_the_program(launcher: str) -> None:
    arguments = ("replay", MIXED, "--launcher", launcher)
    result = run_nestling(*arguments, preexec_fn=_ignore)
    assert (result.returncode, result.stderr) == (0, b"")


@on_asyncio
@with_launchers
@pytest.mark.usefixtures("_ignored")
async def test_a_program_that_uses_the_driver(
    monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """Its signals are its own; workers hear of their children all the same."""
    ignored: list[bool] = []

    def on_message(user: str, pid: int, message: ToHub) -> None:
        if not isinstance(message, Stream):
            return  # only one that waits for an answer is there for sure
        status = Path(f"/proc/{pid}/status").read_text()
        mask = int(status.partition("SigIgn:")[2].split()[0], 16)
        ignored.append(bool(mask & 1 << signal.SIGCHLD - 1))

    on_each_message(monkeypatch, on_message)
    report = await replay(load_scenario(MIXED), launcher=a_launcher(launcher))
    assert report.problems == ()
    assert ignored
    assert not any(ignored)


@on_asyncio
@pytest.mark.usefixtures("_ignored")
async def test_an_exit_that_nobody_can_know_is_not_made_up(tmp_path: Path) -> None:
    """It is no failure either, for which a last word would not be waited for."""
    async with at_work(a_launcher("exec", stand_in("quits")), tmp_path) as bench:
        process = await bench.start()
        exit = await bench.exit_of(process)
        assert not process.has_failed()
    assert exit == Exit(None, None, cause="reaped by somebody else")


def test_a_template_whose_child_was_reaped_elsewhere() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    template_io._undo(pid, [])
    assert offspring_io._collected(pid) == WorkerExited(pid, None, 0, 0, 0)
