"""Every composed tree replays event for event, on every schedule that was tried."""

from __future__ import annotations

import pytest

from compose.trees import TREES
from nestling.harness.scenario import Scenario, build_scenario
from nestling.harness.support import hindrances
from support.logs import Ask, Log, recordings
from support.replays import (
    Replay,
    live_contents,
    recorded_contents,
    replayed,
    scenario_of,
    seeded,
)

NOT_REPLAYED = "many_children_of_one_call"
REPLAYED = [name for name in TREES if name != NOT_REPLAYED]
CONCURRENT = ["parallel_children", "nested_forks", "unlucky_children"]
"""The trees in which several sessions run at one time."""


def assert_as_recorded(replay: Replay) -> None:
    assert replay.problems == []
    assert replay.runner.stalled == []
    assert live_contents(replay) == recorded_contents(replay.scenario)
    for session in replay.scenario.sessions:
        account = replay.account(session.path or "")
        assert account.id == session.id
        assert account.served == len(session.script)
        assert account.logged == len(session.recording.events)
        assert account.seed_length == session.seed_length
        assert account.has_settled


@pytest.fixture(params=[False, True], ids=["full", "projected"])
def is_projected(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def scenario(name: str, is_projected: bool) -> Scenario:
    return scenario_of(TREES[name](), projected=is_projected)


@pytest.mark.parametrize("name", REPLAYED)
def test_a_tree_comes_out_as_recorded(name: str, is_projected: bool) -> None:
    recorded = scenario(name, is_projected)
    assert hindrances(recorded) == []
    assert_as_recorded(replayed(recorded))


@pytest.mark.parametrize("name", REPLAYED)
def test_a_tree_comes_out_on_other_schedules(name: str) -> None:
    recorded = scenario(name, is_projected=False)
    for seed in range(5):
        assert_as_recorded(replayed(recorded, seeded(seed)))
    # The last possible thing first: what is late on every other schedule is early.
    assert_as_recorded(replayed(recorded, lambda count: count - 1))


@pytest.mark.parametrize("name", CONCURRENT)
def test_concurrent_children_come_out_on_200_schedules(
    name: str, is_projected: bool
) -> None:
    recorded = scenario(name, is_projected)
    # The two differ in times and seqs, which no schedule looks at.
    for seed in range(20 if is_projected else 200):
        assert_as_recorded(replayed(recorded, seeded(seed)))


def test_the_schedules_differ() -> None:
    """Else the tests above try one schedule again and again."""
    recorded = scenario("parallel_children", is_projected=False)
    orders = set()
    for seed in range(40):
        counts: list[int] = []
        choose = seeded(seed)

        def noted(count: int, counts: list[int] = counts) -> int:
            counts.append(choose(count))  # noqa: B023  # called in this pass only
            return counts[-1]

        replayed(recorded, noted)
        orders.add(tuple(counts))
    assert len(orders) == 40


def test_replaying_twice_gives_equal_logs() -> None:
    recorded = scenario("nested_forks", is_projected=False)
    one, other = replayed(recorded, seeded(1)), replayed(recorded, seeded(1))
    logs = [
        {path: [e.row() for e in log] for path, log in each.runner.logs().items()}
        for each in (one, other)
    ]
    assert logs[0] == logs[1]


def test_a_child_that_code_delegated_is_told_of() -> None:
    place = {"turn": 1, "step": 1, "context": "spawn", "key": "mine"}
    root = Log("root").answered("hi", "hello")
    child = root.child("child", 1, spawnedBy=place).answered("go", "gone")
    scenario = build_scenario("tree", recordings(root, child))
    (problem,) = hindrances(scenario)
    assert (problem.kind, problem.path) == ("not-supported", "/t1s1kmine")
    assert "delegated by code" in problem.message


def test_a_further_child_of_one_call_is_told_of() -> None:
    """A delegating tool makes one child; what made the other is not known."""
    root = Log("root").turn("go").ask(Ask("work")).say("done").end()
    place = {"turn": 1, "step": 1, "block": 1, "context": "spawn"}
    children = [
        root.child(f"c{n}", n, spawnedBy={**place, "n": n}).answered("work", "ok")
        for n in (0, 1)
    ]
    (problem,) = hindrances(build_scenario("tree", recordings(root, *children)))
    assert (problem.kind, problem.path) == ("not-supported", "/t1s1b1.1")
    assert "delegation 2 of the tool subagent" in problem.message


def test_children_of_a_tool_that_is_not_run_are_told_of() -> None:
    problems = hindrances(scenario(NOT_REPLAYED, is_projected=False))
    assert [(problem.kind, problem.path) for problem in problems] == [
        ("not-supported", "/t1s1b0"),
        ("not-supported", "/t1s1b0.1"),
        ("not-supported", "/t1s1b0.2"),
    ]
    assert "delegation 2 of the tool fan_out" in problems[1].message
