"""The examples show what their pages say that they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from nestling.harness.scenario import RecordedSession
from nestling.session.event import Event
from nestling.session.outcome import outcome
from support.examples import EXAMPLES, FOLDER, SOURCES, example
from support.replays import replayed, seeded

TREES: Final[dict[str, dict[str, tuple[str, int, str]]]] = {
    "crash": {
        "/": ("root", 0, "It is still 3 m deep."),
        "/t1s1b1": ("spawn", 0, "It is 3 m deep."),
        "/t1s1b2": ("spawn", 0, "I take a sounding."),
        "/t2s1b0": ("fork", 1, "3 m, and I stayed away from the reef."),
    },
    "deep": {
        "/": ("root", 0, "Both are known now."),
        "/t2s1b1": ("fork", 1, "Confirmed: buoy."),
        "/t2s1b1/t2s1b1": ("fork", 1, "Known: buoy."),
        "/t3s1b1": ("fork", 2, "Confirmed: buoy and shoal."),
        "/t3s1b1/t3s1b1": ("fork", 2, "Known: buoy and shoal."),
        "/t3s1b1/t3s1b2": ("spawn", 0, "Known: nothing."),
    },
    "first-turn-fork": {
        "/": ("root", 0, "This one knew the code: LANTERN."),
        "/t1s1b1": ("fork", 0, "None that I know of."),
        "/t2s1b1": ("fork", 1, "LANTERN"),
    },
    "mixed": {
        "/": ("root", 0, "The helper said GULL, and the harbour code is LANTERN."),
        "/t2s1b1": ("spawn", 0, "GULL"),
        "/t2s2b1": ("fork", 1, "LANTERN"),
    },
    "retry": {"/": ("root", 0, "That one is 7 m deep.")},
}
"""What each session is, how many turns it inherited, and what it came to."""


def told(name: str) -> dict[str, tuple[str, int, str]]:
    """Return what the sessions of an example are."""
    return {
        path: (each.kind, _inherited_turns(each), outcome(each.own_events).text)
        for path, each in example(name).by_path.items()
    }


def _inherited_turns(session: RecordedSession) -> int:
    seed = session.recording.events[: session.seed_length]
    return sum(event.type == "turn/end" for event in seed)


def _prompt(session: RecordedSession) -> str:
    said = next(each for each in session.own_events if each.type == "user/message")
    return str(said.data["content"][0]["text"])


def _root_events(name: str, *kinds: str) -> list[Event]:
    events = example(name).root.recording.events
    return [event for event in events if event.type in kinds]


def test_no_example_is_left_out() -> None:
    folders = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
    assert folders == sorted(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_an_example_consists_of(name: str) -> None:
    count = len(example(name).sessions)
    logs = ["session.jsonl", *(f"session.{n}.jsonl" for n in range(1, count))]
    found = {path.name for path in (FOLDER / name).iterdir() if path.is_file()}
    assert found == {*SOURCES, *logs, "README.md"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_nothing_of_the_machine_is_in_it(name: str) -> None:
    for log in (FOLDER / name).glob("*.jsonl"):
        text = log.read_text()
        for word in (str(FOLDER.parent), str(Path.home()), "/tmp", ".py", "cwd"):
            assert word not in text


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_page_draws_the_tree(name: str) -> None:
    page = (FOLDER / name / "README.md").read_text()
    assert f"nestling replay examples/{name}" in page
    drawn = [
        line for line in page.splitlines() if line.startswith(("├", "└", "│", " "))
    ]
    paths = [path for path in example(name).by_path if path != "/"]
    if name == "fan-out":  # the page leaves out the middle of either half
        paths = [paths[n] for n in (0, 1, 8, 9, -1)]
    assert len(drawn) == len(paths)
    for path, line in zip(paths, drawn, strict=True):
        kind = example(name).by_path[path].kind
        assert line.lstrip("│├└─ ").split()[:2] == [path.rpartition("/")[2], kind]


@pytest.mark.parametrize("name", TREES)
def test_the_tree(name: str) -> None:
    assert told(name) == TREES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_replays_in_one_thread_on_many_schedules(name: str) -> None:
    scenario = example(name)
    for seed in range(20):
        assert replayed(scenario, seeded(seed)).problems == []


# --- one by one ----------------------------------------------------------------


def test_the_fork_of_mixed_is_not_told_the_code_again() -> None:
    sessions = example("mixed").by_path
    assert "GULL" in _prompt(sessions["/t2s1b1"])
    assert "LANTERN" not in _prompt(sessions["/t2s2b1"])


def test_twins() -> None:
    sessions = example("twins").by_path
    assert list(sessions) == ["/", "/t1s1b1", "/t1s1b2"]
    first, second = (sessions[path] for path in ("/t1s1b1", "/t1s1b2"))
    assert _prompt(first) == _prompt(second)
    answers = {outcome(each.own_events).text for each in (first, second)}
    assert answers == {"HERON", "TERN"}
    _at_the_same_time("twins", 2)


def _at_the_same_time(name: str, count: int) -> None:
    """Check that all of `count` calls were made before any had a result."""
    events = _root_events(name, "tool/call", "tool/result")
    kinds = ["tool/call"] * count + ["tool/result"] * count
    assert [event.type for event in events] == kinds


def test_fan_out() -> None:
    found = told("fan-out")
    assert found.pop("/") == ("root", 0, "All sixteen are seen.")
    by_model = [f"/t2s1b{block}" for block in range(1, 9)]
    by_code = [f"/t2s1kberth-{berth}" for berth in range(9, 17)]
    assert list(found) == [*by_model, *by_code]
    for berth, (kind, turns, text) in enumerate(found.values(), start=1):
        assert (kind, turns) == [("fork", 1), ("spawn", 0)][berth % 2]
        assert text.startswith(f"Berth {berth}: ")
        assert text.endswith(", ANCHOR." if turns else ", no watchword.")
    _at_the_same_time("fan-out", 8)


def test_a_fork_in_the_first_turn_has_no_seed() -> None:
    headers: list[dict[str, Any]] = []
    for n in (1, 2):
        log = FOLDER / "first-turn-fork" / f"session.{n}.jsonl"
        headers.append(json.loads(log.read_text().partition("\n")[0]))
    assert [header["spawnedBy"]["context"] for header in headers] == ["fork", "fork"]
    assert ["seedLength" in header for header in headers] == [False, True]
    sessions = example("first-turn-fork").by_path
    assert _prompt(sessions["/t1s1b1"]) == _prompt(sessions["/t2s1b1"])


def test_a_death_in_a_tool_is_told_to_the_parent() -> None:
    lost = example("crash").by_path["/t1s1b2"].own_events
    *_, call, result, step_end, end = lost
    assert [call.type, step_end.type] == ["tool/call", "step/end"]
    assert result.data["error"]["code"] == "TOOL_OUTCOME_UNKNOWN"
    assert end.data["reason"] == {"kind": "interrupted"}
    told = _root_events("crash", "tool/result")[1].data["message"]["content"][0]
    said = told["content"][-1]["text"]
    assert told["isError"]
    assert said == (
        f"Diagnostic: its worker ended (SIGKILL) after event {call.seq}, tool/call"
    )


def test_a_call_that_fails_is_made_again_in_its_step() -> None:
    script = example("retry").root.script
    places = [(call.place.turn, call.place.step) for call in script if call.place]
    assert places == [(1, 1), (1, 1), (1, 2), (2, 1), (2, 2)]
    finish = script[0].entry.chunks[-1]
    assert finish["reason"]["failure"]["code"] == "SERVER"
    traces = _root_events("retry", "llm/retry", "llm/retry-started")
    assert [event.type for event in traces] == ["llm/retry", "llm/retry-started"]


def test_a_call_id_is_used_again_in_a_later_turn() -> None:
    calls = _root_events("retry", "tool/call")
    assert [(e.data["turn"], e.data["callId"]) for e in calls] == [(1, "c1"), (2, "c1")]
    results = _root_events("retry", "tool/result")
    blocks = [event.data["message"]["content"][0] for event in results]
    assert [block["content"][0]["text"] for block in blocks] == ["4 m", "7 m"]
