"""Every recorded tree of the corpus, against what its own project says of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nestling.harness.scenario import Scenario
from nestling.harness.scenario_io import load_scenario
from nestling.harness.script_report import script_json, script_text
from nestling.session import boundary
from nestling.session.event import Event
from support.corpus import dsh_folders, needs_corpus

pytestmark = needs_corpus

FOLDERS = [pytest.param(folder, id=folder.name) for folder in dsh_folders()]


def _golden(folder: Path) -> dict[str, Any]:
    golden: dict[str, Any] = json.loads((folder / "golden.json").read_bytes())
    return golden


def _forked() -> list[Any]:
    return [
        pytest.param(folder, id=folder.name)
        for folder in dsh_folders()
        if "scripts_without_slice" in _golden(folder)
    ]


def _entries(scenario: Scenario, session_id: str) -> list[Any]:
    return [call.entry.to_json() for call in scenario.by_id[session_id].script]


def _mixed() -> Path:
    return next(f for f in dsh_folders() if f.name == "acp-agent__subagent-mixed")


def test_the_corpus_is_there() -> None:
    assert FOLDERS
    assert _forked()


@pytest.mark.parametrize("folder", FOLDERS)
def test_scripts_seed_lengths_and_counts_equal_the_golden_ones(folder: Path) -> None:
    golden = _golden(folder)
    sessions = script_json(load_scenario(folder))["sessions"]
    assert sessions[0]["primary"]
    found = {session["recordedId"]: session for session in sessions}
    assert len(found) == len(sessions) == len(golden["scripts"])
    for expected in golden["scripts"]:
        session = found[expected["recordedId"]]
        assert session["entries"] == expected["entries"]
        assert session["primary"] == expected["primary"]
        assert session["createdAt"] == expected["createdAt"]
    # Headers and counts stand in the order of the files.
    for header, count in zip(golden["headers"], golden["event_counts"], strict=True):
        assert found[header["id"]]["seedLength"] == header["seedLength"]
        assert found[header["id"]]["events"] == count


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_session_has_a_path_and_every_place_holds_its_chunks(
    folder: Path,
) -> None:
    scenario = load_scenario(folder)
    assert scenario.root.path == "/"
    for session in scenario.sessions:
        assert session.path is not None
        for call in session.script:
            place = call.place
            if place is None or call.purpose == "summary":
                continue
            events = session.recording.events[place.first_seq : place.end_seq]
            chunks = [e.data["chunk"] for e in events if e.type == "assistant/chunk"]
            # An override says something else, or has only part of it.
            if call.entry.kind == "chunks" and folder.name != TITLED:
                assert chunks == list(call.entry.chunks)
    assert script_text(scenario)


TITLED = "acp-agent__session-title-after-turn"


def test_the_mixed_tree_has_these_paths() -> None:
    sessions = load_scenario(_mixed()).sessions
    assert [(s.path, s.kind, s.seed_length, s.depth) for s in sessions] == [
        ("/", "root", 0, 0),
        ("/t2s1b1", "spawn", 0, 1),
        ("/t2s2b1", "fork", 36, 1),
    ]


@pytest.mark.parametrize("folder", _forked())
def test_without_the_slice_the_wrong_scripts_come_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when the boundary is ignored: the fork also plays its parent's calls."""
    golden = _golden(folder)
    right = load_scenario(folder)
    _slice_nothing(monkeypatch)
    wrong = _children_scripts(folder)
    for expected in golden["scripts_without_slice"]:
        session_id = golden["headers"][expected["file_index"]]["id"]
        assert wrong[session_id] == expected["entries"]
        assert wrong[session_id] != _entries(right, session_id)


def test_a_boundary_counted_in_lines_gives_other_scripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Red when ``seedLength`` counts lines: packed rows hold many events."""
    folder = _mixed()
    right = load_scenario(folder)
    fork = right.by_path["/t2s2b1"]
    lines = sorted(set(fork.recording.lines))

    def by_lines(events: Sequence[Event], seed_length: int) -> Sequence[Event]:
        if seed_length == 0:
            return events
        first = lines[seed_length]
        return events[fork.recording.lines.index(first) :]

    monkeypatch.setattr(boundary, "own_events", by_lines)
    wrong = _children_scripts(folder)
    assert wrong[fork.id] != _entries(right, fork.id)


def _slice_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(events: Sequence[Event], seed_length: int) -> Sequence[Event]:
        return events

    monkeypatch.setattr(boundary, "own_events", everything)


def _children_scripts(folder: Path) -> dict[str, list[Any]]:
    """Load each log by itself: a wrong slice also makes pairing fail."""
    scenarios = [load_scenario(log) for log in sorted(folder.glob("session*.jsonl"))]
    return {s.root.id: _entries(s, s.root.id) for s in scenarios}
