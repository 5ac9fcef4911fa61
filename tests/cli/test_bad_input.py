"""`nestling replay` of what cannot be read: 2, one sentence, and no process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nestling.driver.launcher_io import ExecLauncher
from nestling.driver.template_launcher_io import TemplateLauncher
from nestling.harness import cli
from nestling.session.jsontext import JsonObject, dumps
from support.logs import Ask, Log, text_chunks, write_folder
from support.processes import run_nestling

HEADER: JsonObject = {"type": "session", "version": 0, "id": "s", "createdAt": 5}
PACKED: JsonObject = {
    "type": "text-chunks",
    "data": {"turn": 1, "step": 1, "index": 0, "dt": [1], "texts": ["a"]},
}


def _tree() -> tuple[Log, Log]:
    root = Log("root").answered("remember", "ok")
    fork = root.fork("fork", 2).answered("recall", "it").digested()
    root.turn("go").ask(Ask("recall", "subagent_fork")).say("done").end()
    return root, fork


def _lines(*rows: JsonObject | bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        texts = [row if isinstance(row, bytes) else dumps(row) for row in rows]
        (folder / "session.jsonl").write_bytes(b"\n".join(texts))
        return folder

    return write


def _header(**changes: object) -> Callable[[Path], Path]:
    return _lines({**HEADER, **changes})


def _logs(*logs: Log) -> Callable[[Path], Path]:
    return lambda folder: write_folder(folder, *logs)


def _forked_at(length: int, digest: str | None = None) -> Callable[[Path], Path]:
    root, fork = _tree()
    fork.header["seedLength"] = length
    del fork.header["seedDigest"]
    if digest is not None:
        fork.header["seedDigest"] = digest
    return _logs(root, fork)


def _child(session_id: str, **header: object) -> Log:
    child = Log(session_id, 2, parentSession="root", **header)
    return child.answered("work", f"the answer of {session_id}")


def _asking(*prompts: str) -> Log:
    return Log("root").turn("go").ask(*map(Ask, prompts)).say("done").end()


PLACE = {"turn": 1, "step": 1, "block": 1, "context": "spawn"}

CASES: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "a missing folder": (lambda f: f / "none", ["none: no such file or folder"]),
    "an empty folder": (lambda f: f, ["an empty folder", "expected session.jsonl"]),
    "an empty file": (_lines(b""), ["session.jsonl is empty"]),
    "no JSON": (_lines(HEADER, b"{bad"), ["session.jsonl line 2", "not JSON"]),
    "no object": (_lines(HEADER, b"[1]"), ["line 2", "JSON object", "an array"]),
    "no UTF-8": (_lines(HEADER, b'{"\xff"}'), ["line 2", "UTF-8"]),
    "no header": (_lines(PACKED), ["line 1", "session header", "text-chunks"]),
    "an unknown version": (_header(version=7), ["line 1", "version 7", "expected 0"]),
    "a negative boundary": (_header(seedLength=-1), ["line 1", "seedLength", "-1"]),
    "a broken boundary": (_header(seedLength=1.5), ["line 1", "seedLength", "1.5"]),
    "a boundary beyond": (_forked_at(99), ["session.1", "seedLength 99", "17 events"]),
    "a boundary in a call": (_forked_at(4), ["seedLength 4", "turn 1, step 1"]),
    "a boundary in a turn": (_forked_at(7), ["7 inherited events", "turn 1 open"]),
    "a digest": (_forked_at(8, "0" * 64), ["session.1.jsonl", "0" * 64]),
    "an open call": (
        _logs(Log("s").turn("hi").chunks(text_chunks("half", None)).end()),
        ["session.jsonl line 5 (event 3)", "turn 1, step 1"],
    ),
    "no parent": (
        _logs(Log("root"), Log("c", parentSession="gone")),
        ["session.1.jsonl", "'gone'", "'root'"],
    ),
    "one path for two": (
        _logs(
            _asking("work"),
            _child("a", spawnedBy=PLACE),
            _child("b", spawnedBy=PLACE),
        ),
        ["session.1.jsonl", "session.2.jsonl", "/t1s1b1"],
    ),
    "ambiguous twins": (
        _logs(_asking("work", "work"), _child("a"), _child("b")),
        ["session.1.jsonl", "session.2.jsonl", "ambiguous"],
    ),
    "messages but no calls": (
        _logs(Log("s").turn("hi").message([{"type": "text", "text": "said"}]).end()),
        ["session.jsonl line 5"],
    ),
    "a packed row": (_lines(HEADER, PACKED), ["line 2", "text-chunks", "dt"]),
    "an override": (
        lambda f: (
            _lines(HEADER)(f) if (f / "replay.override.json").write_text("{}") else f
        ),
        ["replay.override.json", "patches"],
    ),
}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be started for what cannot be read."""

    def fail(*_: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(ExecLauncher, "start", fail)
    monkeypatch.setattr(TemplateLauncher, "connect", fail)


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_read(tmp_path: Path, case: str, as_json: bool) -> None:
    build, facts = CASES[case]
    arguments = ["replay", str(build(tmp_path)), *(["--json"] if as_json else [])]
    result = CliRunner().invoke(cli.app, arguments)
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("nestling: ")
    assert all(fact in line for fact in facts), line
    if not as_json:
        assert result.stdout == ""
        return
    message = line.removeprefix("nestling: ")
    assert json.loads(result.stdout) == {
        "verdict": "error",
        "error": message,
        "problems": [{"kind": "unreadable", "path": None, "message": message}],
        "sessions": [],
    }


def test_it_is_so_in_a_process_too(tmp_path: Path) -> None:
    result = run_nestling("replay", tmp_path, "--json")
    assert result.returncode == 2
    assert result.stderr.count(b"\n") == result.stdout.count(b"\n") == 1
    assert json.loads(result.stdout)["verdict"] == "error"


@pytest.mark.parametrize("option", ["--stall", "--timeout"])
@pytest.mark.parametrize("value", ["0", "-1", "0.09", "nan", "inf", "-inf", "ten", ""])
def test_seconds_that_are_none(tmp_path: Path, option: str, value: str) -> None:
    result = CliRunner().invoke(cli.app, ["replay", str(tmp_path), option, value])
    assert result.exit_code == 2
    assert "Usage: " in result.stderr
    assert option in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay"],
        ["replay", "a", "b"],
        ["replay", "-x"],
        ["replay", "a", "--launcher", "fork"],
    ],
)
def test_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 2
    assert "Usage: " in result.stderr
