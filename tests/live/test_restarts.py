"""Workers that die and are started again: never by default, and so often at most."""

from __future__ import annotations

import anyio
import pytest

from nestling.driver import Driver, Limits
from nestling.driver.director import Prompt
from nestling.driver.started_run_io import RunResult, StartedRun
from nestling.harness import ScriptedModel
from nestling.harness.harvest import harvest, read_harvest
from nestling.harness.replay_director import Cast
from support.launchers import LAUNCHERS
from support.live import SECONDS, launcher_named, reference, text_of, warm
from support.processes import needs_linux
from support.stopped import check_processes

pytestmark = needs_linux


async def ran(agent: str, times: int, limits: Limits) -> tuple[StartedRun, RunResult]:
    model = ScriptedModel(lambda request: "done")
    with anyio.fail_after(SECONDS):
        async with Driver(
            providers={"m": model}, launcher=warm(), limits=limits
        ) as driver:
            options = {"times": times}
            run = await driver.start(
                reference(f"stubborn:{agent}"), "work", options=options
            )
            result = await run.result()
            await run.close()
    return run, result


def reasons(run: StartedRun, path: str = "/") -> list[str]:
    events = run.logs[path].events
    return [e.data["reason"]["kind"] for e in events if e.type == "turn/end"]


async def test_never_by_default() -> None:
    run, result = await ran("dies", 1, Limits())
    assert result.stop_reason == "error"
    assert "SIGKILL" in str(result.diagnostic)
    assert reasons(run) == ["interrupted"]


async def test_it_is_told_again_what_it_had_not_finished() -> None:
    run, result = await ran("dies", 2, Limits(restarts=2))
    assert (result.stop_reason, result.text) == ("completed", "done")
    assert reasons(run) == ["interrupted", "interrupted", "completed"]
    users = [e.data for e in run.logs["/"].events if e.type == "user/message"]
    told = [text_of(d["content"]) for d in users if d["source"]["kind"] == "user"]
    assert told == ["work"] * 3
    assert run.losses == []


@pytest.mark.parametrize("agent", ["dies", "has_dying_child"])
async def test_so_often_and_no_more(agent: str) -> None:
    run, result = await ran(agent, 9, Limits(restarts=1))
    path = "/" if agent == "dies" else "/t1s0d0"
    assert reasons(run, path) == ["interrupted", "interrupted"]
    assert [path for path, _ in run.losses] == [path]
    if agent == "dies":
        assert result.stop_reason == "error"
    else:
        said = [e.data for e in run.logs["/"].events if e.type == "user/message"]
        assert text_of(said[-1]["content"]).startswith("error: ")


async def test_a_child() -> None:
    run, _ = await ran("has_dying_child", 1, Limits(restarts=1))
    assert reasons(run, "/t1s0d0") == ["interrupted", "completed"]
    said = [e.data for e in run.logs["/"].events if e.type == "user/message"]
    assert text_of(said[-1]["content"]) == "completed: done"
    assert run.losses == []


REPLAYED = [("dies", 1), ("dies", 2), ("has_dying_child", 2)]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(("agent", "times"), REPLAYED)
async def test_a_replay_of_restarts(agent: str, times: int, launcher: str) -> None:
    """As a tape, and with the agent: it is told again what it was told again then."""
    run, _ = await ran(agent, times, Limits(restarts=2))
    scenario = read_harvest("run", harvest(run.logs))
    prompt: Prompt = [{"type": "text", "text": "work"}]
    played = Cast(reference(f"stubborn:{agent}"), (prompt,), {"times": times})
    for cast in (None, played):
        await check_processes(scenario, launcher_named(launcher), cast)


def test_how_often_makes_sense() -> None:
    with pytest.raises(ValueError, match="restarts must be at least 0, found -1"):
        Limits(restarts=-1).checked()
