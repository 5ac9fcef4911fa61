"""One fault gives one verdict, whatever the order in which things happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

import pytest

from compose.trees import TREES
from nestling.driver.instructions import HubEvent
from nestling.harness.ledger import Problem
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario
from nestling.harness.tape_runner import Choose, TapeRunner
from support.replays import replayed, scenario_of, seeded, with_session

SCHEDULES = 60
OUTER = "/t2s1b0"


class Dying(TapeRunner):
    """One worker dies once the hub has so many own events of it, or of another."""

    def __init__(
        self,
        director: ReplayDirector,
        choose: Choose,
        path: str,
        length: int,
        victim: str,
    ) -> None:
        super().__init__(director, choose)
        self._path = path
        self._length = length
        self._victim = victim

    def _tell_hub(self, event: HubEvent) -> None:
        super()._tell_hub(event)
        for session in self.hub.tree:
            own = len(session.log) - session.seed_length
            if session.path == self._path and own >= self._length:
                for each in self.hub.tree:
                    if each.path == self._victim:
                        self.silence(each.launch)

    def silence(self, launch: str) -> None:
        """End a worker and lose what it had said and the hub had not yet read."""
        if launch in self._workers:
            self._lines[f"from {launch}"].clear()
            self._kill(launch)


@cache
def scenario(name: str) -> Scenario:
    return scenario_of(TREES[name]())


def verdicts(
    name: str,
    path: str,
    length: int,
    victim: str,
    seeds: Iterable[int] = range(SCHEDULES),
) -> Counter[tuple[Problem, ...]]:
    """How often each list of problems came out."""
    found: Counter[tuple[Problem, ...]] = Counter()
    for seed in seeds:
        director = ReplayDirector(scenario(name))
        runner = Dying(director, seeded(seed), path, length, victim)
        runner.run()
        assert runner.stalled == []
        director.close()
        found[tuple(director.ledger.problems)] += 1
    return found


# Of the nested tree: the outer child before it has said anything, in its first turn
# and while two of its children run; then two of these.
DEATHS = [
    ("parallel_children", "/t2s1b1", 0, "/"),
    ("parallel_children", "/t2s1b2", 5, "/"),
    ("unlucky_children", "/t2s1b2", 3, "/"),
    *(("nested_forks", OUTER, length, "/") for length in (0, 13, 37)),
    ("nested_forks", f"{OUTER}/t3s1b0", 4, OUTER),
    ("nested_forks", f"{OUTER}/t3s1b1", 0, OUTER),
]


@pytest.mark.parametrize(("name", "path", "length", "parent"), DEATHS)
def test_a_child_that_dies(name: str, path: str, length: int, parent: str) -> None:
    found = verdicts(name, path, length, path)
    assert len(found) == 1, "every schedule has one list of problems"
    (problems,) = found
    assert [(problem.kind, problem.path) for problem in problems] == [
        ("worker-lost", path),
        ("log-differs", parent),
    ]


@pytest.mark.parametrize(
    "name", ["spawn_and_fork", "first_turn_fork", "parallel_children"]
)
def test_a_child_that_dies_anywhere(name: str) -> None:
    """A few schedules for each child and each length of its log, each with others."""
    for session in scenario(name).sessions[1:]:
        assert session.path is not None
        own = len(session.own_events)
        for length in range(own):
            seeds = range(length, SCHEDULES * own, SCHEDULES * own // 4)
            found = verdicts(name, session.path, length, session.path, seeds)
            assert len(found) == 1, f"one verdict on {session.path} at {length}"
            (problems,) = found
            assert problems[0].kind == "worker-lost"
            assert [problem.path for problem in problems] == [session.path, "/"]


@pytest.mark.parametrize(
    ("path", "length"), [("/", 9), *((OUTER, length) for length in (0, 13, 37))]
)
def test_a_root_that_dies(path: str, length: int) -> None:
    """What it takes along is not to blame, however far it was."""
    (problems,) = verdicts("nested_forks", path, length, "/")
    assert [(problem.kind, problem.path) for problem in problems] == [
        ("worker-lost", "/")
    ]


def test_two_children_that_differ_are_told_of_in_order() -> None:
    twins = scenario("parallel_children")
    paths = ("/t2s1b1", "/t2s1b2")
    for path in paths:
        twins = with_session(twins, path, script=())
    orders = set()
    for seed in range(SCHEDULES):
        replay = replayed(twins, seeded(seed))
        assert replay.kinds == [("extra-call", path) for path in paths]
        orders.add(tuple(found.path for found in replay.director.ledger._found))
    assert len(orders) == 2, "else the schedules do not differ where it matters"
