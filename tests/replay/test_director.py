"""The replaying director, asked directly: each decision and what it writes down."""

from __future__ import annotations

from typing import Any

import pytest

from compose.trees import TREES
from nestling.driver.director import (
    Answer,
    CallRequest,
    Delegation,
    Real,
    Recorded,
    Refused,
    Settlement,
    ToolRequest,
    Unanswered,
)
from nestling.driver.exits import Exit
from nestling.harness.plan import make_plan
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario, build_scenario
from nestling.session.header import SpawnedBy
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import Outcome
from nestling.session.spawn_path import child_path
from nestling.wire.agent_reference import TAPE
from support.logs import Ask, Log, recordings, text_chunks
from support.replays import (
    once,
    replayed,
    scenario_of,
    seeded,
    with_edit,
    with_session,
)

SPAWN, FORK = "/t2s1b1", "/t2s2b1"
GONE = Exit(None, "SIGKILL")


@pytest.fixture
def director() -> ReplayDirector:
    director = ReplayDirector(scenario_of(TREES["spawn_and_fork"]()))
    director.on_root()
    return director


def kinds(director: ReplayDirector) -> list[tuple[str, str | None]]:
    return [(problem.kind, problem.path) for problem in director.ledger.problems]


def delegation(prompt: str = "Say yes.", **place: Any) -> Delegation:
    fields = {"turn": 2, "step": 1, "context": "spawn", "block": 1, **place}
    spawned_by = SpawnedBy(**fields)
    path = child_path("/", spawned_by)
    return Delegation("root", path, spawned_by, 1, prompt, "", 0, TAPE, {})


# --- delegations ---------------------------------------------------------------


def test_a_child_takes_the_recorded_id(director: ReplayDirector) -> None:
    decision = director.on_delegate(delegation())
    assert isinstance(decision, Real)
    header = decision.creation.header
    assert header.id == director.ledger.accounts[SPAWN].id == "root-1"
    assert "seedLength" not in header.fields, "the hub counts that"
    assert kinds(director) == []


def test_a_second_delegation_at_one_path(director: ReplayDirector) -> None:
    director.on_delegate(delegation())
    decision = director.on_delegate(delegation())
    assert isinstance(decision, Recorded)
    assert kinds(director) == [("session-without-script", SPAWN)]


def test_a_delegation_of_the_other_kind(director: ReplayDirector) -> None:
    decision = director.on_delegate(delegation(context="fork"))
    assert isinstance(decision, Recorded)
    assert kinds(director) == [("tree-differs", SPAWN)]
    assert "is a fork, recorded was a spawn" in director.ledger.problems[0].message


def test_a_delegation_of_which_only_the_result_was_recorded() -> None:
    root = Log("root").turn("go").ask(Ask("lost", result="gone")).say("done").end()
    director = ReplayDirector(build_scenario("tree", recordings(root)))
    director.on_root()
    decision = director.on_delegate(delegation(turn=1, prompt="lost"))
    assert isinstance(decision, Recorded)
    assert decision.result["block"]["content"] == [{"type": "text", "text": "gone"}]
    assert kinds(director) == []


@pytest.mark.parametrize("place", [{"block": 7}, {"block": None, "key": "k"}])
def test_a_delegation_that_was_not_recorded(
    director: ReplayDirector, place: dict[str, Any]
) -> None:
    asked = delegation(**place)
    decision = director.on_delegate(asked)
    assert isinstance(decision, Refused)
    assert kinds(director) == [("session-without-script", asked.path)]


def test_a_delegation_that_the_recorded_parent_did_not_survive() -> None:
    director = ReplayDirector(scenario_of(TREES["crashed_tool"]()))
    director.on_root()
    asked = delegation(turn=1, block=1)
    assert isinstance(director.on_delegate(asked), Unanswered)
    assert kinds(director) == []


# --- calls and tools -----------------------------------------------------------


def test_a_call_of_another_purpose(director: ReplayDirector) -> None:
    answer = director.on_stream(CallRequest("root", 0, "summary", "p", "m", 1, 1))
    assert isinstance(answer, Answer)
    assert answer.failure is not None
    assert len(answer.chunks) == 0
    assert kinds(director) == [("log-differs", "/")]
    assert director.ledger.accounts["/"].served == 0
    assert "is a summary call, recorded was a turn call" in (
        director.ledger.problems[0].message
    )


def test_each_call_is_answered_by_its_number(director: ReplayDirector) -> None:
    plan = director.plan_of("root")
    for number in (3, 0, 2, 1):
        answer = director.on_stream(CallRequest("root", number, "turn", "p", "m", 1, 1))
        assert answer is plan.calls[number].answer


