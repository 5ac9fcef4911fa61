"""What a live agent logs is what a tape of it replays, and the agent itself again."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest

from nestling.driver import Driver, Request
from nestling.driver.started_run_io import prompt_blocks
from nestling.harness import Answer, Cast, ScriptedModel, replay
from nestling.harness.harvest import harvest, read_harvest
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario
from nestling.harness.scripted_model_io import fork_call, spawn_call, tool_call
from nestling.harness.tape_runner import TapeRunner
from nestling.session.jsontext import JsonObject
from support.live import SECONDS, reference, warm

PROMPTS = ("one", "two", "three")


def program(chance: random.Random) -> list[list[Any]]:
    """Draw what an agent does in a turn."""
    verbs: list[list[Any]] = [
        ["stream", True],
        ["stream", True],
        ["stream", chance.random() < 0.8],
        ["append", "a note"],
        ["replace", chance.randint(1, 4)],
        ["delegate", chance.random() < 0.5],
        ["fan", chance.randint(2, 3)],
        ["ask"],
    ]
    drawn = [chance.choice(verbs) for _ in range(chance.randint(1, 6))]
    return [*drawn, ["raise"]] if chance.random() < 0.2 else drawn


class Model:
    """Answers as it likes, but with the same to the same seed and count of calls."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def __call__(self, request: Request) -> Answer:
        """Answer."""
        chance = self._chance
        text = f"said {chance.randint(0, 99)}"
        thought = "hm" if chance.random() < 0.3 else ""
        calls = self._calls() if request.tools and chance.random() < 0.6 else []
        answer = Answer(text if chance.random() < 0.9 else "", thought, calls)
        if chance.random() < 0.1:
            return answer.fails(chance.choice(["SERVER", "AUTH"]), after=0)
        if chance.random() < 0.1:
            return Answer(text, finish="max-tokens")
        return answer

    def _calls(self) -> list[JsonObject]:
        every = [
            tool_call("add", {"a": 1}),
            tool_call("add", {"a": "x"}),
            tool_call("asks", {"question": "why"}),
            tool_call("nothing", {}),
            spawn_call("label", "work"),
            fork_call("label", "work"),
            tool_call("subagent", {"prompt": 5}),
        ]
        return self._chance.choices(every, k=self._chance.randint(1, 3))


async def recorded(seed: int) -> tuple[Scenario, JsonObject]:
    """Run a random program; return what it left, and its options."""
    chance = random.Random(seed)
    options: JsonObject = {"programs": [program(chance) for _ in PROMPTS]}
    model = ScriptedModel(Model(seed))
    async with Driver(providers={"m": model}, launcher=warm()) as driver:
        agent = reference("programs:root")
        run = await driver.start(agent, PROMPTS, session_id="r", options=options)
        await run.result()
        logs = await run.close()
    assert run.losses == []
    return read_harvest("drawn", harvest(logs)), options


@pytest.mark.parametrize("seed", range(8))
async def test_a_random_program(seed: int) -> None:
    with anyio.fail_after(SECONDS):
        scenario, options = await recorded(seed)
        for schedule in range(3):
            director = ReplayDirector(scenario)
            TapeRunner(director, random.Random(schedule).randrange).run()
            director.close()
            assert director.ledger.problems == []
        prompts = tuple(prompt_blocks(prompt) for prompt in PROMPTS)
        for runs_tools in (False, True):
            cast = Cast(reference("programs:root"), prompts, options, runs_tools)
            report = await replay(scenario, launcher=warm(), cast=cast)
            assert report.problems == ()
