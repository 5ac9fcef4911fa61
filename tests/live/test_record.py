"""`nestling record`, and `nestling replay` of what it wrote."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nestling.harness import load_scenario
from support.leaks import no_leaks
from support.processes import NESTLING, Lines, needs_linux
from support.recordings import PATHS, Folder, command, new_folder

LAUNCHERS = pytest.mark.parametrize("launcher", ["exec", "template"])


@pytest.fixture(scope="module")
def recorded(box: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """One recording for tests that only read it."""
    folder = new_folder(tmp_path_factory.mktemp("recorded") / "tree")
    assert folder.record().exit_code == 0
    folder.ran()
    return folder


# --- what goes well --------------------------------------------------------------------


@LAUNCHERS
def test_a_recording_replays(tmp_path: Path, launcher: str) -> None:
    """With its agent and as a tape; times and ids apart, it records the same again."""
    folder = new_folder(tmp_path / "tree")
    result = folder.record("--json", "--launcher", launcher)
    # What the model's module prints is not the program's output.
    assert (result.exit_code, result.err) == (0, "printed by the model's module\n")
    assert result.json["verdict"] == "ok"
    assert [session["path"] for session in result.json["sessions"]] == list(PATHS)
    assert [s["kind"] for s in result.json["sessions"]] == [
        "root",
        "spawn",
        "spawn",
        "fork",
    ]
    assert folder.ran() == 2
    assert list(folder.logs()) == [
        "session.1.jsonl",
        "session.2.jsonl",
        "session.3.jsonl",
        "session.jsonl",
    ]
    for agent in ((), ("--agent", "tape")):
        replay = folder.replay("--json", "--launcher", launcher, *agent)
        assert replay.json["problems"] == []
        assert (replay.exit_code, replay.err) == (0, "")


def test_what_is_recorded(recorded: Folder) -> None:
    scenario = load_scenario(recorded.path)
    root = scenario.root.recording.header
    assert root.id == "tree"
    for path in PATHS[1:]:
        header = scenario.by_path[path].recording.header
        assert header.spawned_by is not None
        assert header.parent_session == "tree"
    fork = scenario.by_path["/t2s1b4"]
    assert fork.seed_length > 0
    assert fork.recording.header.seed_digest is not None


def test_text_for_people(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "tree")
    result = folder.record()
    assert result.exit_code == 0
    assert result.out.endswith(
        "ok: tree, 4 sessions recorded, and seen to replay as a tape\n"
    )


def test_recorded_tools_are_not_run_again(tmp_path: Path) -> None:
    """But for one that delegated, whose child must be asked for."""
    folder = new_folder(tmp_path / "tree")
    folder.configure(tools="recorded")
    folder.record()
    assert folder.ran() == 2
    assert folder.replay().exit_code == 0
    assert folder.ran() == 1
    assert folder.replay("--agent", "tape").exit_code == 0
    assert folder.ran() == 0


def test_live_tools_are_run_again(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "tree")
    folder.configure(tools="live")
    folder.record()
    assert folder.ran() == 2
    assert folder.replay().exit_code == 0
    assert folder.ran() == 2


def test_a_folder_by_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_folder(tmp_path / "a tree, é.1")
    (folder.path / "inner").mkdir()
    monkeypatch.chdir(folder.path / "inner")
    assert command("record", "..").exit_code == 0
    assert load_scenario(folder.path).root.id == "a tree, é.1"
    assert command("replay", "..").exit_code == 0


def test_a_name_of_its_own(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "tree")
    folder.configure(name="my-tree")
    assert folder.record().exit_code == 0
    assert load_scenario(folder.path).root.id == "my-tree"


# --- who replays -----------------------------------------------------------------------


def test_another_agent(recorded: Folder) -> None:
    """The first call whose request differs is named."""
    agent = f"{recorded.path}/agent.py:other"
    result = recorded.replay("--json", "--agent", agent)
    assert result.exit_code == 1
    (first, *_) = result.json["problems"]
    assert (first["kind"], first["path"]) == ("request-differs", "/")
    told, *lines = first["message"].split("\n")
    assert told.startswith("call 1 (turn 1, step 1): the request is not the recorded")
    assert lines == [
        "system:",
        "  - You lead.",
        "  + You lead otherwise.",
    ]


@pytest.mark.parametrize(
    ("level", "exit_code", "warnings"),
    [("strict", 1, 0), ("warn", 0, 2), ("off", 0, 0)],
)
def test_the_level_of_verifying(
    recorded: Folder, level: str, exit_code: int, warnings: int
) -> None:
    agent = f"{recorded.path}/agent.py:other"
    arguments = ("--agent", agent, "--verify", level)
    result = recorded.replay("--json", *arguments)
    assert (result.exit_code, len(result.json["warnings"])) == (exit_code, warnings)
    text = recorded.replay(*arguments).out
    assert text.count("\nwarning: request-differs /") == warnings
    assert ("inputs differ" in text) == (exit_code == 0)


def test_what_helps_is_said(recorded: Folder) -> None:
    """Where the scenario's own agent was run: that is what is refreshed or recorded."""
    commands = (f"nestling {name} {recorded.path}" for name in ("refresh", "record"))
    lines = [f"`{command}`" for command in commands]
    agent = recorded.path / "agent.py"
    text = recorded.replay("--agent", f"{agent}:other").out
    assert not any(line in text for line in lines)
    config = recorded.path / "scenario.toml"
    config.write_text(config.read_text().replace(":root", ":other"))
    text = recorded.replay().out
    assert all(line in text for line in lines), text


