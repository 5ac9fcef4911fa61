"""Live runs that are stopped at a place, recorded; and their replays, as both kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import anyio
import msgspec

from nestling.driver import Driver
from nestling.driver.director import (
    Answer,
    Asked,
    CallRequest,
    Creation,
    Delegation,
    EncodedChunks,
    Loss,
    Lost,
    Real,
    Recorded,
    Resume,
    Stops,
    ToolRequest,
)
from nestling.driver.exits import Log
from nestling.driver.hub_io import Bounds
from nestling.driver.launcher_io import Launcher
from nestling.driver.live_director import LiveDirector
from nestling.harness import ScriptedModel
from nestling.harness.harvest import harvest, read_harvest
from nestling.harness.replay_director import Cast
from nestling.harness.replay_io import replay
from nestling.harness.scenario import Scenario
from nestling.harness.stops import holds_of
from nestling.harness.support import hindrances
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject
from nestling.wire.brief import decode_brief, encode_brief
from support.live import SECONDS, reference
from support.replays import contents, live_contents, recorded_contents, replayed, seeded


class Plan(NamedTuple):
    """How a live run is stopped.

    Attributes:
        stops: where, by spawn path.
        cut: why a session's call is cancelled before its first chunk, by spawn path and
            the number of the call.
        serves: tools have results at once, and do not run.
        options: what the root's code is told besides.
    """

    stops: Mapping[str, Stops] = {}
    cut: Mapping[tuple[str, int], JsonObject] = {}
    serves: bool = False
    options: JsonObject | None = None


class Stopping(LiveDirector):
    """A live director that stops sessions as a plan says; roots go on after a death."""

    plan = Plan()

    def on_root(self) -> Creation:
        return self._stopped("/", super().on_root())

    def _stopped(self, path: str, creation: Creation) -> Creation:
        """Stop a session; it says all that it has logged where that is."""
        stops = self.plan.stops.get(path, Stops())
        brief = msgspec.structs.replace(
            decode_brief(creation.brief), holds=holds_of(stops)
        )
        return creation._replace(stops=stops, brief=encode_brief(brief))

    def on_delegate(self, delegation: Delegation) -> Real:
        real = super().on_delegate(delegation)
        return Real(self._stopped(delegation.path, real.creation))

    def on_stream(self, call: CallRequest) -> Any:
        cause = self.plan.cut.get((self._path_of[call.session_id], call.number))
        if cause is None:
            return Asked(call.provider)
        return Answer(EncodedChunks(()), cut=cause)

    def on_tool(self, request: ToolRequest) -> Any:
        if not self.plan.serves:
            return super().on_tool(request)
        block = {"type": "tool-result", "toolCallId": request.call_id}
        return Recorded({"block": {**block, "content": [], "isError": False}})

    def on_lost(self, session_id: str, loss: Loss) -> Lost:
        is_root = self._path_of[session_id] == "/"
        return Lost(resume=Resume() if is_root else None)


class Stopped(NamedTuple):
    """A live run that was stopped, and how to replay it.

    Attributes:
        agent: the root's reference.
        prompts: what the user said.
        marks: the file in which tools leave their marks.
        told: what the root's code was told besides.
    """

    logs: Mapping[str, Log]
    agent: str
    prompts: Sequence[str]
    marks: Path
    told: JsonObject

    @property
    def options(self) -> JsonObject:
        return {"marks": str(self.marks), **self.told}

    def scenario(self) -> Scenario:
        return read_harvest("run", harvest(self.logs))

    def ran(self) -> list[str]:
        """The tools that ran since the last look."""
        text = self.marks.read_text() if self.marks.exists() else ""
        self.marks.unlink(missing_ok=True)
        return sorted(text.split())

    def events(self, path: str = "/") -> Sequence[Event]:
        return self.logs[path].events

    def after(self, kind: str, count: int = 1, path: str = "/") -> int:
        """How long a session's log was after so many own events of a type."""
        log = self.logs[path]
        own = log.events[log.header.seed_length :]
        return [event.seq + 1 for event in own if event.type == kind][count - 1]

    def kinds(self, path: str = "/") -> list[str]:
        """The types of a session's own events, without chunks."""
        log = self.logs[path]
        own = log.events[log.header.seed_length :]
        return [event.type for event in own if event.type != "assistant/chunk"]

    def reasons(self, path: str = "/") -> list[str]:
        """Why each turn of a session ended."""
        found: list[JsonObject] = [
            event.data["reason"]
            for event in self.events(path)
            if event.type == "turn/end"
        ]
        return [each.get("reason", each)["kind"] for each in found]

    def cast(self, *, runs_tools: bool = False) -> Cast:
        prompts = tuple([{"type": "text", "text": each}] for each in self.prompts)
        return Cast(self.agent, prompts, self.options, runs_tools)


async def stopped(
    agent: str,
    model: ScriptedModel,
    plan: Plan,
    marks: Path,
    launcher: Launcher,
    prompts: Sequence[str] = ("go", "go on"),
) -> Stopped:
    """Run an agent of ``tests/live/agents``, stopping it where a plan says."""
    director = type("Planned", (Stopping,), {"plan": plan})
    run_of = Stopped({}, reference(agent), prompts, marks, plan.options or {})
    with (
        anyio.fail_after(SECONDS),
        mock.patch("nestling.driver.driver_io.LiveDirector", director),
    ):
        async with Driver(providers={"m": model}, launcher=launcher) as driver:
            run = await driver.start(run_of.agent, prompts, options=run_of.options)
            await run.result()
            logs = await run.close()
    return run_of._replace(logs=logs)


async def check(run: Stopped, launcher: Launcher) -> None:
    """It replays as a tape and with its agent, whose stopped tools do not run again."""
    scenario = check_tape(run)
    run.ran()
    await check_processes(scenario, launcher, None)
    await check_processes(scenario, launcher, run.cast())
    await check_processes(scenario, launcher, run.cast(runs_tools=True))


def check_tape(run: Stopped, schedules: int = 3) -> Scenario:
    """It replays as a tape, on any schedule."""
    scenario = run.scenario()
    assert hindrances(scenario) == []
    for seed in range(schedules):
        found = replayed(scenario, seeded(seed))
        assert found.problems == [], found.problems
        assert found.runner.stalled == []
        assert live_contents(found) == recorded_contents(scenario)
    return scenario


async def check_processes(
    scenario: Scenario, launcher: Launcher, cast: Cast | None
) -> None:
    """It replays across processes."""
    with anyio.fail_after(SECONDS):
        report = await replay(scenario, Bounds(stall=15.0), launcher, cast=cast)
    assert list(report.problems) == [], report.problems
    live = {path: contents(log.events) for path, log in report.logs.items()}
    assert live == recorded_contents(scenario)
