"""Runs that a user cancels at a moment of the user's: what the store has replays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nestling.driver.launcher_io import Launcher
from support.cancelled import MOMENTS, cancelled
from support.live import warm
from support.processes import needs_linux
from support.stopped import check

pytestmark = needs_linux


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    """A template that all runs of this module share."""
    with warm() as launcher:
        yield launcher


@pytest.mark.parametrize("when", MOMENTS)
async def test_cancelled(when: str, tmp_path: Path, launcher: Launcher) -> None:
    """As a tape, with the agent, and with its tools."""
    moment = MOMENTS[when]
    run = await cancelled(moment, tmp_path, launcher)
    assert {path: run.reasons(path) for path in run.logs} == moment.reasons
    await check(run, launcher)
