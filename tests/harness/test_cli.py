"""The command line: output, exit codes, and streams that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nestling.harness import cli, tree_commands_io
from support.logs import Ask, Log, text_chunks, write_folder

COMMAND = [sys.executable, "-c", "from nestling.harness.cli import main; main()"]


def _tree(folder: Path) -> Path:
    root = Log("root", 1).turn("go").ask(Ask("x")).say("I\ud83d said\nso").end()
    child = Log("c", 2, parentSession="root").turn("x")
    child.chunks(text_chunks("half", None)).end("aborted", reason={"kind": "user"})
    stray = Log("stray", 3, parentSession="root")
    return write_folder(folder, root, child, stray.answered("else", "ok"))


def _invoked(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def _run(*arguments: object, **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.run(command, check=False, timeout=30, **streams)


def test_script_prints_one_object(tmp_path: Path) -> None:
    result = _run("script", _tree(tmp_path), "--json")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.count(b"\n") == 1
    sessions = json.loads(result.stdout)["sessions"]
    assert [(s["path"], s["recordedId"], s["primary"]) for s in sessions] == [
        ("/", "root", True),
        ("/t1s1b1", "c", False),
        (None, "stray", False),
    ]
    assert sessions[1] == {
        "path": "/t1s1b1",
        "recordedId": "c",
        "createdAt": 2,
        "seedLength": 0,
        "events": 6,
        "primary": False,
        "entries": [
            {
                "kind": "abort",
                "chunks": text_chunks("half", None),
                "reason": {"kind": "aborted", "reason": {"kind": "user"}},
            }
        ],
    }


def test_script_prints_text(tmp_path: Path) -> None:
    result = _run("script", _tree(tmp_path))
    assert result.returncode == 0
    blocks = result.stdout.decode().split("\n\n")
    assert blocks[0].splitlines() == [
        "/  root  root  seedLength 0  events 16",
        "    1  t1s1    chunks              3 chunks  tool-calls  on it",
        "    2  t1s2    chunks              2 chunks  stop        I\\ud83d said\\nso",
    ]
    assert "abort               1 chunks  aborted     half" in blocks[1]
    assert blocks[2].startswith("(no path)  spawn  stray")


def test_script_prints_other_kinds_of_entries(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, Log("s"))
    tool = {"type": "tool-call", "id": "c", "name": "bash", "arguments": "{}"}
    chunks = [{"type": "block-end", "index": 0, "block": tool}]
    long = [
        {"type": "block-end", "index": 0, "block": {"type": "text", "text": "x" * 99}}
    ]
    override = [
        {"kind": "hang"},
        {"kind": "throw", "chunks": [], "message": "m", "code": "AUTH"},
        {"kind": "chunks", "chunks": chunks},
        {"kind": "chunks", "chunks": long},
    ]
    (folder / "replay.override.json").write_text(json.dumps(override))
    lines = _invoked("script", folder).stdout.splitlines()
    assert [line.split()[2] for line in lines[1:]] == [
        "hang",
        "throw",
        "chunks",
        "chunks",
    ]
    assert "AUTH" in lines[2]
    assert "calls bash" in lines[3]
    assert lines[4].endswith("x" * 60 + "…")


def test_a_log_without_calls_says_so(tmp_path: Path) -> None:
    result = _invoked("script", write_folder(tmp_path, Log("s")))
    assert result.exit_code == 0
    assert "no calls" in result.stdout


# --- errors --------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [False, True])
def test_bad_input_ends_with_2_and_one_line(tmp_path: Path, as_json: bool) -> None:
    options = ["--json"] if as_json else []
    result = _run("script", tmp_path / "none", *options)
    assert result.returncode == 2
    (line,) = result.stderr.decode().splitlines()
    assert line.startswith("nestling: ")
    if not as_json:
        assert result.stdout == b""
        return
    printed = json.loads(result.stdout)
    message = printed["error"]
    assert line == f"nestling: {message}"
    problem = {"kind": "unreadable", "path": None, "message": message}
    assert printed == {
        "verdict": "error",
        "error": message,
        "problems": [problem],
        "sessions": [],
    }


def test_bad_input_in_process(tmp_path: Path) -> None:
    result = _invoked("script", tmp_path)
    assert result.exit_code == 2
    assert "expected session.jsonl" in result.stderr


@pytest.mark.parametrize("arguments", [[], ["script"], ["frob"], ["script", "a", "b"]])
def test_usage_errors_end_with_2(arguments: list[str]) -> None:
    result = _run(*arguments)
    assert result.returncode == 2
    assert b"Usage" in result.stderr + result.stdout
    assert b"Traceback" not in result.stderr


def test_names_that_no_terminal_can_show(tmp_path: Path) -> None:
    name = os.fsdecode(b"a\xff\x1b\nb")
    for options in ([], ["--json"]):
        result = _run("script", tmp_path / name, *options)
        assert result.returncode == 2
        assert result.stderr.endswith(b"a\\udcff\\x1b\\nb: no such file or folder\n")


def test_an_interrupt_ends_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tree_commands_io, "load_scenario", interrupted)
    assert _invoked("script", tmp_path).exit_code == 130


# --- streams -------------------------------------------------------------------


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = _run("script", _tree(tmp_path), stdout=writing)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no full device here")
    with full.open("wb") as stream:
        result = _run("script", _tree(tmp_path), stdout=stream)
    assert result.returncode == 2
    assert result.stderr == (
        b"nestling: cannot write the output: No space left on device\n"
    )


def test_streams_that_were_never_open(tmp_path: Path) -> None:
    shell = ["sh", "-c", '"$0" -c "$1" script "$2" >&- 2>&-']
    main = COMMAND[2]
    for path, code in ((_tree(tmp_path), 0), (tmp_path / "none", 2)):
        command = [*shell, sys.executable, main, str(path)]
        assert subprocess.run(command, check=False, timeout=30).returncode == code


def test_a_locale_without_letters(tmp_path: Path) -> None:
    root = Log("é😀").answered("hi", "naïve 😀")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    result = _run("script", write_folder(tmp_path, root), env=environment)
    assert result.returncode == 0
    assert "naïve 😀" in result.stdout.decode()
