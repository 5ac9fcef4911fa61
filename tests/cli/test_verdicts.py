"""`nestling replay` of what can be read: 0, or 1 with what is wrong and where."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nestling.driver.launcher_io import ExecLauncher
from nestling.harness import cli
from nestling.harness.scenario_io import load_scenario
from nestling.session.jsontext import JsonObject
from support.logs import Ask, Log, write_folder
from support.processes import NESTLING, needs_linux
from support.scenarios import MIXED, composed, hanging, overridden, saying

pytestmark = needs_linux

WORK = "support.stand_ins.undelegating"


def _invoked(*arguments: object) -> Result:
    result = CliRunner().invoke(cli.app, ["replay", *map(str, arguments)])
    assert isinstance(result.exception, SystemExit | None)
    assert result.stderr == ""
    return result


def _failed(*arguments: object) -> tuple[dict[str, Any], str]:
    """Replay to a JSON object and to text, both of which must say "failed"."""
    result = _invoked(*arguments, "--json")
    assert result.exit_code == 1
    assert result.stdout.count("\n") == 1
    printed: dict[str, Any] = json.loads(result.stdout)
    assert printed["verdict"] == "failed"
    return printed, result.stdout


def _problem(*arguments: object) -> tuple[str, str | None, str]:
    printed, _ = _failed(*arguments)
    (problem,) = printed["problems"]
    assert list(problem) == ["kind", "path", "message"]
    return problem["kind"], problem["path"], problem["message"]


def _entries(folder: Path) -> list[JsonObject]:
    return [call.entry.to_json() for call in load_scenario(folder).root.script]


# --- ok ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "launcher"),
    [
        ([], "template"),
        (["--launcher", "auto"], "template"),
        (["--launcher", "template"], "template"),
        (["--launcher", "exec"], "exec"),
    ],
)
def test_a_replay_that_is_ok_as_json(options: list[str], launcher: str) -> None:
    result = _invoked(MIXED, "--json", *options)
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    printed = json.loads(result.stdout)
    pids = [session.pop("pid") for session in printed["sessions"]]
    assert len(set(pids)) == 3
    keys = ["verdict", "problems", "warnings", "ledger", "launcher", "sessions"]
    assert list(printed) == keys
    assert (printed["verdict"], printed["problems"]) == ("ok", [])
    assert printed["launcher"] == launcher
    assert printed["sessions"][2] == {
        "path": "/t2s2b1",
        "kind": "fork",
        "recordedId": "harbour.t2s2b1",
        "id": "harbour.t2s2b1",
        "depth": 1,
        "seedLength": 24,
        "calls": {"recorded": 1, "served": 1},
        "stopReason": "completed",
        "output": "LANTERN",
        "logMatches": True,
    }


def test_a_replay_that_is_ok_as_text() -> None:
    result = _invoked(MIXED)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("/ ")
    assert lines[1].startswith("├─ t2s1b1")
    assert "24 inherited" in lines[2]
    assert lines[-1] == "ok: mixed, 3 sessions as recorded (template)"


# --- failed --------------------------------------------------------------------


def test_an_extra_call(tmp_path: Path) -> None:
    folder = composed(tmp_path, "one_tool")
    overridden(folder, _entries(folder)[:1])
    kind, path, message = _problem(folder)
    assert (kind, path) == ("extra-call", "/")
    assert message == "call 2 (turn 1, step 2) is beyond the 1 recorded ones"


def test_a_call_left_over(tmp_path: Path) -> None:
    folder = composed(tmp_path, "plain_answer")
    entries = _entries(folder)
    overridden(folder, [*entries, entries[-1]])
    message = "2 of 3 recorded calls were asked for"
    assert _problem(folder) == ("leftover-call", "/", message)


def test_an_event_that_differs(tmp_path: Path) -> None:
    folder = composed(tmp_path, "plain_answer")
    entries = _entries(folder)
    entries[1]["chunks"][0]["blockType"] = "text"
    printed, _ = _failed(overridden(folder, entries))
    # It contradicts what is recorded of the same answer, and the log that was made.
    drift, differs = printed["problems"]
    assert (drift["kind"], drift["path"]) == ("drift", "/")
    assert (differs["kind"], differs["path"]) == ("log-differs", "/")
    assert differs["message"].endswith('blockType is "text", recorded was "reasoning"')


def test_a_script_that_nobody_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecLauncher.__init__, "__defaults__", (WORK,))
    printed, _ = _failed(MIXED, "--agent", "tape", "--launcher", "exec")
    assert [(p["kind"], p["path"]) for p in printed["problems"]] == [
        ("script-not-bound", "/t2s1b1"),
        ("script-not-bound", "/t2s2b1"),
    ]
    assert printed["sessions"][1]["id"] is None
    assert printed["sessions"][1]["pid"] is None


def test_nothing_to_replay(tmp_path: Path) -> None:
    kind, path, message = _problem(write_folder(tmp_path, Log("s")))
    assert (kind, path) == ("nothing-to-replay", "/")
    assert message == "the recording holds headers and not one event"


def test_what_is_not_supported(tmp_path: Path) -> None:
    ask = Ask("work", more={"run_in_background": True})
    root = Log("root").turn("go").ask(ask).say("done").end()
    child = root.child("child", 1).answered("work", "ok")
    kind, path, message = _problem(write_folder(tmp_path, root, child))
    assert (kind, path) == ("not-supported", "/")
    assert "session.jsonl: turn 1, step 1, block 1" in message


def test_a_stall(tmp_path: Path) -> None:
    kind, path, message = _problem(hanging(tmp_path), "--stall", "0.6")
    assert (kind, path) == ("stall", "/")
    assert message.startswith("the replay was ended after 0.6 s: / waits for call ")


def test_a_timeout(tmp_path: Path) -> None:
    kind, path, message = _problem(hanging(tmp_path), "--timeout", "0.6")
    assert (kind, path) == ("timeout", "/")
    assert message.startswith("the replay was ended after 0.6 s: ")


def test_a_worker_that_is_lost_prints_nothing_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    quits = "support.stand_ins.quits"
    monkeypatch.setattr(ExecLauncher.__init__, "__defaults__", (quits,))
    kind, path, message = _problem(MIXED, "--launcher", "exec")
    assert (kind, path) == ("worker-lost", "/")
    assert "exit code 7" in message
    assert "last line on stderr" in message
    text = _invoked(MIXED, "--launcher", "exec").stdout
    # What the worker printed cannot colour the terminal.
    assert "\\x1b[31mred" in text
    assert "\x1b" not in text
    assert text.splitlines()[-1] == "failed: mixed, 1 problem"
    assert capfd.readouterr() == ("", "")


# --- what is said by agents -----------------------------------------------------


SAID: list[tuple[str, Callable[[str], bool]]] = [
    (
        "I\ud83d said\x00\x1b[2J\nso",
        lambda text: "I\\ud83d said\\x00\\x1b[2J\\nso" in text,
    ),
    ("naïve 😀", lambda text: "naïve 😀" in text),
    ("x" * 500, lambda text: f"{'x' * 48}…\n" in text),
]


@pytest.mark.parametrize(("said", "is_shown"), SAID)
def test_outputs_that_no_terminal_can_take(
    tmp_path: Path, said: str, is_shown: Callable[[str], bool]
) -> None:
    folder = saying(tmp_path, said)
    result = _invoked(folder)
    assert result.exit_code == 0
    assert is_shown(result.stdout)
    result = _invoked(folder, "--json")
    assert json.loads(result.stdout)["sessions"][0]["output"] == said
    result.stdout_bytes.decode("utf-8")


@pytest.mark.parametrize(
    "arguments", [["replay", "x", "--stall", "soon"], ["replay"], ["script", "a", "b"]]
)
def test_a_call_that_is_none_prints_an_object_too(arguments: list[str]) -> None:
    command = [*NESTLING, *arguments, "--json"]
    result = subprocess.run(command, capture_output=True, timeout=30, check=False)
    printed = json.loads(result.stdout)
    assert (result.returncode, printed["verdict"]) == (2, "error")
    assert printed["error"] == printed["problems"][0]["message"] != ""
    assert b"Usage: nestling" in result.stderr
