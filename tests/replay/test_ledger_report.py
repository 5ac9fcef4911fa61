"""The ledger's section of a report, and the recorded call that is nearest to a miss."""

from __future__ import annotations

from compose.trees import TREES
from nestling.harness.compose import Composer, Tree, text
from nestling.harness.ledger_report import ledger_json, ledger_lines
from nestling.harness.nearest import Nearest, nearest_call, nearest_task
from nestling.harness.normalise import Normalisers
from nestling.harness.replay_report import ReplayReport
from nestling.harness.scenario import Scenario
from nestling.session.request import request_of
from support.replays import Replay, replayed, scenario_of, with_session

SPAWN, FORK = "/t2s1b1", "/t2s2b1"


def mixed() -> Scenario:
    return scenario_of(TREES["spawn_and_fork"]())


def report(replay: Replay) -> ReplayReport:
    ledger = replay.director.ledger
    return ReplayReport(
        replay.scenario, ledger.problems, ledger.accounts, {}, {}, (), ledger.nearest
    )


def test_a_balanced_ledger() -> None:
    found = report(replayed(mixed()))
    assert ledger_json(found) == {
        "bound": ["/", SPAWN, FORK],
        "unbound": [],
        "extra": [],
        "missing": [],
        "leftover": [],
        "drift": [],
        "requestDiffers": [],
    }
    assert list(ledger_lines(found)) == ["ledger: 3 of 3 recorded sessions bound"]


def test_an_extra_call_and_what_is_nearest() -> None:
    """The answer is missing; the request is most like the one it was recorded for."""
    found = report(replayed(with_session(mixed(), FORK, script=())))
    (extra,) = ledger_json(found)["extra"]
    assert extra["path"] == FORK
    assert extra["message"] == "call 1 (turn 2, step 1) is beyond the 0 recorded ones"
    assert extra["nearest"].keys() == {"path", "call", "similarity"}
    assert list(ledger_lines(found))[-1].startswith(f"  extra-call {FORK}: nearest ")


def test_calls_that_are_left_over() -> None:
    script = mixed().by_path[SPAWN].script
    found = report(replayed(with_session(mixed(), SPAWN, script=script * 3)))
    (left,) = ledger_json(found)["leftover"]
    assert (left["path"], left["calls"]) == (SPAWN, [2, 3])
    assert f"  not asked for: calls 2 to 3 of {SPAWN}" in list(ledger_lines(found))


def test_children_that_do_not_bind() -> None:
    root = Composer("root", 1_000)
    root.turn("Go.")
    root.says(text("alone"))
    root.end()
    replay = replayed(mixed())
    for path in (SPAWN, FORK):
        replay.account(path).id = None
    found = report(replay)
    assert ledger_json(found)["unbound"] == [SPAWN, FORK]
    assert list(ledger_lines(found))[1] == f"  unbound: {SPAWN}, {FORK}"


# --- the nearest call ------------------------------------------------------------


def talk(*prompts: str) -> Scenario:
    root = Composer("root", 1_000)
    for prompt in prompts:
        root.turn(prompt)
        root.says(text("Well."))
        root.end()
    return scenario_of(Tree(root))


def test_the_nearest_call_is_the_one_itself() -> None:
    scenario = talk("Name a port.", "Name a ship.", "How deep is it?")
    events = scenario.root.recording.events
    for number, call in enumerate(scenario.root.script, start=1):
        assert call.place is not None
        request = request_of(events[: call.place.first_seq])
        found = nearest_call(request, scenario.sessions, Normalisers())
        assert found == Nearest("/", number, 1.0)


def test_the_nearest_call_has_most_words_in_common() -> None:
    events = talk("What is its length?", "Tell me: how deep is the berth?").root
    assert events.script[1].place is not None
    last = events.recording.events[: events.script[1].place.first_seq]
    scenario = talk("Name a port.", "Name a ship.", "How deep is the berth?")
    found = nearest_call(request_of(last), scenario.sessions, Normalisers())
    assert found is not None
    assert (found.path, found.call) == ("/", 3)
    assert 0 < found.similarity < 1
    assert str(found).startswith("nearest recorded: call 3 of / (")


def test_no_call_at_all() -> None:
    scenario = talk("Go.")
    request = request_of(scenario.root.recording.events)
    assert nearest_call(request, [], Normalisers()) is None
    assert nearest_task("Go.", scenario.sessions) is None


def test_the_nearest_task() -> None:
    sessions = mixed().sessions
    found = {
        each.path: each.own_events
        for each in sessions
        if each.path is not None and each.delegation is not None
    }
    for path, own in found.items():
        prompt = next(e.data for e in own if e.type == "user/message")
        nearest = nearest_task(prompt["content"][0]["text"] + " please", sessions)
        assert nearest is not None
        assert nearest.path == path
