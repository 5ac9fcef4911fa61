"""The clock that a test owns, by itself and under a scripted model."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from nestling.driver import Driver
from nestling.harness import Answer, OwnedClock, ScriptedModel
from support.processes import needs_linux


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_sleepers_wake_when_their_time_has_come() -> None:
    clock = OwnedClock()
    woken: list[float] = []

    async def sleeps(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    async with anyio.create_task_group() as group:
        for seconds in (3.0, 1.0, 2.0):
            group.start_soon(sleeps, seconds)
        await clock.sleepers(3)
        clock.advance(1.0)
        while woken != [1.0]:
            await anyio.lowlevel.checkpoint()
        clock.advance(0.5)
        clock.advance(0.5)
        while woken != [1.0, 2.0]:
            await anyio.lowlevel.checkpoint()
        assert clock.now == 2.0
        group.cancel_scope.cancel()
    await clock.sleep(0)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_it_goes_forward_only(seconds: float) -> None:
    with pytest.raises(ValueError, match="a clock goes forward"):
        OwnedClock().advance(seconds)


@needs_linux
async def test_a_model_that_takes_an_hour(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text("from nestling.worker import Agent\nplain = Agent('any/model')\n")
    clock = OwnedClock()
    model = ScriptedModel([Answer("Late.", delay=3600)], sleep=clock.sleep)
    async with Driver(providers={"*": model}) as driver:
        run = await driver.start(f"{agent}:plain", "Go.")
        with anyio.fail_after(50):
            await clock.sleepers()
            clock.advance(3600)
            result = await run.result()
    assert result.text == "Late."
