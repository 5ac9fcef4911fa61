"""A replay is red for every single difference: the recording is not what it was.

Each test edits one thing and says exactly what the ledger must hold against it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from compose.trees import TREES
from nestling.harness.scenario import Scenario, build_scenario
from nestling.harness.scripts import Entry
from nestling.harness.support import hindrances
from nestling.session.errors import UnreadableError
from nestling.session.jsontext import JsonObject
from support.replays import (
    Replay,
    once,
    recordings_of,
    replayed,
    scenario_of,
    seeded,
    with_edit,
    with_session,
)

SPAWN, FORK = "/t2s1b1", "/t2s2b1"


@pytest.fixture
def scenario() -> Scenario:
    return scenario_of(TREES["spawn_and_fork"]())


def message_of(replay: Replay) -> str:
    (problem,) = replay.problems
    return problem.message


def with_chunk(
    scenario: Scenario, path: str, call: int, change: Callable[[JsonObject], bool]
) -> Scenario:
    """Change the first chunk of a call that `change` takes, in the script only."""
    script = list(scenario.by_path[path].script)
    chunks: list[JsonObject] = msgspec.json.decode(
        msgspec.json.encode(script[call].entry.chunks)
    )
    assert any(change(chunk) for chunk in chunks)
    entry = Entry("chunks", tuple(chunks))
    script[call] = msgspec.structs.replace(script[call], entry=entry)
    return with_session(scenario, path, script=tuple(script))


# --- a chunk that is served is another one -------------------------------------


def change_text(chunk: JsonObject) -> bool:
    if chunk["type"] != "text-delta":
        return False
    chunk["text"] = f"{chunk['text']}!"
    return True


def change_finish(chunk: JsonObject) -> bool:
    if chunk["type"] != "finish":
        return False
    chunk["reason"] = {"kind": "max-tokens"}
    return True


def change_usage(chunk: JsonObject) -> bool:
    if chunk["type"] != "usage":
        return False
    chunk["usage"]["outputTokens"] += 1
    return True


def change_tool_name(chunk: JsonObject) -> bool:
    if chunk["type"] != "block-end" or chunk["block"]["type"] != "tool-call":
        return False
    chunk["block"]["name"] = "other"
    return True


@pytest.mark.parametrize("change", [change_text, change_finish, change_usage])
@pytest.mark.parametrize("path", [SPAWN, FORK])
def test_a_chunk_of_a_child(
    scenario: Scenario, path: str, change: Callable[[JsonObject], bool]
) -> None:
    replay = replayed(with_chunk(scenario, path, 0, change))
    differs = ("log-differs", path)
    drifts = [("drift", path)] if change is change_text else []
    assert replay.kinds == [*drifts, differs]
    assert ": assistant/chunk: data.chunk." in replay.problems[-1].message
    # Its parent is told what was recorded and goes on, so that it is judged, too.
    assert replay.account("/").logged == len(scenario.root.recording.events)


@pytest.mark.parametrize("change", [change_text, change_finish, change_tool_name])
def test_a_chunk_of_the_root(
    scenario: Scenario, change: Callable[[JsonObject], bool]
) -> None:
    replay = replayed(with_chunk(scenario, "/", 2, change))
    # The fork comes of this call, so nothing may bind to its script.
    drifts = [] if change is change_finish else [("drift", "/")]
    assert replay.kinds == [*drifts, ("log-differs", "/")]
    assert replay.account(FORK).id is None


def test_a_chunk_too_many_or_too_few(scenario: Scenario) -> None:
    for cut in (slice(0, 2), slice(1, None)):
        script = list(scenario.by_path[SPAWN].script)
        chunks = script[0].entry.chunks[cut]
        script[0] = msgspec.structs.replace(script[0], entry=Entry("chunks", chunks))
        replay = replayed(with_session(scenario, SPAWN, script=tuple(script)))
        assert replay.kinds == [("log-differs", SPAWN)]


def test_swapped_scripts(scenario: Scenario) -> None:
    scripts = {path: scenario.by_path[path].script for path in (SPAWN, FORK)}
    swapped = with_session(scenario, SPAWN, script=scripts[FORK])
    swapped = with_session(swapped, FORK, script=scripts[SPAWN])
    for seed in range(20):
        replay = replayed(swapped, seeded(seed))
        assert replay.kinds == [("log-differs", SPAWN), ("log-differs", FORK)]


def test_swapped_scripts_of_concurrent_twins() -> None:
    scenario = scenario_of(TREES["parallel_children"]())
    paths = ("/t2s1b1", "/t2s1b2")
    scripts = [scenario.by_path[path].script for path in paths]
    swapped = with_session(scenario, paths[0], script=scripts[1])
    swapped = with_session(swapped, paths[1], script=scripts[0])
    for seed in range(20):
        kinds = replayed(swapped, seeded(seed)).kinds
        assert sorted(kinds) == [("log-differs", path) for path in paths]


# --- an event of the recorded log is another one -------------------------------


def edit_text(data: JsonObject) -> None:
    data["message"]["content"][-1]["text"] += "!"


def edit_prompt(data: JsonObject) -> None:
    data["content"][0]["text"] += "!"


def edit_result(data: JsonObject) -> None:
    data["message"]["content"][0]["content"][0]["text"] += "!"


def edit_reason(data: JsonObject) -> None:
    data["reason"] = {"kind": "max-tokens"}


def edit_usage(data: JsonObject) -> None:
    data["usage"]["inputTokens"] += 1


def edit_arguments(data: JsonObject) -> None:
    data["arguments"] += " "


@pytest.mark.parametrize(
    ("kind", "change", "place"),
    [
        ("assistant/message", edit_text, "assistant/message: data.message.content"),
        ("assistant/message", edit_usage, "assistant/message: data.usage.inputTokens"),
        ("turn/end", edit_reason, "turn/end: data.reason.kind"),
    ],
)
@pytest.mark.parametrize("path", [SPAWN, FORK])
def test_an_own_event_of_a_child(
    scenario: Scenario,
    path: str,
    kind: str,
    change: Callable[[JsonObject], None],
    place: str,
) -> None:
    # The second of a fork's events of that type is the first of its own.
    at = 1 if path == FORK else 0
    replay = replayed(with_edit(scenario, path, once(kind, change, at)))
    assert replay.kinds == [("log-differs", path)]
    assert place in message_of(replay)


def test_an_inherited_event(scenario: Scenario) -> None:
    edited = with_edit(scenario, FORK, once("user/message", edit_prompt))
    replay = replayed(edited)
    assert replay.kinds == [("log-differs", FORK)]
    assert "user/message: data.content[0].text" in message_of(replay)
    assert replay.account(FORK).served == 0


def test_a_result_that_a_live_child_gave(scenario: Scenario) -> None:
    assert not scenario.by_path[SPAWN].is_foreign
    replay = replayed(with_edit(scenario, "/", once("tool/result", edit_result)))
    assert replay.kinds == [("log-differs", "/")]
    assert "tool/result: data.message.content[0].content[0].text" in message_of(replay)


def test_a_tool_call(scenario: Scenario) -> None:
    replay = replayed(with_edit(scenario, "/", once("tool/call", edit_arguments)))
    assert replay.kinds == [("log-differs", "/")]


def test_the_prompt_of_a_child(scenario: Scenario) -> None:
    replay = replayed(with_edit(scenario, SPAWN, once("user/message", edit_prompt)))
    assert replay.kinds == [("log-differs", SPAWN)]
    assert message_of(replay) == (
        'the delegated prompt is "Say yes.", recorded was "Say yes.!"'
    )
    assert replay.account(SPAWN).id is None


def test_an_event_that_is_missing_or_added(scenario: Scenario) -> None:
    recording = scenario.by_path[SPAWN].recording
    shorter = recording._replace(events=recording.events[:-1])
    cut = with_session(scenario, SPAWN, recording=shorter)
    (hindrance,) = hindrances(cut)
    assert (hindrance.kind, hindrance.path) == ("not-supported", SPAWN)
    # Were it started: a worker may not be done inside of a turn.
    replay = replayed(cut)
    assert replay.kinds == [("worker-lost", SPAWN), ("log-differs", "/")]
    assert "a result with turn 1 open" in replay.problems[0].message
    last = recording.events[-1]
    again = msgspec.structs.replace(last, seq=last.seq + 1, type="note", data={})
    longer = recording._replace(events=[*recording.events, again])
    replay = replayed(with_session(scenario, SPAWN, recording=longer))
    assert replay.kinds == []  # an input: the tape holds it, and it is appended


@pytest.mark.parametrize("key", ["seedDigest", "seedLength"])
def test_the_seed_facts_of_a_child(scenario: Scenario, key: str) -> None:
    """They are counted of the live session, so that they can be compared."""
    recording = scenario.by_path[FORK].recording
    own = recording.header.seed_length
    # Past the end-seed no turn is open either: only the live count can tell.
    edited = {"seedDigest": "0" * 64, "seedLength": own + 1}
    header = recording.header.with_fields(**{key: edited[key]})
    changed = recording._replace(header=header)
    replay = replayed(with_session(scenario, FORK, recording=changed))
    assert replay.kinds == [("log-differs", FORK)]
    assert message_of(replay).startswith(f"header: {key} is ")
    assert replay.account(FORK).served == 0


def test_stated_seed_facts_are_checked_when_loaded() -> None:
    tree = TREES["spawn_and_fork"]()
    root, spawn, fork = recordings_of(tree)
    length = fork.header.seed_length
    for fields in (
        {"seedDigest": "0" * 64},
        {"seedLength": length - 1, "seedDigest": None},
        {"seedLength": length + 1},
        {"seedLength": len(fork.events) + 1, "seedDigest": None},
    ):
        header = fork.header.with_fields(**fields)
        with pytest.raises(UnreadableError):
            build_scenario("tree", [root, spawn, fork._replace(header=header)])