@pytest.mark.parametrize("name", ["missing", "helper.x", "counts"])
def test_an_agent_that_is_none(recorded: Folder, name: str) -> None:
    agent = f"{recorded.path}/agent.py:{name}"
    result = recorded.replay("--json", "--agent", agent)
    assert result.exit_code == 1
    (problem, *_) = result.json["problems"]
    assert problem["kind"] == "worker-lost"
    assert "agent.py" in problem["message"]


@pytest.mark.parametrize("agent", ["nothing", "__main__:x", "x.py:", ":x"])
def test_a_reference_that_is_none(recorded: Folder, agent: str) -> None:
    result = recorded.replay("--json", "--agent", agent)
    assert result.exit_code == 2
    assert result.json["verdict"] == "error"
    assert result.json["error"].startswith(f"agent reference '{agent}' ")
    assert result.err.startswith("nestling: agent reference ")
    assert result.err.count("\n") == 1


def test_an_agent_for_a_recording_without_a_configuration(
    recorded: Folder, tmp_path: Path
) -> None:
    for name, data in recorded.logs().items():
        (tmp_path / name).write_bytes(data)
    assert command("replay", str(tmp_path)).exit_code == 0
    result = command("replay", str(tmp_path), "--agent", "agent.py:root")
    assert result.exit_code == 2
    assert "found no scenario.toml" in result.err


# --- configurations that are none ------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "found no scenario.toml"),
        ("agent = ", "scenario.toml: "),
        ("\x00", "scenario.toml: "),
        ('agent = "a.py:b"', "found no prompts and no steps, expected what"),
        ('prompts = ["a"]', "found no agent, expected an agent reference, module:name"),
        ('agent = "a.py:b"\nprompts = []', "found no prompts and no steps"),
        (
            'agent = "a.py:b"\nprompts = "go"',
            'prompts: found "go", expected a list of texts',
        ),
        (
            'agent = "a.py:b"\nprompts = ["a"]\nx = 1',
            "found an unknown key x, expected one of agent, prompts",
        ),
        ('agent = 5\nprompts = ["a"]', "agent: found 5, expected an agent reference"),
        ('agent = "a"\nprompts = ["a"]', "scenario.toml: agent: agent reference 'a'"),
        (
            'agent = "a.py:b"\nprompts = ["a"]\nname = "a\\n"',
            'name: found "a\\n", expected a text of letters',
        ),
        (
            'agent = "a.py:b"\nprompts = ["a"]\n[normalisers]\nx = "(a+)+b"',
            "scenario.toml: normalisers.x: '(a+)+b' may take for ever",
        ),
        (
            'agent = "a.py:b"\nprompts = ["a"]\n[normalisers]\nx = "a{99999999999}"',
            "scenario.toml: normalisers.x: 'a{99999999999}' is no regular expression",
        ),
        ('agent = "a.py:b"\nprompts = ["a"]', "found no provider"),
        ('agent = "a.py:b"\nprompts = ["a"]\nprovider = "x"', "toml: provider: agent"),
        (
            'agent = "a.py:b"\nprompts = ["a"]\ntools = "none"',
            'tools: found "none", expected "recorded" or "live"',
        ),
        (
            'agent = "a.py:b"\nprompts = ["a"]\nname = "a/b"',
            'name: found "a/b", expected a text of letters, digits',
        ),
        ('agent = "a.py:b"\nprompts = ["a"]\n[options]\nx = 2020-01-01', "options"),
        ('agent = "a.py:b"\nprompts = ["a"]\n[options]\nx = nan', "not a JSON number"),
        (
            'agent = "a.py:b"\nprompts = ["a"]\nverify = "much"',
            'verify: found "much", expected "strict", "warn" or "off"',
        ),
        (
            'agent = "a.py:b"\nprompts = ["a"]\nnormalise = ["x"]',
            'normalise.0: found "x", expected a list of "time", "cwd", "uuid"',
        ),
        (
            'agent = "a.py:b"\nprompts = ["a"]\n[normalisers]\nx = "["',
            "scenario.toml: normalisers.x: '[' is no regular expression",
        ),
        (
            'agent = "a.py:b"\nprompts = ["a"]\n[normalisers]\nx = 5',
            'normalisers: found {"x":5}, expected a table of names',
        ),
        ("x = " + "[" * 5000, "scenario.toml: "),
    ],
)
def test_what_is_no_configuration(tmp_path: Path, text: str | None, told: str) -> None:
    folder = new_folder(tmp_path / "tree")
    config = folder.path / "scenario.toml"
    if text is None:
        config.unlink()
    else:
        config.write_text(text)
    result = folder.record("--json")
    assert result.exit_code == 2
    assert result.json["verdict"] == "error"
    assert told.lower() in result.json["error"].lower()
    assert result.err.startswith("nestling: ")
    assert result.err.count("\n") == 1
    assert folder.logs() == {}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    result = command("record", str(tmp_path / "no"), "--json")
    assert result.exit_code == 2
    assert "found no scenario.toml" in result.json["error"]


