"""Trees come out as recorded, whatever starts their workers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from nestling.driver.launcher_io import WorkerProcess
from nestling.driver.workers_io import Workers
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from support.launchers import LAUNCHERS, a_launcher
from support.processes import needs_linux
from support.runs import loaded
from support.scenarios import MIXED

pytestmark = [
    needs_linux,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.parametrize("launcher", LAUNCHERS),
]

SPREAD: Final = (
    "first_turn_fork",
    "parallel_children",
    "nested_forks",
    "aborted_between_calls",
    "crashed_tool",
    "unlucky_children",
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Which launcher each worker of a test came from, and why."""
    found: list[tuple[str, str | None]] = []
    original = Workers._started

    def noted(self: Workers, launch: str, process: WorkerProcess) -> None:
        original(self, launch, process)
        found.append(self.births[launch][1:])

    monkeypatch.setattr(Workers, "_started", noted)
    return found


async def test_the_example(
    launcher: str, started: list[tuple[str, str | None]]
) -> None:
    report = await replay(load_scenario(MIXED), launcher=a_launcher(launcher))
    assert report.problems == ()
    assert report.launcher == launcher
    assert started == [(launcher, None)] * 3


@pytest.mark.parametrize("name", SPREAD)
async def test_composed_trees(
    launcher: str, tmp_path: Path, name: str, started: list[tuple[str, str | None]]
) -> None:
    scenario = loaded(tmp_path, name)
    report = await replay(scenario, launcher=a_launcher(launcher))
    assert report.problems == ()
    assert started == [(launcher, None)] * len(scenario.sessions)
