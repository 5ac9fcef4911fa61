"""A replay is red when the code does the wrong thing with a good recording.

Each test breaks one thing (by a patch) and says exactly what the ledger must hold
against it; without the patch the same replay is ok.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from compose.trees import TREES, finished, root_with_turn
from nestling.driver.director import Delegation
from nestling.driver.hub_session import HubSession
from nestling.driver.requests import Requests
from nestling.harness import scripts as scripts_module
from nestling.harness.compose import Tree, fork_call, text
from nestling.harness.own import own_part
from nestling.harness.plan import make_plan
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario
from nestling.harness.scripts import Entry
from nestling.harness.tape_runner import TapeRunner
from nestling.session import boundary
from nestling.session import log as log_module
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject, dumps
from nestling.session.reading import Recording
from nestling.session.turns import TurnTracker
from nestling.wire.messages import Delegate
from nestling.worker import endpoint as endpoint_module
from nestling.worker.loop import TurnLoop
from support.replays import Replay, replayed, scenario_of, with_session

SPAWN, FORK = "/t2s1b1", "/t2s2b1"


def mixed() -> Scenario:
    return scenario_of(TREES["spawn_and_fork"]())


def test_nothing_is_wrong_without_a_patch() -> None:
    assert replayed(mixed()).problems == []


# --- the slice at the boundary -------------------------------------------------


def test_the_slice_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork is answered with its parent's first answer (C1)."""
    with monkeypatch.context() as patch:
        patch.setattr(boundary, "own_events", lambda events, _: events)
        scenario = mixed()
    fork = scenario.by_path[FORK]
    assert len(fork.script) == 2
    replay = replayed(scenario)
    assert replay.kinds == [("log-differs", FORK)]
    assert replay.account(FORK).served == 1


def test_the_slice_is_not_made_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary, "own_events", lambda events, _: events)
    assert replayed(mixed()).kinds == [("log-differs", FORK)]


def test_the_slice_is_counted_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed row is one line and many events, so lines run out too late."""

    def own_by_lines(recording: Recording) -> Sequence[Event]:
        own_part(recording)
        boundary_line = 1 + recording.header.seed_length
        return [
            event
            for event, line in zip(recording.events, recording.lines, strict=True)
            if line > boundary_line
        ]

    with monkeypatch.context() as patch:
        patch.setattr(scripts_module, "own_part", own_by_lines)
        scenario = long_winded()
    fork = scenario.by_path["/t2s1b0"]
    assert fork.recording.lines[-1] - 1 <= fork.seed_length
    assert fork.script == ()
    replay = replayed(scenario)
    assert replay.kinds == [("extra-call", "/t2s1b0")]
    assert replayed(long_winded()).kinds == []


def long_winded() -> Scenario:
    """A fork whose seed has more events than its whole file has lines (C1)."""
    root = root_with_turn("Tell me all.")
    root.says(
        text("All of it, word for word, and every word is a chunk of its own. " * 5)
    )
    root.end()
    root.turn("Go on.")
    (call,) = root.says(fork_call("recall", "What was it?"))
    root.returns(finished(root.fork(call), "words"))
    root.end()
    return scenario_of(Tree(root))


# --- the prefix a fork inherits ------------------------------------------------


def shifted(monkeypatch: pytest.MonkeyPatch, by: int) -> None:
    """Let the hub cut the prefix of every fork somewhere else."""
    cut = Requests._delegation

    def shift(
        self: Requests, session: HubSession, message: Delegate, asked: JsonObject
    ) -> Delegation:
        delegation = cut(self, session, message, asked)
        length = delegation.seed_length
        return delegation._replace(seed_length=length + by if length else 0)

    monkeypatch.setattr(Requests, "_delegation", shift)


@pytest.mark.parametrize("by", [-1, 1])
def test_a_prefix_one_event_early_or_late(
    monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    shifted(monkeypatch, by)
    replay = replayed(mixed())
    # The fork is refused, so its parent is told something that was not recorded.
    assert replay.kinds == [("seed-refused", FORK), ("log-differs", "/")]
    turn = 1 if by < 0 else 2
    assert f"leave turn {turn} open" in replay.problems[0].message


@pytest.mark.parametrize("by", [-1, 1])
def test_a_prefix_one_event_early_or_late_and_no_check(
    monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    shifted(monkeypatch, by)
    monkeypatch.setattr(log_module, "check_seed", lambda _: None)
    scenario = mixed()
    length = scenario.by_path[FORK].seed_length
    replay = replayed(scenario)
    assert replay.kinds == [("log-differs", FORK)]
    assert replay.problems[0].message == (
        f"header: seedLength is {length + by}, recorded was {length}"
    )
    assert replay.account(FORK).seed_length == length + by


@pytest.mark.parametrize("by", [-1, 1])
def test_the_turns_are_counted_one_event_early_or_late(
    monkeypatch: pytest.MonkeyPatch, by: int
) -> None:
    scenario = mixed()
    follow = TurnTracker.append

    def append(self: TurnTracker, event: Event) -> None:
        follow(self, event)
        if event.type == "turn/end":
            self.balanced_length += by

    monkeypatch.setattr(TurnTracker, "append", append)
    assert replayed(scenario).kinds == [("seed-refused", FORK), ("log-differs", "/")]


# --- what the worker makes -----------------------------------------------------


def test_an_input_is_not_logged_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    append = TurnLoop.append_input

    def edited(self: TurnLoop, content: JsonObject) -> Event:
        if content["type"] == "user/message":
            block = content["data"]["content"][0]
            block = {**block, "text": block["text"].upper()}
            content = {**content, "data": {**content["data"], "content": [block]}}
        return append(self, content)

    monkeypatch.setattr(TurnLoop, "append_input", edited)
    replay = replayed(mixed())
    assert replay.kinds == [("log-differs", "/")]
    assert "user/message: data.content[0].text" in replay.problems[0].message


def test_a_worker_that_delegates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are served, the logs are equal, and two scripts are left over."""
    monkeypatch.setattr(endpoint_module, "_delegated", lambda _: None)
    replay = replayed(mixed())
    assert replay.kinds == [("script-not-bound", SPAWN), ("script-not-bound", FORK)]