# --- recordings that fail --------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "told"),
    [
        ("missing.py:model", "missing.py does not exist"),
        ("model.py:missing", "has no attribute 'missing'"),
        ("model.py:constant", "model.py:constant is 5, expected a provider"),
        ("model.py:makes_nothing", "makes_nothing is 5, expected a provider"),
        ("model.py:raises", "ValueError: no model today"),
        ("builtins:max", "expected a provider"),
        ("builtins:int", "expected a provider"),
    ],
)
def test_a_provider_that_is_none(recorded: Folder, provider: str, told: str) -> None:
    before = recorded.logs()
    recorded.configure(provider=provider)
    result = recorded.record("--json")
    recorded.configure()
    assert result.exit_code == 2
    assert told in result.json["error"]
    assert result.err.count("\n") == 1
    assert recorded.logs() == before


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"provider": "model.py:exhausted"}, "recording-failed", "SCRIPT_EXHAUSTED"),
        ({"provider": "model.py:no_chunks"}, "recording-failed", "BAD_CHUNK"),
        ({"agent": "agent.py:fails"}, "recording-failed", "ValueError: so"),
        ({"agent": "agent.py:dies"}, "worker-lost", "exit code 5"),
        ({"agent": "agent.py:missing"}, "worker-lost", "has no attribute 'missing'"),
        (
            {"agent": "agent.py:missing", "deaths": "recorded"},
            "worker-lost",
            "has no attribute 'missing'",
        ),
        ({"agent": "missing.py:x"}, "worker-lost", "missing.py does not exist"),
    ],
)
def test_a_recording_that_fails(
    recorded: Folder, changes: dict[str, Any], kind: str, told: str
) -> None:
    """Whatever was there is there still, byte for byte."""
    before = recorded.logs()
    recorded.configure(**changes)
    result = recorded.record("--json")
    text = recorded.record()
    recorded.configure()
    assert result.exit_code == text.exit_code == 1
    assert result.json["verdict"] == "failed"
    assert kind in {problem["kind"] for problem in result.json["problems"]}
    assert any(told in problem["message"] for problem in result.json["problems"])
    assert text.out.endswith("failed: nothing was written\n")
    assert recorded.logs() == before


def test_a_death_that_is_to_be_recorded(recorded: Folder) -> None:
    deadly: dict[str, Any] = {"agent": "agent.py:dies_late", "prompts": ["Go."]}
    recorded.configure(**deadly)
    assert "worker-lost" in recorded.record().out
    recorded.configure(**deadly, deaths="recorded")
    assert recorded.record().exit_code == 0
    assert '"interrupted"' in (recorded.path / "session.jsonl").read_text()
    for more in ((), ("--agent", "tape")):
        result = recorded.replay("--json", *more)
        assert (result.exit_code, result.json["problems"]) == (0, [])
    recorded.configure()
    assert recorded.record().exit_code == 0


def test_a_recording_that_does_not_move(recorded: Folder) -> None:
    before = recorded.logs()
    recorded.configure(provider="model.py:hangs")
    result = recorded.record("--json", "--stall", "0.3")
    recorded.configure()
    assert result.exit_code == 1
    (problem, *_) = result.json["problems"]
    assert (problem["kind"], problem["path"]) == ("stall", "/")
    assert "/ waits for call 1" in problem["message"]
    assert recorded.logs() == before


@needs_linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recording_that_is_interrupted(
    recorded: Folder, box: Path, number: signal.Signals
) -> None:
    before = recorded.logs()
    recorded.configure(provider="model.py:hangs")
    with no_leaks(box):
        process = subprocess.Popen(
            [*NESTLING, "record", str(recorded.path), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        Lines(process.stderr.fileno()).until("hangs")
        process.send_signal(number)
        out, _ = process.communicate(timeout=20)
    recorded.configure()
    assert (process.returncode, out) == (130, b"")
    assert recorded.logs() == before


def test_a_folder_that_cannot_be_written(recorded: Folder) -> None:
    """Something is in the way of one of the new files."""
    before = recorded.logs()
    blocked = recorded.path / ".session.jsonl.new"
    blocked.mkdir()
    recorded.configure(prompts=["Remember this.", "Go on."])
    result = recorded.record("--json")
    recorded.configure()
    blocked.rmdir()
    assert result.exit_code == 2
    assert "cannot write" in result.json["error"]
    assert recorded.logs() == before
