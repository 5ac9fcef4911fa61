"""Whole runs across real processes: as recorded, on both loops, again and again."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from nestling.driver import hub_thread_io
from nestling.driver.hub_io import Bounds
from nestling.driver.instructions import Notice
from nestling.driver.launcher_io import ExecLauncher
from nestling.driver.run_io import run_tree
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from support.runs import Watched, loaded, on_each_start
from support.scenarios import MIXED, hanging

SPREAD: Final = (
    "retried_call",
    "parallel_tools",
    "parallel_children",
    "nested_forks",
    "aborted_between_calls",
    "crashed_call",
    "crashed_tool",
    "unlucky_children",
)


async def test_every_session_is_a_process_of_its_own() -> None:
    report = await replay(load_scenario(MIXED))
    assert report.problems == ()
    pids = {path: birth.pid for path, birth in report.births.items()}
    assert list(pids) == ["/", "/t2s1b1", "/t2s2b1"]
    assert len({*pids.values(), os.getpid()}) == 4
    assert {path: a.seed_length for path, a in report.accounts.items()} == {
        "/": 0,
        "/t2s1b1": 0,
        "/t2s2b1": 24,
    }


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("name", SPREAD)
async def test_composed_trees_come_out_as_recorded(tmp_path: Path, name: str) -> None:
    report = await replay(loaded(tmp_path, name))
    assert report.problems == ()
    for account in report.accounts.values():
        assert account.has_settled
        assert not account.is_different


async def test_two_runs_at_once(tmp_path: Path) -> None:
    found = {}

    async def run(name: str) -> None:
        found[name] = await replay(loaded(tmp_path / name, name))

    async with anyio.create_task_group() as group:
        group.start_soon(run, "spawn_and_fork")
        group.start_soon(run, "first_turn_fork")
    assert [report.problems for report in found.values()] == [(), ()]
    pids = [b.pid for report in found.values() for b in report.births.values()]
    assert len(set(pids)) == 5


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_blocked_caller_stalls_nobody(tmp_path: Path) -> None:
    """The caller's loop stands still until the root's last call has been made."""
    reached = threading.Event()

    def watch(notice: Notice) -> None:
        if notice == Notice("/", "completed: yes, noon"):
            reached.set()

    scenario = loaded(tmp_path, "spawn_and_fork")
    reports = []

    async def run() -> None:
        reports.append(await replay(scenario, watch=watch))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.lowlevel.checkpoint()
        assert reached.wait(20)  # blocks the loop on purpose
    assert reports[0].problems == ()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_fifty_runs_leave_nothing_behind(tmp_path: Path) -> None:
    """Ten of them go well; in the others the worker ends before it says anything."""
    scenario = loaded(tmp_path, "plain_answer")
    brief = ExecLauncher("support.stand_ins.brief")
    states = []
    for number in range(25):
        launcher = brief if number % 5 else None
        async with anyio.create_task_group() as group:
            group.start_soon(partial(replay, scenario, launcher=launcher))
            group.start_soon(partial(replay, scenario, launcher=launcher))
        states.append((len(os.listdir("/proc/self/fd")), _threads()))
    assert len(set(states)) == 1, states


def _threads() -> int:
    """Count the threads but for those that anyio and trio keep for a while."""
    names = [thread.name for thread in threading.enumerate()]
    return sum(not name.startswith(("AnyIO", "Trio")) for name in names)


# --- cancelling ----------------------------------------------------------------


async def _cancelled_at(
    reached: threading.Event, director: Watched, **more: Any
) -> None:
    """Cancel a run as soon as something has happened in the hub's thread."""
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(run_tree, director, ExecLauncher(), **more))
            assert await anyio.to_thread.run_sync(reached.wait, 20)
            group.cancel_scope.cancel()
    assert group.cancel_scope.cancelled_caught


@pytest.mark.parametrize("moment", ["starting", "call 1"])
async def test_cancelling_a_run_ends_its_processes(tmp_path: Path, moment: str) -> None:
    reached = threading.Event()

    def watch(notice: Notice) -> None:
        if notice.text == moment:
            reached.set()

    director = Watched(load_scenario(hanging(tmp_path)))
    await _cancelled_at(reached, director, watch=watch)


async def test_cancelling_before_the_hub_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's thread gets as far as its loop only after it was told to stop."""
    is_told = threading.Event()
    abort = hub_thread_io.HubThread.abort

    def told(self: hub_thread_io.HubThread) -> None:
        abort(self)
        is_told.set()

    monkeypatch.setattr(hub_thread_io.HubThread, "abort", told)
    monkeypatch.setattr(
        hub_thread_io, "require_descriptors", lambda _: is_told.wait(20)
    )
    scenario = load_scenario(hanging(tmp_path))
    with anyio.fail_after(20):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await run_tree(Watched(scenario), ExecLauncher(), Bounds(60, 60))
        assert scope.cancelled_caught


async def test_cancelling_while_a_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = threading.Event()

    def on_start(launch: str, pid: int) -> None:
        if launch == "w2":
            reached.set()

    on_each_start(monkeypatch, on_start)
    director = Watched(loaded(tmp_path, "parallel_children"))
    await _cancelled_at(reached, director, bounds=Bounds(60, 60))