def test_a_child_of_the_plan_that_nobody_delegates() -> None:
    scenario = mixed()
    director = ReplayDirector(scenario)
    path = "/t2s3b0"
    director._plans[path] = make_plan(scenario.by_path[SPAWN])
    director.ledger.open(path, 1)
    TapeRunner(director).run()
    director.close()
    found = [(problem.kind, problem.path) for problem in director.ledger.problems]
    assert found == [("script-not-bound", path)]


def test_a_delegation_that_was_not_recorded() -> None:
    """A child is missing in the plan, and so is what its parent was told."""
    scenario = mixed()
    director = ReplayDirector(scenario)
    del director._plans[SPAWN]
    del director.ledger.accounts[SPAWN]
    plan = director._plans["/"]
    results = {place: each for place, each in plan.results.items() if place[1] != 1}
    director._plans["/"] = plan._replace(results=results)
    TapeRunner(director).run()
    director.close()
    found = [(problem.kind, problem.path) for problem in director.ledger.problems]
    assert found == [("session-without-script", SPAWN), ("log-differs", "/")]


# --- scripts of another length -------------------------------------------------


def overridden(change: Callable[[list[JsonObject]], object]) -> Replay:
    """Replay the tree with another script for its root."""
    entries = [call.entry.to_json() for call in mixed().root.script]
    document = change(entries)
    tree = TREES["spawn_and_fork"]()
    return replayed(scenario_of(tree, override=dumps(document)))


def test_the_last_call_is_removed() -> None:
    replay = overridden(lambda entries: entries[:-1])
    assert replay.kinds == [("extra-call", "/")]
    assert replay.problems[0].message == (
        "call 4 (turn 2, step 3) is beyond the 3 recorded ones"
    )


def test_a_call_is_added() -> None:
    patch = {"at": 4, "entry": {"kind": "chunks", "chunks": []}}
    replay = overridden(lambda _: {"patches": [patch]})
    assert replay.kinds == [("leftover-call", "/")]
    assert replay.problems[0].message == "4 of 5 recorded calls were asked for"


def test_the_same_script_again_is_ok() -> None:
    assert overridden(lambda entries: entries).kinds == []


def test_a_call_fails_that_did_not() -> None:
    chunks = mixed().root.script[0].entry.chunks[:-1]
    entry = Entry("throw", chunks, "the line is dead", "TRANSPORT").to_json()
    replay = overridden(lambda _: {"patches": [{"at": 0, "entry": entry}]})
    assert replay.kinds == [("log-differs", "/")]


def test_a_call_of_a_child_is_removed() -> None:
    replay = replayed(with_session(mixed(), FORK, script=()))
    assert replay.kinds == [("extra-call", FORK)]


def test_a_call_of_a_child_is_added() -> None:
    script = mixed().by_path[FORK].script
    replay = replayed(with_session(mixed(), FORK, script=script * 2))
    assert replay.kinds == [("leftover-call", FORK)]


# --- what never comes ----------------------------------------------------------


def test_a_hang_that_nobody_ends() -> None:
    replay = overridden(lambda _: {"patches": [{"at": 3, "entry": {"kind": "hang"}}]})
    assert replay.runner.stalled == []
    assert replay.kinds == [("log-differs", "/")]  # its prefix was never recorded


def test_a_hang_that_looks_as_recorded() -> None:
    scenario = mixed()
    script = list(scenario.by_path[SPAWN].script)
    kept = script[0].entry.chunks[:2]
    crash = Entry("crash", kept, reason={"kind": "interrupted"})
    call = type(script[0])(crash, "turn", script[0].place)
    replay = replayed(with_session(scenario, SPAWN, script=(call,)))
    assert dict(replay.runner.stalled) == {
        "/": f"its child {SPAWN}",
        SPAWN: "call 1",
    }
    assert replay.kinds == []  # a stall is judged by who ends the run
    assert not replay.account("/").is_different
