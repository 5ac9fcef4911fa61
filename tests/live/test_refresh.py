"""`nestling refresh`: what is equal stays to the byte, what differs is written anew."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nestling.harness import load_scenario
from support.examples import EXAMPLES, FOLDER
from support.processes import NESTLING
from support.recordings import Folder, command, new_folder


def files(folder: Path) -> dict[str, bytes]:
    """What is in a folder, beside what an import of its agents leaves."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def made(box: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """One recording, to be copied."""
    folder = new_folder(tmp_path_factory.mktemp("made") / "tree")
    assert folder.record().exit_code == 0
    return folder


@pytest.fixture
def folder(made: Folder, tmp_path: Path) -> Folder:
    """A recording to change; its tools leave their marks where they were recorded."""
    shutil.copytree(made.path, tmp_path / "tree")
    return Folder(tmp_path / "tree", made.marks)


def unnamed(data: Any) -> Any:
    """Return what an event says without the id of its message."""
    if "message" in data:
        return {**data, "message": unnamed(data["message"])}
    return {key: value for key, value in data.items() if key != "id"}


def edited(folder: Folder, old: str, new: str, name: str = "agent.py") -> None:
    path = folder.path / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_untouched_tree_is_not_written(name: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER / name, tmp_path / name)
    before = files(tmp_path / name)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / name).iterdir()}
    result = command("refresh", str(tmp_path / name), "--json")
    assert (result.exit_code, result.json["changed"]) == (0, [])
    assert files(tmp_path / name) == before
    assert all(path.stat().st_mtime_ns == stamps[path] for path in stamps)


@pytest.mark.parametrize("name", ["mixed", "deep", "fan-out"])
def test_what_is_recorded_again_is_not_written(name: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER / name, tmp_path / name)
    before = files(tmp_path / name)
    assert command("record", str(tmp_path / name), "--json").exit_code == 0
    assert files(tmp_path / name) == before


def test_no_provider_is_needed(folder: Folder) -> None:
    folder.configure(provider=None)
    (folder.path / "model.py").unlink()
    result = command("refresh", str(folder.path), "--json")
    assert (result.exit_code, result.json["changed"]) == (0, [])


def test_a_changed_system_prompt(folder: Folder) -> None:
    """One line of each log that has it; a fork's copy and its digest with it."""
    before = load_scenario(folder.path)
    lines = {name: data.splitlines() for name, data in folder.logs().items()}
    edited(folder, "You lead.", "You lead them.")
    result = command("refresh", str(folder.path), "--json")
    assert result.exit_code == 0
    names = ["session.jsonl", "session.2.jsonl", "session.3.jsonl"]
    assert result.json["changed"] == names
    after = load_scenario(folder.path)
    for name, data in folder.logs().items():
        pairs = list(zip(lines[name], data.splitlines(), strict=True))
        changed = [json.loads(old)["type"] for old, new in pairs if old != new]
        expected = {
            "session.jsonl": ["request/header"],
            "session.2.jsonl": ["request/header"],
            "session.3.jsonl": ["session", "request/header"],
        }
        assert changed == expected.get(name, [])
    fork, was = after.by_path["/t2s1b4"], before.by_path["/t2s1b4"]
    assert fork.recording.header.seed_digest != was.recording.header.seed_digest
    for path, session in after.by_path.items():
        assert [c.entry for c in session.script] == [
            c.entry for c in before.by_path[path].script
        ]
    for agent in (("--verify", "strict"), ("--agent", "tape")):
        assert folder.replay("--json", *agent).json["problems"] == []
    again = command("refresh", str(folder.path), "--json")
    assert again.json["changed"] == []


