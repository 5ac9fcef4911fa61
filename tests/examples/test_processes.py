"""The examples across processes: replayed in every way, and recorded again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nestling.harness import cast_of, record, replay
from nestling.harness.scenario_io import load_scenario
from support.examples import (
    EXAMPLES,
    FOLDER,
    copied,
    example,
    recorded,
    swapped,
    timeless,
)
from support.launchers import LAUNCHERS, a_launcher
from support.processes import needs_linux

pytestmark = [needs_linux, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("agent", [None, "tape"])
@pytest.mark.parametrize("name", EXAMPLES)
async def test_a_replay(name: str, agent: str | None, launcher: str) -> None:
    scenario, cast = example(name), cast_of(FOLDER / name, agent)
    assert (cast is None) == (agent == "tape")
    report = await replay(scenario, launcher=a_launcher(launcher), cast=cast)
    assert report.problems == ()
    assert (report.launcher, report.fallbacks) == (launcher, [])
    assert timeless(report.logs) == recorded(scenario)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", EXAMPLES)
async def test_a_recording_is_the_committed_one_but_for_times(
    name: str, launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The folder of the provider's module is put on it.
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = copied(name, tmp_path)
    report = await record(folder, launcher=a_launcher(launcher))
    assert report.problems == ()
    again = recorded(load_scenario(folder))
    committed = recorded(example(name))
    if name == "twins" and again != committed:  # it is a race who is first
        assert swapped(str(again)) == str(committed)
    else:
        assert again == committed
