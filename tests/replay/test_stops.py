"""Cancels and crashes replay where they were recorded: no clock, no sidecar."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compose.trees import root_with_turn
from nestling.driver.director import Answer, CancelAt, KillAt
from nestling.harness.compose import (
    Composer,
    Tree,
    fork_call,
    reasoning,
    spawn_call,
    text,
    tool_call,
)
from nestling.harness.plan import make_plan
from nestling.harness.scripts import Entry
from nestling.harness.support import hindrances
from nestling.session.jsontext import dumps
from support.replays import (
    live_contents,
    recorded_contents,
    recordings_of,
    replayed,
    scenario_of,
    seeded,
)

CHUNKS = 8
"""How many chunks the call in these tests has, without usage and finish."""


def talkative(root: Composer, chunks: int) -> None:
    root.starts_saying(
        reasoning("hm hm"), text("Starting a task"), chunks=min(chunks, CHUNKS)
    )


def check(tree: Tree) -> None:
    scenario = scenario_of(tree)
    assert hindrances(scenario) == []
    for seed in range(8):
        replay = replayed(scenario, seeded(seed))
        assert replay.problems == []
        assert replay.runner.stalled == []
        assert live_contents(replay) == recorded_contents(scenario)


@pytest.mark.parametrize("end", [Composer.abort, Composer.crash])
@pytest.mark.parametrize("chunks", range(CHUNKS + 1))
def test_a_call_is_ended_after_each_chunk(
    chunks: int, end: Callable[[Composer], None]
) -> None:
    root = root_with_turn()
    talkative(root, chunks)
    end(root)
    tree = Tree(root)
    check(tree)
    (plan,) = (make_plan(s) for s in scenario_of(tree).sessions)
    if chunks == 0:  # nothing in the log says that a model was called
        assert plan.calls == []
        return
    (call,) = plan.calls
    assert len(call.answer.chunks) == chunks
    is_abort = end is Composer.abort
    assert call.answer.cut == ({"kind": "user"} if is_abort else None)
    assert call.answer.hangs == (not is_abort)
    recorded = len(scenario_of(tree).root.recording.events)
    assert plan.stops.kills == (() if is_abort else (KillAt(recorded - 2),))
    assert plan.stops.cancels == (), "the call is cancelled, and with it the turn"


@pytest.mark.parametrize("cause", ["user", "parent", "disposed"])
def test_the_cause_of_an_abort_is_replayed(cause: str) -> None:
    root = root_with_turn()
    talkative(root, 3)
    root.abort(cause)
    root.turn("Again.")
    root.abort(cause)
    check(Tree(root))


def test_aborted_turns_one_after_the_other() -> None:
    """Each cancel is taken once: the next turn waits for its own."""
    root = root_with_turn()
    root.abort("user")
    root.turn("Again.")
    root.abort("parent")
    root.begin()
    root.abort("disposed")
    root.turn("And again.")
    root.says(text("At last."))
    root.end()
    tree = Tree(root)
    check(tree)
    stops = make_plan(scenario_of(tree).root).stops
    assert [stop.cause["kind"] for stop in stops.cancels] == [
        "user",
        "parent",
        "disposed",
    ]


def with_tools(started: int, answered: int) -> Composer:
    """A step with three tool calls, of which some were started and answered."""
    root = root_with_turn()
    calls = root.says(*(tool_call("bash", {"command": c}) for c in "abc"))
    root.calls(*calls[:started])
    for call in calls[:answered]:
        root.result(call, "done")
    return root


@pytest.mark.parametrize(
    ("started", "answered"), [(0, 0), (1, 0), (2, 1), (3, 0), (3, 2), (3, 3)]
)
def test_a_crash_among_tools(started: int, answered: int) -> None:
    root = with_tools(started, answered)
    root.crash()
    check(Tree(root))


def test_a_cancel_among_tools() -> None:
    """The calls that did not start have results that say so, as recorded."""
    root = root_with_turn()
    calls = root.says(*(tool_call("bash", {"command": c}) for c in "ab"))
    root.calls(*calls)
    aborted = {"name": "AbortError", "code": "ABORTED_BEFORE_DISPATCH"}
    root.result(calls[0], "half", is_error=True)
    root.result(calls[1], "not run", is_error=True, error=aborted)
    root.abort()
    check(Tree(root))


def test_a_crash_right_after_a_turn_or_step_began() -> None:
    root = root_with_turn()
    root.crash()
    check(Tree(root))
    other = root_with_turn()
    other.abort()
    other.begin()
    other.crash()
    check(Tree(other))


def test_a_crash_after_a_failed_call() -> None:
    root = root_with_turn()
    root.fails("SERVER", text("half"))
    root.retry()
    root.starts_saying(text("half again"), chunks=1)
    root.crash()
    check(Tree(root))


def test_a_fork_of_an_aborted_and_of_a_crashed_child() -> None:
    root = root_with_turn()
    talkative(root, 4)
    root.abort()
    root.turn("Ask.")
    calls = root.says(fork_call("one", "Go on."), spawn_call("two", "Start."))
    children = [root.fork(calls[0]), root.spawn(calls[1])]
    for child in children:
        child.turn()
        child.starts_saying(text("I will"), chunks=1)
        child.crash()
        root.returns(child)
    root.step()
    root.says(text("Both crashed."))
    root.end()
    check(Tree(root))


# --- the plan ------------------------------------------------------------------


def hung(end: Callable[[Composer], object]) -> Answer:
    """The answer that a hang stands for, in a turn that ended so."""
    root = root_with_turn()
    talkative(root, 2)
    end(root)
    patch = {"at": 0, "entry": Entry("hang").to_json()}
    override = dumps({"patches": [patch]})
    scenario = scenario_of(Tree(root), override=override)
    return make_plan(scenario.root).calls[0].answer


def test_a_hang_is_cancelled_where_its_turn_was() -> None:
    aborted = hung(Composer.abort)
    assert (aborted.cut, aborted.hangs) == ({"kind": "user"}, False)
    crashed = hung(Composer.crash)
    assert (crashed.cut, crashed.hangs) == (None, True)
    assert len(aborted.chunks) == len(crashed.chunks) == 2


def test_where_the_hub_cancels_a_turn_without_an_open_call() -> None:
    root = root_with_turn()
    root.says(text("One."))
    root.abort()
    (recording,) = recordings_of(Tree(root))
    stops = make_plan(scenario_of(Tree(root)).root).stops
    last = len(recording.events) - 1
    assert recording.events[last].type == "turn/end"
    assert stops.cancels == (CancelAt(last, {"kind": "user"}),)
