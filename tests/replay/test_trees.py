"""Every composed tree replays event for event, on every schedule that was tried."""

from __future__ import annotations

import pytest

from compose.trees import TREES
from nestling.harness.plan import make_plan
from nestling.harness.scenario import Scenario, build_scenario
from nestling.harness.support import hindrances
from nestling.worker.tape import (
    Delegate,
    Settle,
    StepEnd,
    StepStart,
    TurnStart,
    decode_tape,
)
from support.logs import Log, recordings
from support.replays import (
    Replay,
    live_contents,
    recorded_contents,
    replayed,
    scenario_of,
    seeded,
)

CONCURRENT = [
    "parallel_children",
    "nested_forks",
    "unlucky_children",
    "many_children_of_one_call",
]
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


@pytest.mark.parametrize("name", TREES)
def test_a_tree_comes_out_as_recorded(name: str, is_projected: bool) -> None:
    recorded = scenario(name, is_projected)
    assert hindrances(recorded) == []
    assert_as_recorded(replayed(recorded))


@pytest.mark.parametrize("name", TREES)
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


@pytest.mark.parametrize("step", [0, 1])
def test_where_children_of_code_stand_on_the_tape(step: int) -> None:
    place = {"turn": 1, "step": step, "context": "spawn"}
    root = Log("root").answered("hi", "hello")
    children = [
        root.child("c1", 1, spawnedBy={**place, "n": 1}).answered("two", "3"),
        root.child("mine", 2, spawnedBy={**place, "key": "mine"}).answered("go", "1"),
        root.child("c0", 3, spawnedBy=place).answered("one", "2"),
    ]
    scenario = build_scenario("tree", recordings(root, *children))
    assert hindrances(scenario) == []
    plan = make_plan(scenario.root, scenario.children(scenario.root))
    tape = decode_tape(plan.creation.brief)
    found = [item for item in tape if isinstance(item, Delegate)]
    assert {(item.n, item.key, item.prompt) for item in found} == {
        (0, None, "one"),
        (1, None, "two"),
        (0, "mine", "go"),
    }
    numbers = [item.n for item in found if item.key is None]
    assert numbers == [0, 1]
    before = tape[tape.index(found[0]) - 1]
    assert isinstance(before, StepStart if step else TurnStart)
    after = tape[tape.index(Settle()) + 1]
    assert isinstance(after, StepEnd if step else StepStart)


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("end", ["completed", "interrupted"])
def test_a_child_of_code_whose_parent_died_in_that_turn(step: int, end: str) -> None:
    """The log does not say which of its children the code had heard of: of none."""
    place = {"turn": 1, "step": step, "context": "spawn", "key": "mine"}
    root = Log("root").turn("go").end("interrupted")
    child = root.child("child", 1, spawnedBy=place).turn("go").end(end)
    scenario = build_scenario("tree", recordings(root, child))
    assert hindrances(scenario) == []
    for seed in range(8):
        replay = replayed(scenario, seeded(seed))
        assert replay.problems == []
        assert live_contents(replay) == recorded_contents(scenario)