def test_what_is_said_more_shifts_nothing_else(folder: Folder) -> None:
    """A message that is new; what stood there before stays, but for what places tell."""
    before = load_scenario(folder.path).root.recording
    edited(
        folder,
        'root = Agent("m/root", "You lead.", [counts, asks, subagent, subagent_fork])',
        """async def root(turn):
    turn.append("A word before.")
    tools = [counts, asks, subagent, subagent_fork]
    while True:
        reply = await turn.stream(model="m/root", system="You lead.", tools=tools)
        if not reply.tool_calls:
            return
        await turn.run_tools(reply)
""",
    )
    result = command("refresh", str(folder.path), "--json")
    assert result.json["problems"] == []
    assert "session.jsonl" in result.json["changed"]
    after = load_scenario(folder.path).root.recording
    kept = [(event.time, unnamed(event.data)) for event in after.events]
    assert [e for e in before.events if (e.time, unnamed(e.data)) not in kept] == []
    assert len(after.events) == len(before.events) + 2
    ids = [
        (event.data.get("message") or event.data)["id"]
        for event in after.events
        if event.type in ("user/message", "assistant/message", "tool/result")
    ]
    assert len(ids) == len(set(ids))
    times = [event.time for event in after.events]
    assert times == sorted(times)
    assert folder.replay("--json").json["problems"] == []


def test_a_changed_tool_result(folder: Folder) -> None:
    folder.configure(tools="live")
    edited(folder, 'return "counted"', 'return "counted twice"')
    result = command("refresh", str(folder.path), "--json")
    assert result.json["problems"] == []
    assert result.json["changed"] == ["session.jsonl"]
    assert b"counted twice" in folder.logs()["session.jsonl"]
    assert folder.replay("--json").json["problems"] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            'root = Agent("m/root", "You lead.", [counts, asks, subagent, subagent_fork])',
            'root = Agent("m/root", "You lead.", [counts, asks, subagent])',
        ),
        (
            'result = await current_turn().delegate(question, agent="agent.py:helper")',
            'class result: text = "nobody"',
        ),
    ],
)
def test_another_tree_is_not_written(folder: Folder, old: str, new: str) -> None:
    before = folder.logs()
    edited(folder, old, new)
    result = command("refresh", str(folder.path))
    assert result.exit_code == 1
    assert "`nestling record` makes the recording anew" in result.out
    assert command("refresh", str(folder.path), "--json").json["changed"] == []
    assert folder.logs() == before


def test_text_for_people(folder: Folder) -> None:
    assert command("refresh", str(folder.path)).out.endswith(
        "ok: tree, nothing changed\n"
    )
    edited(folder, "You lead.", "You lead them.")
    out = command("refresh", str(folder.path)).out
    assert "written: session.jsonl\nwritten: session.2.jsonl\n" in out
    assert out.endswith("ok: tree, 3 files written\n")


@pytest.mark.parametrize(
    "missing", ["scenario.toml", "session.jsonl", "session.1.jsonl"]
)
def test_what_is_no_scenario(folder: Folder, missing: str) -> None:
    (folder.path / missing).unlink()
    before = folder.logs()
    result = command("refresh", str(folder.path), "--json")
    assert result.exit_code == 2
    assert (result.json["verdict"], result.json["changed"]) == ("error", [])
    assert result.err.count("\n") == 1
    assert folder.logs() == before


def test_no_folder(tmp_path: Path) -> None:
    assert command("refresh", str(tmp_path / "none"), "--json").exit_code == 2


# --- at once ---------------------------------------------------------------------------


def test_many_at_once(folder: Folder) -> None:
    """Refreshes and a recording in processes of their own, and a reader meanwhile."""
    edited(folder, "You lead.", "You lead them.")
    commands = [["refresh"], ["refresh"], ["record"], ["refresh"]]
    processes = [
        subprocess.Popen(
            [*NESTLING, *each, str(folder.path), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for each in commands
    ]
    while any(process.poll() is None for process in processes):
        load_scenario(folder.path)  # it is whole, whenever it is read
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (out, err)
    found = {path.name for path in folder.path.iterdir() if path.is_file()}
    assert not [name for name in found if name.startswith(".")]
    assert b"You lead them." in folder.logs()["session.jsonl"]
    assert folder.replay("--json").json["problems"] == []
    assert command("refresh", str(folder.path), "--json").json["changed"] == []
