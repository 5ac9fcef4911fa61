"""The check that users have: red where something of Nestling is left, and only there."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import pytest

from nestling.driver.guardian_io import Guardian, is_guardian
from nestling.driver.run_directory_io import RunDirectory
from nestling.driver.template_launcher_io import TemplateLauncher
from nestling.driver.traces_io import MARK, new_mark
from nestling.harness import LeakError, load_scenario, no_leaks, replay
from support.leaks import reap_quietly
from support.processes import needs_linux
from support.scenarios import MIXED

pytestmark = needs_linux


def _failure(leave: Callable[[], object]) -> str:
    with pytest.raises(LeakError) as caught, no_leaks():
        leave()
    return str(caught.value)


@contextmanager
def _sleeper(**more: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, **more})
    try:
        yield process
    finally:
        reap_quietly(process)


def test_nothing_left_is_nothing_said() -> None:
    with no_leaks():
        RunDirectory().remove()


def test_a_process_that_bears_a_mark() -> None:
    started: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, MARK: str(new_mark())}

    def leave() -> None:
        started.append(subprocess.Popen(["sleep", "600"], env=environment))

    failure = _failure(leave)
    (process,) = started
    assert failure == f"left: process {process.pid} (sleep 600)"
    process.wait()


def test_what_is_not_of_nestling_is_the_users() -> None:
    with no_leaks():
        sleeper = _sleeper()
        process = sleeper.__enter__()
    assert process.poll() is None
    sleeper.__exit__(None, None, None)


def test_what_another_driver_has_started_is_that_ones() -> None:
    """Other tests run at the same time; their drivers live."""
    with no_leaks():
        sleeper = _sleeper(**{MARK: f"{os.getppid()}-abc.def"})
        process = sleeper.__enter__()
    assert process.poll() is None
    sleeper.__exit__(None, None, None)


def test_a_run_directory() -> None:
    made: list[RunDirectory] = []
    failure = _failure(lambda: made.append(RunDirectory()))
    assert failure == f"left: run directory {made[0].path.name} (sockets: [])"
    assert not made[0].path.exists()
    made[0].remove()


def test_a_guardian(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nestling.harness.leaks_io._LAST", 0.1)  # it is held
    guardian = Guardian()

    def leave() -> None:
        guardian.hold("/nowhere/")
        process = guardian._process
        assert process is not None
        # Who starts a process goes on before the kernel has its environment to show.
        while not is_guardian(process.pid):
            os.sched_yield()

    assert "process" in _failure(leave)
    guardian.let_go()


def test_a_thread() -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, name="nestling-hub")
    assert _failure(thread.start) == "left: thread nestling-hub"
    go_on.set()
    thread.join()


async def test_a_template_that_was_warm_before_is_nobodys_leak() -> None:
    scenario = load_scenario(MIXED)
    with TemplateLauncher() as launcher:
        with no_leaks():  # not started yet, but held: it is not the body's either
            assert (await replay(scenario, launcher=launcher)).is_ok
        with no_leaks():  # its spare is taken, and there is another one
            assert (await replay(scenario, launcher=launcher)).is_ok


def test_a_template_that_the_body_left_warm() -> None:
    launcher = TemplateLauncher()

    def leave() -> None:
        launcher.__enter__()
        assert anyio.run(partial(replay, load_scenario(MIXED), launcher=launcher)).is_ok

    assert "nestling.worker.template_io" in _failure(leave)
    launcher.__exit__(None, None, None)
