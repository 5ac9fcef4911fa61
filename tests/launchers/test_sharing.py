"""One template for all who start alike; nothing of it is left when the last one goes."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import pytest

from nestling.driver import template_pool_io
from nestling.driver.template_io import Template
from nestling.driver.template_launcher_io import TemplateLauncher
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from support.launchers import SECONDS, at_work, stand_in
from support.processes import have_ended, needs_linux, parent_of, pidfds
from support.runs import on_each_start
from support.scenarios import MIXED

pytestmark = [needs_linux, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

MUTE: Final = stand_in("mute")


@pytest.fixture
def templates(monkeypatch: pytest.MonkeyPatch) -> list[Template]:
    """The templates that are started during a test."""
    made: list[Template] = []
    start = Template.__init__

    def noted(self: Template, *arguments: object) -> None:
        start(self, *arguments)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Template, "__init__", noted)
    return made


async def test_two_hubs_share_one(tmp_path: Path, templates: list[Template]) -> None:
    (tmp_path / "two").mkdir()
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as one:
        mine = await one.start()
        async with at_work(TemplateLauncher(entry=MUTE), tmp_path / "two") as two:
            other = await two.start()
            assert parent_of(mine.pid) == parent_of(other.pid) == one.template
        assert not mine.has_ended()
        template = one.template
        with pidfds(template) as fds:
            assert not have_ended(fds, 0.0)
    assert len(templates) == 1
    assert template_pool_io._pools == {}


async def test_runs_in_several_threads_share_one(templates: list[Template]) -> None:
    scenario = load_scenario(MIXED)
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait(SECONDS)
        report = anyio.run(partial(replay, scenario, launcher=TemplateLauncher()))
        assert report.problems == ()

    with TemplateLauncher():
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(anyio.to_thread.run_sync, run)
    assert len(templates) == 1


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_launcher_that_is_held_stays_warm(
    monkeypatch: pytest.MonkeyPatch, templates: list[Template], is_held: bool
) -> None:
    parents: set[int] = set()
    on_each_start(monkeypatch, lambda launch, pid: parents.add(parent_of(pid)))
    launcher, scenario = TemplateLauncher(), load_scenario(MIXED)

    async def twice() -> None:
        for _ in range(2):
            assert (await replay(scenario, launcher=launcher)).problems == ()

    if is_held:
        with launcher:
            await twice()
    else:
        await twice()
    assert len(parents) == len(templates) == (1 if is_held else 2)


async def test_who_starts_differently_has_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, templates: list[Template]
) -> None:
    (tmp_path / "two").mkdir()
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as one:
        await one.start()
        monkeypatch.setenv("VIRTUAL_ENV", "/another")
        async with at_work(TemplateLauncher(entry=MUTE), tmp_path / "two") as two:
            assert (await two.start()).launcher == "template"
            assert one.template != two.template
        monkeypatch.undo()


async def test_a_hub_that_goes_ends_its_workers_only(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    launcher = TemplateLauncher(entry=MUTE)
    async with at_work(launcher, tmp_path) as one:
        mine = await one.start()
        two = launcher.connect()
        async with at_work(launcher, tmp_path / "two") as bench:
            gone = await bench.start()
            with pidfds(gone.pid) as fds:
                # Its channel ends; whoever held its lifeline has forgotten to let go.
                bench.processes.remove(gone)
                bench.starter.close()
                assert have_ended(fds, SECONDS)
            gone.abandon()
            bench.starter = two
        assert not mine.has_ended()


async def test_a_hundred_forks_leave_nothing(tmp_path: Path) -> None:
    launcher = TemplateLauncher(entry=stand_in("brief"))
    async with at_work(launcher, tmp_path) as bench:
        await bench.run()
        own, its, _ = _counts(bench.template)
        for _ in range(100):
            assert (await bench.run()).code == 1
            counts = _counts(bench.template)
            # It may just be making the next spare, or not have got to it.
            assert counts.own == own
            assert counts.its <= its + SPARES_FDS
            assert counts.children <= 1
        assert bench.pool.generation == 1


class Counts(NamedTuple):
    """Our descriptors, the template's, and its children, zombies included."""

    own: int
    its: int
    children: int


SPARES_FDS = 3
"""So many descriptors of a template are a spare's: its seat's ends, its pidfd."""


def _counts(template: int) -> Counts:
    children = Path(f"/proc/{template}/task/{template}/children").read_text().split()
    own, its = (len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", template))
    return Counts(own, its, len(children))


async def test_many_modules_and_one_template(tmp_path: Path) -> None:
    modules = []
    for number in range(5):
        path = tmp_path / f"agent_{number}.py"
        path.write_text(f"number = {number}")
        modules.append(str(path))
    async with at_work(TemplateLauncher(modules, MUTE), tmp_path) as bench:
        started = [await bench.start(module=module) for module in modules]
        assert {parent_of(process.pid) for process in started} == {bench.template}
