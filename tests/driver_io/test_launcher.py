"""Launching: what goes wrong leaves nothing, and what a worker finds around it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nestling.driver.exits import Exit
from nestling.driver.hub_io import Bounds
from nestling.driver.launcher_io import (
    ExecLauncher,
    LaunchRequest,
    WorkerProcess,
    worker_environment,
)
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from nestling.session.errors import LaunchError
from nestling.wire.launch import LaunchSpec, decode_launch
from nestling.wire.messages import PROTOCOL, Hello, ToHub
from support.processes import fifo, have_ended, needs_linux
from support.runs import kinds, on_each_message
from support.scenarios import MIXED

pytestmark = needs_linux

SPEC = LaunchSpec(PROTOCOL, "ipc:///none/hub", "w0", "s3cret", b"\x01id", os.getpid())


def _request(folder: Path) -> LaunchRequest:
    return LaunchRequest(SPEC, folder / "w0.log", folder)


@contextmanager
def _started(folder: Path, entry: str) -> Iterator[WorkerProcess]:
    launcher = ExecLauncher(f"support.stand_ins.{entry}")
    process = launcher.start(_request(folder))
    try:
        yield process
    finally:
        process.reap()


def _wait(process: WorkerProcess) -> None:
    fd = process.fileno()
    assert fd is not None
    assert have_ended([fd], 20)


# --- processes -----------------------------------------------------------------


def test_an_exit_is_seen_before_it_is_reaped(tmp_path: Path) -> None:
    process = ExecLauncher("support.stand_ins.quits").start(_request(tmp_path))
    _wait(process)
    assert process.has_ended()
    assert process.has_ended()
    assert not process.has_succeeded()
    assert process.reap() == Exit(7, None)
    assert process.has_ended()
    assert not process.has_succeeded()


def test_a_process_that_runs_can_be_ended(tmp_path: Path) -> None:
    process = ExecLauncher("support.stand_ins.mute").start(_request(tmp_path))
    assert not process.has_ended()
    assert not process.has_succeeded()
    process.kill()
    _wait(process)
    process.kill()
    assert process.reap() == Exit(None, "SIGKILL")


def test_a_process_that_somebody_else_has_reaped(tmp_path: Path) -> None:
    process = ExecLauncher("support.stand_ins.quits").start(_request(tmp_path))
    _wait(process)
    os.waitpid(process.pid, 0)
    assert process.has_ended()
    assert not process.has_succeeded()
    process.reap()


def test_a_system_that_has_no_pidfds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    process = ExecLauncher("support.stand_ins.quits").start(_request(tmp_path))
    assert process.fileno() is None
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process.has_ended()
    assert process.reap() == Exit(7, None)


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


# --- failing launches ----------------------------------------------------------

NUMBERS = (errno.ENOENT, errno.EMFILE, errno.ENOMEM, errno.EAGAIN)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("step", ["pipe", "write", "Popen"])
def test_a_launch_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess if step == "Popen" else os, step, fail)
    with pytest.raises(LaunchError, match=os.strerror(number)):
        ExecLauncher().start(_request(tmp_path))


def test_an_interpreter_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(LaunchError, match="No such file"):
        ExecLauncher().start(_request(tmp_path))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("failing", [0, 1])
async def test_a_run_whose_worker_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, number: int, failing: int
) -> None:
    real, count = subprocess.Popen, 0

    def fail(*arguments: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count > failing:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **more)

    monkeypatch.setattr(subprocess, "Popen", fail)
    with anyio.fail_after(20):
        report = await replay(load_scenario(MIXED), Bounds(10, 20))
    path = ("/", "/t2s1b1")[failing]
    assert kinds(report.problems)[0] == ("worker-lost", path)
    message = report.problems[0].message
    assert message.startswith("its worker ended (not started: cannot start a worker: ")
    assert os.strerror(number) in message
    assert len(report.problems) == 1 + failing


# --- what a worker finds -------------------------------------------------------


def test_the_surroundings_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "run" / "work" / "w0"
    work.mkdir(parents=True)
    planted = {
        "FAKE_API_KEY": "k",
        "LD_PRELOAD_": "x",
        "PYTHONSTARTUP": "x",
        "PYTHONINSPECT": "1",
        "PYTHONHASHSEED": "77",
        "CLAUDE_CODE_CHILD_SESSION": "1",
        "XLC_ALL": "x",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    # The driver's own stdin, and a descriptor that it lets everybody inherit.
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    stdin = os.dup(0)
    os.dup2(reading, 0)
    with fifo(tmp_path / "pipe") as lines:
        monkeypatch.setenv("LC_NESTLING_FIFO", str(tmp_path / "pipe"))
        with _started(work, "reporter") as process:
            found = json.loads(lines.next())
            _wait(process)
            pid, lifeline = process.pid, str(found["lifeline"])
    os.dup2(stdin, 0)
    for fd in (stdin, reading, writing):
        os.close(fd)

    environment = found["environment"]
    assert not planted.keys() & (environment.keys() - {"PYTHONHASHSEED"})
    assert environment["PYTHONHASHSEED"] == "0"
    allowed = {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "SYSTEMROOT", "VIRTUAL_ENV"}
    own = {"PYTHONPATH", "PYTHONHASHSEED"}
    others = environment.keys() - allowed - own
    assert all(name.startswith("LC_") for name in others)

    assert found["group"] == [pid, pid, pid]
    assert found["directory"] == str(work)
    assert found["files"] == ["w0.log"]
    descriptors = found["descriptors"]
    assert descriptors.keys() == {"0", "1", "2", lifeline}
    assert descriptors["0"] == os.devnull
    assert descriptors["1"] == descriptors["2"] == str(work / "w0.log")
    assert descriptors[lifeline].startswith("pipe:")

    assert found["arguments"] == [lifeline]
    assert decode_launch(found["spec"].encode()) == SPEC
    for shown in (found["command"], environment):
        assert SPEC.token not in str(shown)
    assert set(filter(None, map(os.path.abspath, sys.path))) <= set(found["path"])


def test_the_order_of_sets_is_the_same_in_every_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = set()
    with fifo(tmp_path / "pipe") as lines:
        monkeypatch.setenv("LC_NESTLING_FIFO", str(tmp_path / "pipe"))
        for _ in range(2):
            with _started(tmp_path, "reporter") as process:
                hashes.add(json.loads(lines.next())["hash"])
                _wait(process)
    assert len(hashes) == 1


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


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_secrets_cannot_be_seen_from_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the kernel shows of each worker of a run holds none of its secrets."""
    seen: list[bytes] = []
    tokens: list[str] = []
    start = ExecLauncher.start

    def spied(self: ExecLauncher, request: LaunchRequest) -> WorkerProcess:
        tokens.append(request.spec.token)
        return start(self, request)

    def look(user: str, pid: int, message: ToHub) -> None:
        if isinstance(message, Hello):
            shown = Path("/proc", str(pid))
            texts = [(shown / name).read_bytes() for name in ("cmdline", "environ")]
            seen.append(b"\0".join(texts))

    monkeypatch.setattr(ExecLauncher, "start", spied)
    on_each_message(monkeypatch, look)
    assert (await replay(load_scenario(MIXED))).problems == ()
    assert len(set(tokens)) == len(seen) == 3
    for text in seen:
        assert b"nestling.worker" in text
        assert not any(token.encode() in text for token in tokens)
