"""The guardian: there as long as it is held, and it sweeps when its driver is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nestling.driver.guardian_io import Guardian, is_guardian
from support.processes import (
    Lines,
    children_of,
    environment_with_tests,
    have_ended,
    needs_linux,
    pidfds,
    state_of,
)

pytestmark = needs_linux

DRIVER = """
import os, signal, subprocess, sys, time
from nestling.driver.guardian_io import GUARDIAN
from nestling.driver.traces_io import MARK, new_mark
GUARDIAN.hold(sys.argv[1])
if sys.argv[2] == "stopped":
    os.kill(GUARDIAN._process.pid, signal.SIGSTOP)
env = {**os.environ, MARK: str(new_mark())}
log = open(sys.argv[1] + "w0.log", "wb")
marked = subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
printing = subprocess.Popen(
    ["sleep", "600"], env={}, start_new_session=True, stdout=log, stderr=log)
held = os.fork()  # it holds whatever the driver has open
if held == 0:
    time.sleep(600)
print(marked.pid, printing.pid, held, GUARDIAN._process.pid, flush=True)
time.sleep(600)
"""


def _guardians() -> list[int]:
    children = children_of(os.getpid())
    for pid in children:
        # A program that was started an instant ago has no environment to be read yet.
        while state_of(pid) != "Z" and not Path(f"/proc/{pid}/environ").read_bytes():
            pass
    return [pid for pid in children if is_guardian(pid)]


@contextmanager
def _held(guardian: Guardian, times: int = 1) -> Iterator[None]:
    for _ in range(times):
        guardian.hold("/nowhere/")
    try:
        yield
    finally:
        for _ in range(times):
            guardian.let_go()


def test_one_for_all_who_hold_it() -> None:
    guardian = Guardian()
    with _held(guardian):
        with _held(guardian, times=2):
            (first,) = _guardians()
        assert _guardians() == [first]
    assert _guardians() == []
    with _held(guardian):
        (second,) = _guardians()
    assert second != first


def test_one_that_was_killed_is_followed_by_another() -> None:
    guardian = Guardian()
    with _held(guardian):
        (first,) = _guardians()
        with pidfds(first) as fds:
            os.kill(first, signal.SIGKILL)
            assert have_ended(fds, 5.0)
        with _held(guardian):
            (second,) = _guardians()
            assert second != first
    assert _guardians() == []


def test_a_run_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    with _held(Guardian(), times=2):
        assert _guardians() == []


def _ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigIgn:")[2].split()[0], 16) & 1 << number - 1)


@pytest.mark.parametrize("guardian_is", ["stopped", "starting", "up"])
def test_its_driver_is_killed(tmp_path: Path, guardian_is: str) -> None:
    """Found by their marks or by where they print, though a fork holds the pipe."""
    command = [sys.executable, "-c", DRIVER, f"{tmp_path}/", guardian_is]
    environment = environment_with_tests()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as driver:
        assert driver.stdout is not None
        line = Lines(driver.stdout.fileno()).next()
        marked, printing, fork, guardian = map(int, line.split())
        with pidfds(marked, printing, guardian, fork) as fds:
            while guardian_is == "up" and not _ignores(guardian, signal.SIGHUP):
                os.sched_yield()
            if guardian_is == "up":  # as at a logout: it stays
                os.kill(guardian, signal.SIGTERM)
            driver.kill()
            driver.wait()
            if guardian_is == "stopped":  # before it could look for its driver
                os.kill(guardian, signal.SIGCONT)
            assert have_ended(fds[:3], 2.0)
            assert not have_ended(fds[3:], 0.0)
            os.kill(fork, signal.SIGKILL)
            assert have_ended(fds, 2.0)
