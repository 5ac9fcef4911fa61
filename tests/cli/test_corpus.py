"""The corpus of real recordings, replayed: which come out as recorded, and which not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import anyio
import pytest

from nestling.harness.replay_io import replay
from nestling.harness.replay_report import ReplayReport, report_json
from nestling.harness.scenario_io import load_scenario
from nestling.harness.support import hindrances
from support.corpus import corpus_dir, dsh_folders, needs_corpus
from support.replays import replayed

NOT_OK: Final = {
    # Its override answers another model call, the one that makes the title.
    "acp-agent__session-title-after-turn": [("log-differs", "/")],
    "acp-agent__subagent-continuable": [("not-supported", "/")],
    "acp-agent__subagent-report": [("not-supported", "/")],
    "acp-agent__handshake": [("nothing-to-replay", "/")],
}
# Each of these shows something that only processes can: a cancel that crosses the wire,
# siblings at once, three generations.
ACROSS_PROCESSES: Final = (
    "acp-agent__cancel",
    "acp-agent__cancel-tool-calls",
    "acp-agent__error-finish",
    "acp-agent__subagent-depth-two-rejection",
    "acp-agent__subagent-parallel",
    "headless-agent__compaction-recovery",
)


def across_processes(folder: Path) -> ReplayReport:
    return anyio.run(replay, load_scenario(folder))


@needs_corpus
@pytest.mark.parametrize("folder", dsh_folders(), ids=lambda folder: folder.name)
def test_a_recording_through_the_tape_runner(folder: Path) -> None:
    scenario = load_scenario(folder)
    problems = hindrances(scenario) or replayed(scenario).problems
    found = [(problem.kind, problem.path) for problem in problems]
    assert found == NOT_OK.get(folder.name, []), problems


@needs_corpus
@pytest.mark.parametrize("name", ACROSS_PROCESSES)
def test_a_recording_across_processes(name: str) -> None:
    report = across_processes((corpus_dir() or Path()) / "dsh" / name)
    assert report.is_ok, report.problems


@needs_corpus
def test_a_spawned_and_a_forked_child_across_processes() -> None:
    folder = (corpus_dir() or Path()) / "dsh" / "acp-agent__subagent-mixed"
    report = report_json(across_processes(folder))
    sessions = report["sessions"]
    assert report["verdict"] == "ok"
    assert len({session["pid"] for session in sessions} | {os.getpid()}) == 4
    facts = [
        (s["kind"], s["seedLength"], s["calls"]["served"], s["output"], s["logMatches"])
        for s in sessions
    ]
    assert facts == [
        ("root", 0, 4, "PARENT_DONE", True),
        ("spawn", 0, 1, "ALPHA", True),
        ("fork", 36, 1, "SAFFRON", True),
    ]
