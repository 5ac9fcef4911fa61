"""The fork that waits: used by the next worker, and nobody's problem if it is gone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

import anyio
import pytest

from nestling.driver.template_launcher_io import TemplateLauncher
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from support.launchers import SECONDS, Bench, at_work, stand_in
from support.processes import needs_linux, pidfds
from support.scenarios import MIXED

pytestmark = [needs_linux, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

MUTE: Final = stand_in("mute")


def spare_of(bench: Bench) -> int:
    """Wait until the template has a spare, which waits; return its pid."""
    template = bench.template
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        children = Path(f"/proc/{template}/task/{template}/children").read_text()
        workers = {process.pid for process in bench.processes}
        for pid in set(map(int, children.split())) - workers:
            if Path(f"/proc/{pid}/comm").read_text() == "nestling:spare\n":
                return pid
        os.sched_yield()
    raise AssertionError(f"template {template} makes no spare")


async def test_the_next_worker_is_the_spare(tmp_path: Path) -> None:
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        await bench.start()
        spare = spare_of(bench)
        process = await bench.start()
        assert process.pid == spare
        assert process.launcher == "template"


async def test_a_spare_that_was_ended_is_replaced(tmp_path: Path) -> None:
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        await bench.start()
        for _ in range(3):
            spare = spare_of(bench)
            with pidfds(spare) as _:
                os.kill(spare, signal.SIGKILL)
                process = await bench.start()
            assert process.launcher == "template"
            assert not process.has_ended() or process.pid == spare
        assert bench.pool.generation == 1


async def test_a_spare_ends_with_its_template(tmp_path: Path) -> None:
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        await bench.start()
        with pidfds(spare_of(bench)) as fds:
            os.kill(bench.template, signal.SIGKILL)
            await anyio.wait_readable(fds[0])


async def test_a_template_that_is_spent_keeps_none(tmp_path: Path) -> None:
    module = tmp_path / "agent.py"
    module.write_text("number = 1\n")
    launcher = TemplateLauncher([str(module)], MUTE)
    async with at_work(launcher, tmp_path) as bench:
        await bench.start(module=str(module))
        with pidfds(spare_of(bench)) as fds:
            module.write_text("number = 22\n")
            assert (await bench.start(module=str(module))).launcher == "exec"
            await anyio.wait_readable(fds[0])


async def test_a_replay_from_spares(tmp_path: Path) -> None:
    with TemplateLauncher() as launcher:
        for _ in range(3):
            report = await replay(load_scenario(MIXED), launcher=launcher)
            assert report.problems == ()
            assert report.launcher == "template"
