"""The driver is killed: no worker of it lives on, whatever the worker is doing."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from nestling.driver.guardian_io import is_guardian
from nestling.driver.run_directory_io import RunDirectory
from support.launchers import LAUNCHERS
from support.processes import (
    children_of,
    fifo,
    have_ended,
    needs_linux,
    parent_of,
    pidfds,
    spied,
    wait_stopped,
)
from support.processes import environment_with_tests as environment
from support.scenarios import composed, hanging

pytestmark = [needs_linux, pytest.mark.parametrize("launcher", LAUNCHERS)]

BOUND = 2.0
"""Seconds after which no worker may be left."""


def _family(driver: int, pid: int) -> list[int]:
    """Return a worker, and the template that it is from, if there is one."""
    parent = parent_of(pid)
    return [pid] if parent == driver else [pid, parent]


def _remove_runs(box: Path) -> None:
    """Remove what a killed driver cannot."""
    for left in box.glob("nestling-*"):
        shutil.rmtree(left)


def test_a_worker_that_waits_for_its_call(
    launcher: str, tmp_path: Path, box: Path
) -> None:
    scenario = hanging(tmp_path / "scenario")
    with spied("replay", scenario, "--launcher", launcher) as (driver, lines):
        pid = int(lines.until("pid "))
        lines.until("notice / call 1")
        family = _family(driver.pid, pid)
        assert len(family) == LAUNCHERS.index(launcher) + 1
        with pidfds(*family) as fds:
            driver.kill()
            assert have_ended(fds, BOUND)
        assert driver.wait() == -signal.SIGKILL
    _remove_runs(box)


@pytest.mark.parametrize("moment", ["starting", "call 1"])
def test_several_workers(launcher: str, tmp_path: Path, box: Path, moment: str) -> None:
    """Parent and twins, the driver killed while the twins start or are served."""
    scenario = composed(tmp_path / "scenario", "parallel_children")
    options = ("--launcher", launcher)
    with spied("replay", scenario, *options) as (driver, lines), ExitStack() as stack:
        fds: list[int] = []
        for _ in range(3):
            pid = int(lines.until("pid "))
            fds += stack.enter_context(pidfds(*_family(driver.pid, pid)))
        if moment == "call 1":
            while not lines.next().endswith("call 1"):
                pass
        driver.kill()
        assert have_ended(fds, BOUND)
    _remove_runs(box)


@pytest.mark.parametrize("entry", ["deaf", "unasked"])
def test_one_of_two_bonds_is_enough(
    launcher: str, tmp_path: Path, box: Path, entry: str
) -> None:
    """``deaf`` cannot look at its lifeline, ``unasked`` has asked no kernel."""
    scenario = hanging(tmp_path / "scenario")
    stand_in = f"support.stand_ins.{entry}"
    with (
        fifo(tmp_path / "pipe") as told,
        spied(
            "replay",
            scenario,
            "--launcher",
            launcher,
            entry=stand_in,
            env=environment(LC_NESTLING_FIFO=str(tmp_path / "pipe")),
        ) as (driver, lines),
    ):
        pid = int(lines.until("pid "))
        if entry == "deaf":
            assert int(told.until("blocked ")) == pid
        else:
            lines.until("notice / call 1")
        with pidfds(*_family(driver.pid, pid)) as fds:
            driver.kill()
            assert have_ended(fds, BOUND)
    _remove_runs(box)


def test_what_tools_have_started(launcher: str, tmp_path: Path, box: Path) -> None:
    """They hold no lifeline, and no kernel was asked to end them with anybody."""
    scenario = hanging(tmp_path / "scenario")
    with (
        fifo(tmp_path / "pipe") as told,
        spied(
            "replay",
            scenario,
            "--launcher",
            launcher,
            entry="support.stand_ins.litter",
            env=environment(LC_NESTLING_FIFO=str(tmp_path / "pipe")),
        ) as (driver, lines),
    ):
        pid = int(lines.until("pid "))
        left = [int(each) for each in told.until("left ").split()]
        lines.until("notice / call 1")
        with pidfds(*_family(driver.pid, pid), *left) as fds:
            driver.kill()
            assert have_ended(fds, BOUND)
    _remove_runs(box)


def test_what_is_left_if_who_looks_after_it_dies_too(
    launcher: str, tmp_path: Path, box: Path
) -> None:
    """The next driver, which is this process, sweeps."""
    scenario = hanging(tmp_path / "scenario")
    with (
        fifo(tmp_path / "pipe") as told,
        spied(
            "replay",
            scenario,
            "--launcher",
            launcher,
            entry="support.stand_ins.litter",
            env=environment(
                LC_NESTLING_FIFO=str(tmp_path / "pipe"), LC_NESTLING_END="stuck"
            ),
        ) as (driver, lines),
    ):
        pid = int(lines.until("pid "))
        left = [int(each) for each in told.until("left ").split()]
        sweeper = parent_of(pid)
        if sweeper == driver.pid:
            (sweeper,) = filter(is_guardian, children_of(driver.pid))
        (directory,) = box.glob("nestling-*")
        with pidfds(pid, sweeper, *left) as fds:
            os.kill(driver.pid, signal.SIGSTOP)
            wait_stopped(driver.pid)
            os.kill(sweeper, signal.SIGKILL)
            driver.kill()
            assert have_ended(fds[:2], BOUND)
            assert not have_ended(fds[2:], 0.0)
            driver.wait()
            started = time.monotonic()
            RunDirectory().remove()
            assert time.monotonic() - started < BOUND
            assert have_ended(fds, BOUND)
        assert not directory.exists()
