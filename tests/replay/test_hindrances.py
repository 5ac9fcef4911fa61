"""What is told before a replay starts, because no replay could show it."""

from __future__ import annotations

import pytest

from compose.trees import TREES
from nestling.harness.scenario import Scenario, build_scenario
from nestling.harness.support import hindrances
from nestling.session.reading import Recording
from support.replays import recordings_of, replayed, seeded


def cut_after(recording: Recording, length: int) -> Recording:
    events, lines = recording.events[:length], recording.lines[:length]
    return recording._replace(events=events, lines=lines)


def scenario_cut_at(kind: str) -> Scenario:
    """The tree of a spawn and a fork, its root ending with the last event of `kind`."""
    root, *_ = recordings_of(TREES["spawn_and_fork"]())
    last = max(event.seq for event in root.events if event.type == kind)
    return build_scenario("cut", [cut_after(root, last + 1)])


@pytest.mark.parametrize(
    "kind", ["turn/start", "step/start", "user/message", "tool/call", "step/end"]
)
def test_a_log_that_ends_inside_a_turn(kind: str) -> None:
    (problem,) = hindrances(scenario_cut_at(kind))
    assert (problem.kind, problem.path) == ("not-supported", "/")
    assert "session.jsonl: the recording ends inside turn 2" in problem.message
    assert f"{kind}), expected a turn/end" in problem.message


@pytest.mark.parametrize("seed", range(40))
def test_a_request_that_is_not_answered_keeps_a_session(seed: int) -> None:
    # Told before a replay starts; were it started, every schedule ends it alike.
    replay = replayed(scenario_cut_at("tool/call"), seeded(seed))
    assert replay.kinds == [("session-without-script", "/t2s2b1"), ("worker-lost", "/")]
    assert "a result with turn 2 open" in replay.problems[1].message
    assert replay.runner.stalled == []


def test_a_child_of_ours_that_is_missing() -> None:
    root, spawned, forked = recordings_of(TREES["spawn_and_fork"]())
    for kept, path in (([root, forked], "/t2s1b"), ([root, spawned], "/t2s2b")):
        (problem,) = hindrances(build_scenario("few", kept))
        assert problem.kind == "tree-differs"
        assert (problem.path or "").startswith(path)
        assert "went well, but its child's log is missing" in problem.message


def test_a_foreign_child_may_have_left_no_log() -> None:
    root, *_ = recordings_of(TREES["spawn_and_fork"]())
    scenario = build_scenario("foreign", [root])
    assert hindrances(scenario) == []
    assert replayed(scenario).problems == []
