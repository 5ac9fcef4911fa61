"""A child's header says what really happened, so that a child in a wrong place shows.

A child is bound by its path. Were the path wrong, a header that is copied from the
recording would agree with it all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from compose.trees import TREES
from nestling.driver.director import Delegation as Asked
from nestling.driver.director import Real, Recorded, Refused
from nestling.driver.hub_session import HubSession
from nestling.driver.requests import Requests
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.replay_report import ReplayReport, report_json
from nestling.harness.scenario import Scenario, build_scenario
from nestling.session.header import Header, SpawnedBy
from nestling.session.jsontext import JsonObject
from nestling.session.reading import Recording
from nestling.session.spawn_path import child_path
from nestling.wire.agent_reference import TAPE
from nestling.wire.messages import Delegate
from support.logs import Ask, Log, recordings
from support.replays import (
    Replay,
    recordings_of,
    replayed,
    scenario_of,
    seeded,
    with_session,
)

FIRST, SECOND = "/t2s1b1", "/t2s1b2"


def without_call_ids(recording: Recording) -> Recording:
    """A recording whose header does not say by which call it was delegated."""
    stated = recording.header.spawned_by
    if stated is None:
        return recording
    bare = msgspec.to_builtins(msgspec.structs.replace(stated, call_id=None))
    header = recording.header.with_fields(spawnedBy=bare)
    return recording._replace(header=header)


def bare(name: str) -> Scenario:
    tree = recordings_of(TREES[name]())
    return build_scenario("bare", [without_call_ids(each) for each in tree])


def changed(monkeypatch: pytest.MonkeyPatch, change: Callable[[Asked], Asked]) -> None:
    """Let the hub tell something else of every delegation than happened."""
    delegation = Requests._delegation

    def told(
        self: Requests, session: HubSession, message: Delegate, asked: JsonObject
    ) -> Asked:
        return change(delegation(self, session, message, asked))

    monkeypatch.setattr(Requests, "_delegation", told)


def crosswise(delegation: Asked) -> Asked:
    other = {FIRST: SECOND, SECOND: FIRST}
    return delegation._replace(path=other.get(delegation.path, delegation.path))


def test_twins_that_are_bound_crosswise(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = scenario_of(TREES["parallel_children"]())
    assert replayed(scenario).problems == []
    changed(monkeypatch, crosswise)
    for seed in range(10):
        replay = replayed(scenario, seeded(seed))
        assert replay.kinds == [("tree-differs", FIRST), ("tree-differs", SECOND)]
        told = "the delegation differs: its tool call is"
        assert [problem.message for problem in replay.problems] == [
            f'{told} "root-c2", recorded was "root-c1"',
            f'{told} "root-c1", recorded was "root-c2"',
        ]


def test_twins_without_call_ids_that_are_bound_crosswise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = bare("parallel_children")
    assert replayed(scenario).problems == []
    changed(monkeypatch, crosswise)
    for seed in range(10):
        replay = replayed(scenario, seeded(seed))
        # Their parent is told each one's result in the place of the other.
        paths = [FIRST, SECOND, "/"]
        assert replay.kinds == [("log-differs", path) for path in paths]
        assert [problem.message for problem in replay.problems[:2]] == [
            "header: spawnedBy.block is 2, recorded was 1",
            "header: spawnedBy.block is 1, recorded was 2",
        ]


@pytest.mark.parametrize("name", ["spawn_and_fork", "nested_forks"])
def test_a_header_need_not_name_the_call(name: str) -> None:
    assert replayed(bare(name)).problems == []


def test_a_child_that_is_deeper_than_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = scenario_of(TREES["spawn_and_fork"]())
    changed(monkeypatch, lambda asked: asked._replace(depth=asked.depth + 1))
    monkeypatch.setattr(Requests, "_limited", lambda _self, _asked, decision: decision)
    replay = replayed(scenario)
    paths = ["/t2s1b1", "/t2s2b1"]
    assert replay.kinds == [("log-differs", path) for path in paths]
    for problem in replay.problems:
        assert problem.message == "header: delegationDepth is 2, recorded was 1"


def test_the_depth_of_a_tree_that_is_part_of_another() -> None:
    """The root's own depth counts; what a header does not say is not compared."""
    place = {"turn": 1, "step": 1, "block": 1, "context": "spawn"}

    def tree(child_depth: int) -> Scenario:
        root = Log("root", delegationDepth=4).turn("go").ask(Ask("work", result=None))
        more = {"spawnedBy": place, "delegationDepth": child_depth}
        child = root.child("child", 1, **more).answered("work", "done")
        return build_scenario("part", recordings(root.say("x").end(), child))

    for depth in (5, 1):
        director = ReplayDirector(tree(depth))
        header = bound(director, asked()).header
        assert header.delegation_depth == 5


def asked(parent_id: str = "root", **place: Any) -> Asked:
    fields = {"turn": 1, "step": 1, "context": "spawn", "block": 1, **place}
    spawned_by = SpawnedBy(**fields)
    return Asked(
        parent_id, child_path("/", spawned_by), spawned_by, 1, "work", "", 0, TAPE, {}
    )