def test_a_tool_result_is_found_by_its_place() -> None:
    director = ReplayDirector(scenario_of(TREES["one_tool"]()))
    director.on_root()
    asked = ToolRequest("root", 1, 1, 1, "any id", "any tool", "any arguments")
    decision = director.on_tool(asked)
    assert isinstance(decision, Recorded)
    assert decision.result["meta"] == {"lines": 2}
    failed = director.on_tool(asked._replace(step=2, block=0))
    assert isinstance(failed, Recorded)
    assert failed.result["error"] == {"name": "FsError", "code": "FS_NOT_FOUND"}
    assert isinstance(director.on_tool(asked._replace(block=0)), Unanswered)


# --- ends ----------------------------------------------------------------------


def complete(director: ReplayDirector, session_id: str) -> Outcome:
    """Let a session be compared whole; return what it came to."""
    plan = director.plan_of(session_id)
    assert director.on_events(session_id, plan.recorded) is None
    return plan.outcome


def test_an_output_that_differs(director: ReplayDirector) -> None:
    director.on_delegate(delegation())
    outcome = complete(director, "root-1")
    other = outcome._replace(output=[{"type": "text", "text": "no"}])
    director.on_settled("root-1", Settlement("itself", other, None, None))
    assert kinds(director) == [("output-differs", SPAWN)]


def test_a_log_that_ends_early(director: ReplayDirector) -> None:
    director.on_delegate(delegation())
    plan = director.plan_of("root-1")
    director.on_events("root-1", plan.recorded[:4])
    director.on_settled("root-1", Settlement("itself", plan.outcome, None, None))
    assert kinds(director) == [("log-differs", SPAWN)]
    assert "the log ended after 4 events" in director.ledger.problems[0].message


def test_a_log_that_goes_on(director: ReplayDirector) -> None:
    complete(director, "root")
    plan = director.plan_of("root")
    last = plan.recorded[-1]
    beyond = type(last)(last.seq + 1, "note", 0, {})
    assert director.on_events("root", [beyond]) is not None
    assert kinds(director) == [("log-differs", "/")]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("seed-refused", "seed-refused"),
        ("loop-refused", "log-differs"),
        ("failed", "worker-lost"),
    ],
)
def test_a_worker_that_gave_up(
    director: ReplayDirector, reason: str, kind: str
) -> None:
    director.on_refused("root", reason, "so")
    assert director.ledger.problems == [(kind, "/", "so")]


def test_only_the_first_problem_of_a_session_is_told(
    director: ReplayDirector,
) -> None:
    director.on_refused("root", "loop-refused", "first")
    director.on_refused("root", "failed", "second")
    lost = Settlement("death", Outcome("error", []), Exit(1, None), "third")
    director.on_settled("root", lost)
    director.close()
    assert [problem.message for problem in director.ledger.problems] == ["first"]


def test_a_child_that_was_stopped_leaves_its_parent_on_the_recording(
    director: ReplayDirector,
) -> None:
    director.on_delegate(delegation())
    director.on_refused("root-1", "loop-refused", "so")
    settlement = Settlement("director", Outcome("error", []), Exit(0, None), "so")
    told = director.on_settled("root-1", settlement)
    assert told == director.plan_of("root").results[2, 1, 1].body


def test_a_child_that_died_is_told_of_as_it_is(director: ReplayDirector) -> None:
    director.on_delegate(delegation())
    lost = Settlement("death", Outcome("error", []), Exit(None, "SIGKILL"), "gone")
    assert director.on_settled("root-1", lost) is None
    assert kinds(director) == [("worker-lost", SPAWN)]


def test_a_session_that_was_ended_with_the_run(director: ReplayDirector) -> None:
    """What ended it is the problem, not what it had no time to do."""
    director.on_delegate(delegation())
    gone = Settlement("abort", Outcome("error", []), GONE, "gone")
    for session_id in ("root-1", "root"):
        assert director.on_settled(session_id, gone) is None
    director.close()
    # The fork was not even delegated: its parent had no time for that either.
    assert kinds(director) == []
    accounts = director.ledger.accounts
    assert [accounts[path].was_ended for path in ("/", SPAWN, FORK)] == [
        *(True, True, False)
    ]


def test_a_session_that_came_to_its_end_is_blamed(director: ReplayDirector) -> None:
    director.on_delegate(delegation())
    for session_id in ("root-1", "root"):
        outcome = complete(director, session_id)
        director.on_settled(session_id, Settlement("itself", outcome, None, None))
    director.ledger.accounts["/"].served = 4
    director.close()
    assert kinds(director) == [("leftover-call", SPAWN), ("script-not-bound", FORK)]


