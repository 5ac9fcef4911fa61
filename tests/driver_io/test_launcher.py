"""Fresh interpreters: what goes wrong while one is started leaves nothing.

What every launcher promises is tested in ``tests/launchers``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from nestling.driver.exec_process_io import ExecProcess
from nestling.driver.exits import Exit
from nestling.driver.guardian_io import __name__ as GUARDIAN
from nestling.driver.hub_io import Bounds
from nestling.driver.launcher_io import ExecLauncher, WorkerProcess, worker_environment
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from nestling.session.errors import LaunchError
from support.launchers import LAUNCHERS, a_launcher, ended, request_for, stand_in
from support.processes import have_ended, needs_linux
from support.runs import kinds
from support.scenarios import MIXED

pytestmark = needs_linux


def _quits(folder: Path) -> ExecProcess:
    return ExecLauncher(stand_in("quits")).start(request_for(folder))


def _wait(process: WorkerProcess) -> None:
    assert isinstance(process, ExecProcess)
    fd = process.fileno()
    assert fd is not None
    assert have_ended([fd], 20)


# --- processes -----------------------------------------------------------------


def test_an_exit_is_seen_before_it_is_reaped(tmp_path: Path) -> None:
    process = _quits(tmp_path)
    _wait(process)
    assert process.has_ended()
    assert process.has_ended()
    assert process.has_failed()
    assert process.reap()[:2] == (7, None)
    assert process.has_ended()


def test_a_process_that_somebody_else_has_reaped(tmp_path: Path) -> None:
    process = _quits(tmp_path)
    _wait(process)
    os.waitpid(process.pid, 0)
    assert process.has_ended()
    assert not process.has_failed()  # nobody knows
    exit = process.reap()
    assert exit == Exit(None, None, cause="reaped by somebody else")
    assert str(exit) == "reaped by somebody else"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_system_that_has_no_pidfds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    process = _quits(tmp_path)
    assert process.fileno() is None
    await ended(process)
    assert process.has_ended()
    assert process.reap()[:2] == (7, None)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_nothing_is_told_after_the_end_was_collected(tmp_path: Path) -> None:
    told: list[int] = []
    process = _quits(tmp_path)
    process.watch(lambda: told.append(process.pid))
    process.reap()
    await asyncio.sleep(0)
    assert told == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("has_opener", [False, True])
async def test_a_replay_without_pidfds(
    monkeypatch: pytest.MonkeyPatch, has_opener: bool
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    if has_opener:
        monkeypatch.setattr(os, "pidfd_open", refuse)
    else:
        monkeypatch.delattr(os, "pidfd_open")
    report = await replay(load_scenario(MIXED))
    assert report.problems == ()
    assert report.launcher == "exec"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_loop_turns_between_two_starts(tmp_path: Path) -> None:
    """Else the first workers of many wait for the hub longer than they can."""
    starter = ExecLauncher(stand_in("brief")).connect()
    started: list[WorkerProcess] = []
    failed: list[LaunchError] = []
    counts = []
    for number in range(6):
        request = request_for(tmp_path, f"w{number}")
        starter.start(request, started.append, failed.append)
    for _ in range(3):
        counts.append(len(started))
        await asyncio.sleep(0)
    starter.close()
    await asyncio.sleep(0)
    assert (counts, len(started), failed) == ([1, 2, 3], 4, [])
    for process in started:
        process.reap()


# --- failing launches ----------------------------------------------------------

NUMBERS = (errno.ENOENT, errno.EMFILE, errno.ENOMEM, errno.EAGAIN)


def _fail_with(number: int, *_: Any, **__: Any) -> Any:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("step", ["pipe", "write", "Popen"])
def test_a_launch_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    target = subprocess if step == "Popen" else os
    monkeypatch.setattr(target, step, partial(_fail_with, number))
    with pytest.raises(LaunchError, match=os.strerror(number)):
        ExecLauncher().start(request_for(tmp_path))


def test_an_interpreter_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(LaunchError, match="No such file"):
        ExecLauncher().start(request_for(tmp_path))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("failing", [0, 1])
async def test_a_run_whose_worker_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, number: int, failing: int
) -> None:
    real, count = subprocess.Popen, 0

    def fail(*arguments: Any, **more: Any) -> Any:
        nonlocal count
        count += GUARDIAN not in arguments[0]  # a run does without that one
        if count > failing:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **more)

    monkeypatch.setattr(subprocess, "Popen", fail)
    with anyio.fail_after(20):
        report = await replay(load_scenario(MIXED), Bounds(15, 60), ExecLauncher())
    path = ("/", "/t2s1b1")[failing]
    assert kinds(report.problems)[0] == ("worker-lost", path)
    message = report.problems[0].message
    assert message.startswith("its worker ended (not started: cannot start a worker: ")
    assert os.strerror(number) in message
    assert len(report.problems) == 1 + failing


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
async def test_a_run_for_which_no_process_can_be_started(
    monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """Neither a template nor a worker."""
    monkeypatch.setattr(subprocess, "Popen", partial(_fail_with, errno.EAGAIN))
    with anyio.fail_after(20):
        report = await replay(
            load_scenario(MIXED), Bounds(15, 60), a_launcher(launcher)
        )
    assert kinds(report.problems) == [("worker-lost", "/")]
    message = report.problems[0].message
    assert message.startswith("its worker ended (not started: cannot start a worker: ")


def test_a_worker_finds_what_the_driver_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "relative", os.sep + "absolute"])
    found = worker_environment({"HOME": "h", "LC_ALL": "C", "OPENAI_API_KEY": "k"})
    paths = [os.path.abspath("relative"), os.sep + "absolute"]
    assert found == {
        "HOME": "h",
        "LC_ALL": "C",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": "0",
    }