def bound(director: ReplayDirector, delegation: Asked) -> Any:
    director.on_root()
    decision = director.on_delegate(delegation)
    assert isinstance(decision, Real)
    return decision.creation


def one_child(**header: Any) -> Scenario:
    root = Log("root").turn("go").ask(Ask("work", result="done", call_id="c"))
    child = root.child("child", 1, **header).answered("work", "done")
    return build_scenario("tree", recordings(root.say("x").end(), child))


def test_a_foreign_header_is_left_as_it_is() -> None:
    director = ReplayDirector(one_child())
    header: Header = bound(director, asked(call_id="c")).header
    assert header.fields == {"parentSession": "root"}


def test_a_header_that_writes_out_what_goes_without_saying() -> None:
    place = {"turn": 1, "step": 1, "block": 1, "context": "spawn", "n": 0}
    scenario = one_child(spawnedBy=place)
    director = ReplayDirector(scenario)
    recorded = scenario.sessions[1].recording.header
    assert bound(director, asked(call_id="c")).header == recorded


def test_a_child_of_another_parent() -> None:
    scenario = scenario_of(TREES["nested_forks"]())
    director = ReplayDirector(scenario)
    child = scenario.by_path["/t2s1b0/t2s1b0"]
    recorded = child.recording.header
    stated = recorded.spawned_by
    assert stated is not None
    creation = bound(
        director,
        Asked(
            "root", "/t2s1b0/t2s1b0", stated, child.depth, "Deepest.", "", 0, TAPE, {}
        ),
    )
    live = creation.header.with_fields(
        seedLength=recorded.seed_length, seedDigest=recorded.seed_digest
    )
    assert director.on_created(child.id, live, []) is not None
    (problem,) = director.ledger.problems
    assert problem.message == 'header: parentSession is "root", recorded was "root-1"'


# --- what is answered in a child's place ---------------------------------------


@pytest.mark.parametrize(
    "place", [{"n": 1}, {"n": 7}, {"block": None, "key": "k"}, {"block": None}]
)
def test_a_recorded_result_is_of_the_calls_own_delegation(place: JsonObject) -> None:
    director = ReplayDirector(one_child())
    director.on_root()
    further = asked(call_id="c", **place)
    decision = director.on_delegate(further)
    assert isinstance(decision, Refused)
    found = [(problem.kind, problem.path) for problem in director.ledger.problems]
    assert found == [("session-without-script", further.path)]


def test_a_call_of_which_only_the_result_was_recorded() -> None:
    root = Log("root").turn("go").ask(Ask("work", result="done"))
    scenario = build_scenario("tree", recordings(root.say("x").end()))
    director = ReplayDirector(scenario)
    director.on_root()
    assert isinstance(director.on_delegate(asked()), Recorded)
    assert director.ledger.problems == []


def test_a_call_id_of_any_length_is_shown_shortened() -> None:
    scenario = one_child(
        spawnedBy={"turn": 1, "step": 1, "block": 1, "context": "spawn", "callId": "c"}
    )
    director = ReplayDirector(scenario)
    director.on_root()
    decision = director.on_delegate(asked(call_id="x" * 100_000))
    assert isinstance(decision, Recorded)
    (problem,) = director.ledger.problems
    assert problem.kind == "tree-differs"
    assert problem.message.endswith('xxx", recorded was "c"')
    assert len(problem.message) < 250


def test_how_much_was_inherited_is_not_known_before() -> None:
    scenario = scenario_of(TREES["spawn_and_fork"]())
    director = ReplayDirector(scenario)
    accounts = director.ledger.accounts.values()
    assert [account.seed_length for account in accounts] == [None] * 3
    root = director.on_root()
    assert director.ledger.accounts["/"].seed_length is None, "bound, not created"
    director.on_created("root", root.header, [])
    assert [account.seed_length for account in accounts] == [0, None, None]


def told_seeds(replay: Replay) -> dict[str, int | None]:
    """How much each session inherited, as a report says it."""
    accounts = replay.director.ledger.accounts
    report = ReplayReport(replay.scenario, replay.problems, accounts, {}, {})
    sessions = report_json(report)["sessions"]
    return {session["path"]: session["seedLength"] for session in sessions}


def test_a_report_tells_what_was_inherited_live() -> None:
    scenario = scenario_of(TREES["spawn_and_fork"]())
    recorded = scenario.by_path["/t2s2b1"].recording.header.seed_length
    assert recorded > 0
    whole = {"/": 0, "/t2s1b1": 0, "/t2s2b1": recorded}
    assert told_seeds(replayed(scenario)) == whole
    # A root that gets no answer has no children, so nothing was inherited.
    silent = replayed(with_session(scenario, "/", script=()))
    assert silent.kinds == [("extra-call", "/")]
    assert told_seeds(silent) == {"/": 0, "/t2s1b1": None, "/t2s2b1": None}
