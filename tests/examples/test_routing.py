"""Who gets which answer: swapped twins, and every call of the fan-out, counted.

``NESTLING_EXAMPLES`` says on how many schedules (100 by default).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from nestling.driver.instructions import Send
from nestling.harness import ReplayReport, cast_of, replay
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario
from nestling.harness.scenario_io import load_scenario
from nestling.harness.tape_runner import Choose, TapeRunner
from nestling.session.jsontext import JsonObject, dumps, loads
from nestling.wire.messages import Chunks
from support.examples import FOLDER, example, recorded, swapped, timeless
from support.processes import needs_linux
from support.replays import seeded

FIRST, SECOND = "/t1s1b1", "/t1s1b2"
SCHEDULES: Final = int(os.environ.get("NESTLING_EXAMPLES", "100"))
BLOCKS, CALLS = 2, 19

Served: TypeAlias = dict[tuple[str, int], list[JsonObject]]
"""The chunks of calls, by the session's path and the call's number."""

# --- twins ---------------------------------------------------------------------


def swap(folder: Path, *names: str) -> Scenario:
    """Copy ``twins`` with the two answers swapped in some of its logs."""
    shutil.copytree(FOLDER / "twins", folder)
    for name in names:
        log = folder / name
        log.write_text(swapped(log.read_text()))
    return load_scenario(folder)


def outputs(report: ReplayReport) -> dict[str, str]:
    found = {path: account.outcome for path, account in report.accounts.items()}
    return {path: outcome.text for path, outcome in found.items() if outcome}


pairs = pytest.mark.parametrize("agent", [None, "tape"])
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@needs_linux
@on_asyncio
@pairs
async def test_swapped_answers_swap_exactly_the_outputs_of_the_twins(
    agent: str | None, tmp_path: Path
) -> None:
    """Each twin takes the answer at its place; their parent is told what they said.

    The children's logs were swapped and the parent's was not. So the parent, and it
    alone, is not as recorded: at its first result, which has the other twin's answer.
    """
    before = await replay(example("twins"), cast=cast_of(FOLDER / "twins", agent))
    folder = tmp_path / "twins"
    scenario = swap(folder, "session.1.jsonl", "session.2.jsonl")
    after = await replay(scenario, cast=cast_of(folder, agent))
    assert before.problems == ()
    was, now = outputs(before), outputs(after)
    assert (now[FIRST], now[SECOND]) == (was[SECOND], was[FIRST])
    assert was[FIRST] != was[SECOND]
    live, planned = timeless(after.logs), recorded(scenario)
    assert {path for path in live if live[path] != planned[path]} == {"/"}
    (problem,) = after.problems
    kind = "request-differs" if agent is None else "log-differs"
    assert (problem.kind, problem.path) == (kind, "/")
    events = scenario.root.recording.events
    result = next(event for event in events if event.type == "tool/result")
    where = "call 2 (" if agent is None else f"event {result.seq}: "
    assert problem.message.startswith(where)
    assert was[FIRST] in problem.message
    assert now[FIRST] in problem.message


@needs_linux
@on_asyncio
@pairs
async def test_swapped_everywhere_the_twins_replay(
    agent: str | None, tmp_path: Path
) -> None:
    """With what the parent was told swapped, too, it is another right recording."""
    folder = tmp_path / "twins"
    scenario = swap(folder, *(path.name for path in (FOLDER / "twins").glob("*.jsonl")))
    report = await replay(scenario, cast=cast_of(folder, agent))
    assert report.problems == ()
    committed = recorded(example("twins"))
    live = timeless(report.logs)
    assert {path: swapped(str(live[path])) for path in live} == {
        path: str(log) for path, log in committed.items()
    }
    # Of the root nothing else has changed: it says the same.
    assert outputs(report)["/"] == "One saw a heron, the other a tern."


# --- fan-out -------------------------------------------------------------------


class Counting(TapeRunner):
    """Keeps what each session is served, as it arrives at its worker.

    Attributes:
        served: what each call got.
    """

    def __init__(self, director: ReplayDirector, choose: Choose) -> None:
        super().__init__(director, choose)
        self.served: Served = {}

    def _deliver(self, send: Send) -> None:
        if isinstance(send.message, Chunks):
            path = self.hub.tree.of_launch(send.launch).path
            key = (path, send.message.call)
            self.served.setdefault(key, []).extend(loads(send.body))
        super()._deliver(send)


class Crossed(Counting):
    """Hands two sessions what was meant for the other."""

    def _deliver(self, send: Send) -> None:
        path = self.hub.tree.of_launch(send.launch).path
        other = {"/t2s1b1": "/t2s1b5", "/t2s1b5": "/t2s1b1"}.get(path)
        if isinstance(send.message, Chunks) and other is not None:
            send = send._replace(body=dumps(ANSWERS[other, 0]))
        super()._deliver(send)


def answers(scenario: Scenario) -> Served:
    """Return the chunks of each call as its own log has them."""
    found: Served = {}
    for path, session in scenario.by_path.items():
        number = 0
        for event in session.recording.events[session.seed_length :]:
            if event.type == "assistant/chunk":
                chunk = event.data["chunk"]
                found.setdefault((path, number), []).append(chunk)
                number += chunk["type"] == "finish"
    return found


FAN_OUT: Final = example("fan-out")
ANSWERS: Final = answers(FAN_OUT)
OWNERS: Final = {dumps(chunks): key for key, chunks in ANSWERS.items()}


def misrouted(run: Counting) -> int:
    """Return how many calls were served the answer of another call."""
    return sum(OWNERS[dumps(chunks)] != key for key, chunks in run.served.items())


def test_every_answer_has_one_owner() -> None:
    """Three calls of the root's and one of each child's, no two answers alike."""
    assert len(OWNERS) == len(ANSWERS) == CALLS


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_call_of_the_fan_out_gets_another_ones_answer(block: int) -> None:
    seeds = range(block * SCHEDULES // BLOCKS, (block + 1) * SCHEDULES // BLOCKS)
    checked, orders = 0, set()
    for seed in seeds:
        director = ReplayDirector(FAN_OUT)
        run = Counting(director, seeded(seed))
        run.run()
        director.close()
        assert (misrouted(run), director.ledger.problems) == (0, [])
        checked += len(run.served)
        orders.add(tuple(run.served))
    assert checked == len(seeds) * CALLS
    assert len(orders) > len(seeds) * 0.9, "else the schedules do not differ"


def test_a_call_that_got_another_ones_answer_would_be_counted() -> None:
    director = ReplayDirector(FAN_OUT)
    run = Crossed(director, seeded(0))
    run.run()
    director.close()
    assert misrouted(run) == 2
    paths = {problem.path for problem in director.ledger.problems}
    assert {"/t2s1b1", "/t2s1b5"} <= paths
