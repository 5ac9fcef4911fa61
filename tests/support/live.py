"""Live agents in tests: run to their end, and what they have left looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import pytest

from nestling.driver import (
    Driver,
    ExecLauncher,
    Limits,
    Log,
    Provider,
    RunResult,
    TemplateLauncher,
    ladder,
)
from nestling.driver.hub_io import RunEnd
from nestling.driver.launcher_io import Launcher
from nestling.harness import Answer, ScriptedModel
from nestling.harness.harvest import harvest, read_harvest
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario
from nestling.harness.scripted_model_io import Answers
from nestling.harness.support import hindrances
from nestling.harness.tape_runner import TapeRunner
from nestling.session.jsontext import JsonObject

AGENTS: Final = Path(__file__).resolve().parent.parent / "live" / "agents"

MODULES: Final = (
    *(str(path) for path in sorted(AGENTS.glob("*.py"))),
    "nestling.worker.side_call",
)
"""What the template of these tests has imported."""

SECONDS: Final = 30.0
"""Within which everything that is waited for comes."""


def warm() -> TemplateLauncher:
    """Return a launcher whose template knows the agents of these tests."""
    return TemplateLauncher(MODULES)


def launcher_named(name: str) -> Launcher:
    """Return a launcher, ``exec`` or ``template``."""
    return ExecLauncher() if name == "exec" else warm()


def shorten_ladder(patch: pytest.MonkeyPatch) -> None:
    """Have those climb the ladder quickly who heed nothing that can be refused.

    The last rung keeps its time: what was killed has to be gone before that is over.
    """
    rungs = tuple(rung._replace(seconds=0.3) for rung in ladder.RUNGS[:-1])
    patch.setattr(ladder, "RUNGS", (*rungs, ladder.RUNGS[-1]))


def called(name: str, arguments: str = "{}", call_id: str = "c1") -> JsonObject:
    """A tool call, with arguments as a model wrote them."""
    return {"type": "tool-call", "id": call_id, "name": name, "arguments": arguments}


def calling(*calls: JsonObject, text: str = "") -> Answer:
    """An answer that ends with tool calls."""
    return Answer(text, calls=calls)


class Ran(NamedTuple):
    """A run that has ended.

    Attributes:
        results: what the root came to after each prompt.
        logs: what each session has left, by spawn path.
        model: who answered, if a scripted model did.
        end: how the run ended.
    """

    results: list[RunResult]
    logs: Mapping[str, Log]
    model: ScriptedModel
    end: RunEnd

    @property
    def result(self) -> RunResult:
        """What the root came to in the end."""
        return self.results[-1]

    def said(self, path: str = "/", kind: str = "agent") -> list[str]:
        """The texts that a session's code appended."""
        return [
            "".join(block["text"] for block in event.data["content"])
            for event in self.logs[path].events
            if event.type == "user/message" and event.data["source"]["kind"] == kind
        ]

    def data(self, kind: str, path: str = "/") -> list[Any]:
        """The data of a session's events of one type."""
        log = self.logs[path]
        own = log.events[log.header.seed_length :]
        return [event.data for event in own if event.type == kind]

    def tool_results(self, path: str = "/") -> list[tuple[str, str, bool]]:
        """Each tool result of a session: which call, its text, whether it failed."""
        return [
            (
                block["toolCallId"],
                "".join(part["text"] for part in block["content"]),
                block["isError"],
            )
            for data in self.data("tool/result", path)
            for block in data["message"]["content"]
        ]

    def reasons(self, path: str = "/") -> list[JsonObject]:
        """Why each turn of a session ended."""
        return [data["reason"] for data in self.data("turn/end", path)]

    def scenario(self) -> Scenario:
        """Read what the run has left as a recording, which checks its digests."""
        return read_harvest("run", harvest(self.logs))


async def ran(
    agent: str,
    answers: Answers | ScriptedModel = (),
    *prompts: str,
    providers: Mapping[str, Provider] | None = None,
    launcher: Launcher | None = None,
    limits: Limits | None = None,
    options: JsonObject | None = None,
    seconds: float = SECONDS,
) -> Ran:
    """Run an agent of ``tests/live/agents`` on some prompts, one after the other.

    Args:
        agent: ``module:name``, the module without its ``.py``.
        answers: of the model ``m``.
        prompts: what the user says; ``go`` by default.
        providers: who else answers.
        launcher: how workers start.
        limits: bounds of the run.
        options: what the agent's code is told.
        seconds: within which it ends.
    """
    model = answers if isinstance(answers, ScriptedModel) else ScriptedModel(answers)
    first, *others = prompts or ("go",)
    with anyio.fail_after(seconds):
        async with Driver(
            providers={"m": model, **(providers or {})},
            launcher=warm() if launcher is None else launcher,
            limits=limits,
        ) as driver:
            run = await driver.start(reference(agent), first, options=options)
            results = [await run.result()]
            for prompt in others:
                await run.send(prompt)
                results.append(await run.result())
            logs = await run.close()
    assert run.end is not None
    return Ran(results, logs, model, run.end)


def reference(agent: str) -> str:
    """Return the reference of an agent of ``tests/live/agents``; others stay."""
    module, _, name = agent.partition(":")
    path = AGENTS / f"{module}.py"
    return f"{path}:{name}" if path.is_file() else agent


def check_tape(run: Ran, *paths: str) -> Scenario:
    """What was logged is what a tape of it replays; the tree has these sessions."""
    scenario = run.scenario()
    assert hindrances(scenario) == []
    assert scenario.by_path.keys() == {"/", *paths}
    director = ReplayDirector(scenario)
    TapeRunner(director).run()
    director.close()
    assert director.ledger.problems == [], director.ledger.problems
    return scenario


def text_of(blocks: Sequence[JsonObject]) -> str:
    """The text of content blocks."""
    return "".join(block["text"] for block in blocks if block["type"] == "text")