def test_calls_that_are_left_over_hide_no_child(director: ReplayDirector) -> None:
    """Both are named: the parent's calls, and each child that it did not make."""
    outcome = complete(director, "root")
    director.on_settled("root", Settlement("itself", outcome, None, None))
    director.ledger.accounts["/"].served = 1
    director.close()
    assert kinds(director) == [
        ("script-not-bound", SPAWN),
        ("script-not-bound", FORK),
        ("leftover-call", "/"),
    ]


def dead_child(is_error: bool | None, *, is_foreign: bool = False) -> Scenario:
    """A child that crashed in its only call, and what its parent was told of it."""
    place = {"turn": 1, "step": 1, "block": 1, "context": "spawn"}
    stated = {} if is_foreign else {"spawnedBy": place}
    root = Log("root").turn("go")
    child = root.child("child", 1, **stated).turn("work")
    child.chunks(text_chunks("half", None)).end("interrupted")
    told = None if is_error is None else "told"
    root.ask(Ask("work", result=told, is_error=bool(is_error)))
    return build_scenario("tree", recordings(root.say("done").end(), child))


@pytest.mark.parametrize(
    ("is_error", "is_foreign", "found"),
    [
        (True, False, []),
        (False, False, [("output-differs", "/t1s1b1")]),
        (None, False, []),
        (True, True, []),
        (False, True, []),
    ],
)
def test_a_parent_is_not_told_a_success_by_a_dead_child(
    is_error: bool | None, is_foreign: bool, found: list[tuple[str, str]]
) -> None:
    director = ReplayDirector(dead_child(is_error, is_foreign=is_foreign))
    director.on_root()
    director.on_delegate(delegation(turn=1, prompt="work"))
    plan = director.plan_of("child")
    (kill,) = plan.stops.kills
    alive, closing = plan.recorded[: kill.length], plan.recorded[kill.length :]
    assert director.on_events("child", alive) is None
    death = Settlement("death", plan.outcome, GONE, "died", "there", closing)
    told = director.on_settled("child", death)
    # It goes on along the recording either way, so that it is judged, too.
    recorded = director.plan_of("root").results.get((1, 1, 1))
    assert told == (None if recorded is None else recorded.body)
    assert kinds(director) == found


def test_a_success_of_a_dead_child_in_a_whole_replay() -> None:
    scenario = scenario_of(TREES["unlucky_children"]())
    died = "/t2s1b0"
    assert make_plan(scenario.by_path[died]).stops.kills

    def succeed(data: JsonObject) -> None:
        del data["message"]["content"][0]["isError"]

    for seed in range(10):
        replay = replayed(
            with_edit(scenario, "/", once("tool/result", succeed)), seeded(seed)
        )
        assert replay.kinds == [("output-differs", died)]
        assert replay.problems[0].message == (
            "its worker died, as recorded, but its parent was told a success"
        )


# --- recordings of others ------------------------------------------------------


def foreign(answer: str, result: str) -> Scenario:
    root = Log("root").turn("go")
    child = root.child("child", 1).answered("work", answer)
    root.ask(Ask("work", result=result)).say("done").end()
    return build_scenario("tree", recordings(root, child))


def test_the_parent_of_a_foreign_child_gets_the_recorded_result() -> None:
    scenario = foreign("an answer", "another system's words for it")
    (child,) = scenario.sessions[1:]
    assert child.is_foreign
    director = ReplayDirector(scenario)
    director.on_root()
    director.on_delegate(delegation(turn=1, prompt="work"))
    outcome = complete(director, "child")
    told = director.on_settled("child", Settlement("itself", outcome, None, None))
    assert isinstance(told, dict)
    words = told["block"]["content"][0]["text"]
    assert words == "another system's words for it"
    assert kinds(director) == []


def test_a_header_that_does_not_tell_of_its_seed() -> None:
    """What a live fork inherited is counted, not copied."""
    scenario = scenario_of(TREES["spawn_and_fork"]())
    recording = scenario.by_path[FORK].recording
    director = ReplayDirector(scenario)
    bare = recording.header.with_fields(seedLength=None, seedDigest=None)
    plan = director._plans[FORK]
    changed = with_session(
        scenario, FORK, recording=recording._replace(header=bare)
    ).by_path[FORK]
    director._plans[FORK] = plan._replace(session=changed)
    stop = director.on_created(changed.id, recording.header, recording.events[:1])
    assert stop is not None
    assert stop.reason == (
        f"header: seedLength is {recording.header.seed_length}, recorded was 0"
    )


def test_limits_are_what_was_recorded() -> None:
    scenario = scenario_of(TREES["nested_forks"]())
    assert ReplayDirector(scenario).limits.max_depth == 2
    assert replayed(scenario).problems == []
