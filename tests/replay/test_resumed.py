"""Turns after a recorded crash: another worker goes on with the whole log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compose.trees import finished, root_with_fact, root_with_turn
from nestling.driver.director import KillAt
from nestling.harness.compose import (
    Call,
    Composer,
    Tree,
    fork_call,
    spawn_call,
    text,
    tool_call,
)
from nestling.harness.plan import make_plan
from nestling.harness.scenario import Scenario
from nestling.harness.support import hindrances
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject
from nestling.session.recovery import told
from nestling.session.repair import OpenCall, closers, open_calls
from support.replays import (
    Replay,
    live_contents,
    once,
    recorded_contents,
    replayed,
    scenario_of,
    seeded,
    with_edit,
)

SCHEDULES = 12


def check(tree: Tree, workers: dict[str, int] | None = None) -> Scenario:
    """It replays on any schedule, each session by so many workers."""
    scenario = scenario_of(tree)
    assert hindrances(scenario) == []
    for seed in range(SCHEDULES):
        replay = replayed(scenario, seeded(seed))
        assert replay.problems == [], (seed, replay.problems)
        assert replay.runner.stalled == []
        assert live_contents(replay) == recorded_contents(scenario)
        for path, count in (workers or {}).items():
            assert workers_of(replay, path) == count, path
    return scenario


def workers_of(replay: Replay, path: str) -> int:
    (session,) = (s for s in replay.runner.hub.tree if s.path == path)
    assert len(session.exits) == len(session.launches) - 1
    assert all(exit.signal == "SIGKILL" for exit in session.exits)
    return len(session.launches)


def goes_on(root: Composer, answer: str = "Gone on.") -> None:
    root.turn("Go on.")
    root.says(text(answer))
    root.end()


# --- one session ---------------------------------------------------------------


def before_the_first_call(root: Composer) -> None:
    """Nothing of the step but what the user said."""


def in_a_stream(root: Composer) -> None:
    root.starts_saying(text("Nobody will read the end"), chunks=3)


def in_a_tool(root: Composer) -> None:
    calls = root.says(*(tool_call("bash", {"command": c}) for c in "abc"))
    root.calls(*calls[:2])
    root.result(calls[0], "done")


def between_calls(root: Composer) -> None:
    (call,) = root.says(tool_call("bash", {"command": "a"}))
    root.result(call, "done")


def after_a_failed_call(root: Composer) -> None:
    root.fails("SERVER", text("half"))
    root.retry()


PLACES = [
    before_the_first_call,
    in_a_stream,
    in_a_tool,
    between_calls,
    after_a_failed_call,
]


@pytest.mark.parametrize("place", PLACES)
def test_a_turn_after_a_crash(place: Callable[[Composer], None]) -> None:
    root = root_with_turn()
    place(root)
    root.crash()
    goes_on(root)
    check(Tree(root), {"/": 2})


@pytest.mark.parametrize("first", PLACES)
@pytest.mark.parametrize("second", PLACES)
def test_crashes_one_after_the_other(
    first: Callable[[Composer], None], second: Callable[[Composer], None]
) -> None:
    root = root_with_fact()
    first(root)
    root.crash()
    root.turn("Again.")
    second(root)
    root.crash()
    goes_on(root)
    root.turn("And now?")
    in_a_stream(root)
    root.crash()
    scenario = check(Tree(root), {"/": 3})
    plan = make_plan(scenario.root)
    assert len(plan.stops.kills) == len(plan.tapes) == 3
    assert plan.ends_dead


def test_what_is_logged_between_a_crash_and_the_next_turn() -> None:
    root = root_with_turn()
    in_a_stream(root)
    root.crash()
    root.add("session/title", {"title": "t", "messageSeqs": [], "source": {}})
    goes_on(root)
    check(Tree(root), {"/": 2})


def test_a_crash_and_a_cancel() -> None:
    root = root_with_turn()
    in_a_tool(root)
    root.crash()
    root.turn("Again.")
    root.starts_saying(text("Starting a long task"), chunks=2)
    root.abort()
    root.turn("Again.")
    root.abort("parent")
    goes_on(root)
    check(Tree(root), {"/": 2})


# --- trees ---------------------------------------------------------------------


def delegating(root: Composer, *calls: JsonObject) -> list[Composer]:
    """Have a root call tools side by side, all of which delegate."""
    made = root.says(*calls)
    root.calls(*made)
    return [
        root.fork(call) if call.name == "subagent_fork" else root.spawn(call)
        for call in made
    ]


def died(child: Composer, chunks: int = 2) -> Composer:
    child.turn()
    child.starts_saying(text("half an answer"), chunks=chunks)
    child.crash()
    return child


def aborted(child: Composer) -> Composer:
    child.turn()
    child.starts_saying(text("half an answer"), chunks=2)
    child.abort("parent")
    return child


def silent(child: Composer) -> Composer:
    """Leave a child as it was made: its worker never said a word."""
    return child


ENDS: list[Callable[[Composer], Composer]] = [finished, died, aborted, silent]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("other", ENDS)
def test_a_parent_dies_while_its_children_run(
    end: Callable[[Composer], Composer], other: Callable[[Composer], Composer]
) -> None:
    root = root_with_fact()
    one, two = delegating(root, spawn_call("a", "One."), fork_call("b", "Two."))
    end(one)
    other(two)
    root.crash()
    goes_on(root)
    check(Tree(root), {"/": 2})


def test_a_parent_dies_after_the_first_of_its_children() -> None:
    root = root_with_turn()
    one, two = delegating(root, spawn_call("a", "One."), spawn_call("b", "Two."))
    root.returns(finished(one))
    died(two)
    root.crash()
    check(Tree(root), {"/": 1})


def test_a_child_dies_and_its_parent_goes_on() -> None:
    root = root_with_turn()
    (child,) = delegating(root, spawn_call("a", "One."))
    root.returns(died(child))
    root.step()
    root.says(text("It died."))
    root.end()
    check(Tree(root), {"/": 1, "/t1s1b0": 1})


def test_a_child_is_resumed_before_its_parent_is_told() -> None:
    """As a driver would do that starts workers again which have died."""
    root = root_with_fact()
    (child,) = delegating(root, fork_call("a", "One."))
    died(child)
    child.turn("Again.")
    child.starts_saying(text("half again"), chunks=3)
    child.crash()
    goes_on(child)
    root.returns(child)
    root.end()
    goes_on(root)
    scenario = check(Tree(root), {"/": 1, "/t2s1b0": 3})
    boundary = scenario.by_path["/t2s1b0"].seed_length
    for seed in range(3):
        replay = replayed(scenario, seeded(seed))
        log = replay.runner.logs()["/t2s1b0"]
        marks = [event.seq for event in log if event.type == "session/end-seed"]
        assert marks == [boundary]


def test_crashes_all_over_a_tree() -> None:
    root = root_with_fact()
    (outer,) = delegating(root, fork_call("a", "Outer."))
    outer.turn()
    one, two = delegating(outer, fork_call("b", "One."), spawn_call("c", "Two."))
    died(one)
    died(two, chunks=0)
    outer.crash()
    outer.turn("Again.")
    (three,) = delegating(outer, fork_call("d", "Three."))
    outer.returns(died(three))
    outer.step()
    in_a_stream(outer)
    outer.crash()
    root.crash()
    root.turn("Again.")
    (four,) = delegating(root, fork_call("e", "Four."))
    root.returns(finished(four))
    root.end()
    root.turn("Once more.")
    in_a_tool(root)
    root.crash()
    check(Tree(root), {"/": 2, "/t2s1b0": 2, "/t2s1b0/t2s1b0": 1})


# --- what a repair says of children --------------------------------------------


def crash_recovered(root: Composer, children: dict[str, Composer]) -> None:
    """End a turn as the repair of a tree does: with what its children came to."""
    events = root.log.events
    results: dict[OpenCall, JsonObject] = {}
    for call in open_calls(events):
        if call.call_id in children:
            child = children[call.call_id]
            results[call] = told(call, child.header, child.log.events)
    root._open_call = []
    root._unanswered.clear()
    for event in closers(events, results):
        root.log.append(event)


def recovered(end: Callable[[Composer], Composer]) -> Tree:
    root = root_with_turn()
    made: list[Call] = root.says(
        spawn_call("a", "One."), tool_call("bash", {"command": "a"})
    )
    root.calls(*made)
    child = root.spawn(made[0])
    end(child)
    crash_recovered(root, {made[0].id: child})
    goes_on(root)
    return Tree(root)


@pytest.mark.parametrize("end", ENDS)
def test_a_child_is_told_of_by_its_parents_repair(
    end: Callable[[Composer], Composer],
) -> None:
    scenario = check(recovered(end), {"/": 2})
    (result, other) = (
        event.data
        for event in scenario.root.recording.events
        if event.type == "tool/result"
    )
    assert other["error"]["code"] == "TOOL_OUTCOME_UNKNOWN"
    first = next(
        event.seq
        for event in scenario.root.recording.events
        if event.type == "tool/result"
    )
    assert make_plan(scenario.root).stops.kills[0].length == first
    code = result.get("error", {}).get("code")
    assert code == (None if end in (finished, aborted) else "SUBAGENT_INTERRUPTED")


# --- what does not fit ---------------------------------------------------------


def test_a_child_that_ends_otherwise_than_recorded_is_found() -> None:
    scenario = recovered_scenario()

    def change(data: JsonObject) -> None:
        data["turn"] = 7

    broken = with_edit(scenario, "/t1s1b0", once("turn/end", change))
    replay = replayed(broken, seeded(1))
    assert ("log-differs", "/t1s1b0") in replay.kinds


def recovered_scenario() -> Scenario:
    return scenario_of(recovered(finished))


def test_a_resumed_worker_that_goes_elsewhere_is_found() -> None:
    root = root_with_turn()
    in_a_stream(root)
    root.crash()
    goes_on(root)
    scenario = scenario_of(Tree(root))

    def change(data: JsonObject) -> None:
        data["message"]["content"][0]["text"] = "other"

    replay = replayed(with_edit(scenario, "/", once("assistant/message", change)))
    assert replay.kinds[0] == ("log-differs", "/")


def test_where_the_kills_stand() -> None:
    root = root_with_turn()
    one, _ = delegating(root, spawn_call("a", "One."), spawn_call("b", "Two."))
    finished(one)
    length = len(root.log.events)
    root.crash()
    root.turn("Again.")
    in_a_stream(root)
    again = len(root.log.events)
    root.crash()
    scenario = scenario_of(Tree(root))
    plan = make_plan(scenario.root, scenario.children(scenario.root))
    assert plan.stops.kills == (KillAt(length, 2), KillAt(again, 2))
    events: list[Event] = list(plan.recorded)
    assert events[length].type == "tool/result"


def test_a_child_that_went_on_after_its_parent_had_heard_of_it_is_refused() -> None:
    root = root_with_turn()
    (child,) = delegating(root, spawn_call("a", "One."))
    root.returns(finished(child))
    root.end()
    assert hindrances(scenario_of(Tree(root))) == []
    last = len(child.log.events) - 1
    goes_on(child, "More.")
    (problem,) = hindrances(scenario_of(Tree(root)))
    assert (problem.kind, problem.path) == ("not-supported", "/t1s1b0")
    assert "it went on by itself after that: somebody resumed it" in problem.message
    assert problem.message.endswith(f"a copy whose child ends with event {last}")


def test_a_child_of_several_turns_is_told_of_in_the_end() -> None:
    root = root_with_turn()
    (child,) = delegating(root, spawn_call("a", "One."))
    finished(child)
    goes_on(child, "done")
    root.returns(child)
    root.end()
    check(Tree(root))
