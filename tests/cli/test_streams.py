"""`nestling replay` with streams, locales and places that are not as one hopes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nestling.harness import cli
from support.processes import NESTLING, needs_linux, run_nestling
from support.scenarios import MIXED, composed, saying, with_children

pytestmark = needs_linux


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A scenario of one session."""
    return saying(tmp_path / "small", "naïve 😀 \ud83d")


# --- streams -------------------------------------------------------------------


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_reader_that_goes_away(small: Path, option: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = run_nestling("replay", small, *option, stdout=writing)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_disk_that_is_full(small: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        result = run_nestling("replay", small, stdout=full)
    message = b"nestling: cannot write the output: No space left on device\n"
    assert (result.returncode, result.stderr) == (2, message)


def test_nothing_can_be_said_at_all(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        result = run_nestling("replay", tmp_path, stdout=full, stderr=full)
    assert result.returncode == 2


FULL = b"nestling: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "full", "code", "said"),
    [
        (["--help"], "stdout", 2, FULL),
        (["replay", "--help"], "stdout", 2, FULL),
        ([], "stderr", 2, b""),
        (["replay", "--json"], "stderr", 2, None),
    ],
)
def test_help_for_which_there_is_no_room(
    arguments: list[str], full: str, code: int, said: bytes | None
) -> None:
    other = "stdout" if full == "stderr" else "stderr"
    with Path("/dev/full").open("wb") as stream:
        streams: dict[str, Any] = {full: stream}
        result = run_nestling(*arguments, **streams)
    assert result.returncode == code
    if said is None:
        assert json.loads(result.stdout)["verdict"] == "error"
    else:
        assert getattr(result, other) == said


def test_help_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = run_nestling("--help", stdout=writing)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_bad_call_without_stderr() -> None:
    """What is for a person is not put among what is for a program."""
    command = ["sh", "-c", 'exec "$0" "$@" 2>&-', *NESTLING, "replay", "--json"]
    result = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert result.returncode == 2
    assert json.loads(result.stdout)["verdict"] == "error"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_were_never_open(small: Path, closed: str) -> None:
    """Low descriptors become sockets and pipes of the run; nobody mixes them up."""
    command = ["sh", "-c", f'exec "$0" "$@" {closed}', *NESTLING, "replay", str(small)]
    result = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    if ">&-" not in closed.replace("2>&-", ""):
        assert result.stdout.endswith(b"ok: small, 1 session as recorded (template)\n")


def test_a_pipe_is_no_terminal_whatever_variables_say(small: Path) -> None:
    environment = {**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}
    result = run_nestling("replay", small, env=environment)
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"\x1b" not in result.stdout


LOCALES = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "all": {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": "ascii",
    },
}


@pytest.mark.parametrize("locale", LOCALES)
def test_a_locale_without_letters(small: Path, locale: str) -> None:
    environment = {**os.environ, **LOCALES[locale]}
    result = run_nestling("replay", small, env=environment)
    assert (result.returncode, result.stderr) == (0, b"")
    assert "naïve 😀 \\ud83d" in result.stdout.decode("utf-8")


# --- places --------------------------------------------------------------------


def _named(tmp_path: Path, name: str) -> Path:
    return composed(tmp_path / name, "plain_answer")


def _relative(tmp_path: Path) -> tuple[str, Path]:
    _named(tmp_path, "there")
    return "there", tmp_path


def _dot(tmp_path: Path) -> tuple[str, Path]:
    return ".", _named(tmp_path, "here")


def _slash(tmp_path: Path) -> tuple[str, Path]:
    return f"{_named(tmp_path, 'slash')}/", tmp_path


def _spaces(tmp_path: Path) -> tuple[str, Path]:
    return str(_named(tmp_path, "a b\tc 'd' \"é\"")), tmp_path


def _link(tmp_path: Path) -> tuple[str, Path]:
    (tmp_path / "link").symlink_to(_named(tmp_path, "target"))
    return "link", tmp_path


def _file(tmp_path: Path) -> tuple[str, Path]:
    return str(_named(tmp_path, "file") / "session.jsonl"), tmp_path


def _bytes(tmp_path: Path) -> tuple[str, Path]:
    return str(_named(tmp_path, os.fsdecode(b"\xff\xfe"))), tmp_path


@pytest.mark.parametrize(
    "place", [_relative, _dot, _slash, _spaces, _link, _file, _bytes]
)
def test_how_a_scenario_may_be_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[Path], tuple[str, Path]],
) -> None:
    name, directory = place(tmp_path)
    monkeypatch.chdir(directory)
    result = CliRunner().invoke(cli.app, ["replay", name, "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["verdict"] == "ok"


def test_a_working_directory_that_is_gone(tmp_path: Path, small: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'rmdir ../gone && exec "$0" "$@"'
    command = ["sh", "-c", script, *NESTLING, "replay", str(small)]
    result = subprocess.run(
        command, cwd=gone, capture_output=True, timeout=30, check=False
    )
    assert (result.returncode, result.stderr) == (0, b"")


def _snapshot(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode)
        for path in sorted(folder.iterdir())
        if path.name != "__pycache__"  # Python's own, where an agent was imported
    }


@pytest.mark.parametrize("agent", [(), ("--agent", "tape")])
@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_replay_writes_nothing_into_the_scenario(
    tmp_path: Path,
    is_read_only: bool,
    agent: tuple[str, ...],
) -> None:
    folder = tmp_path / "mixed"
    shutil.copytree(MIXED, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if is_read_only:
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o555)
    before, changed = _snapshot(folder), folder.stat().st_mtime_ns
    result = CliRunner().invoke(cli.app, ["replay", str(folder), *agent])
    assert result.exit_code == 0
    assert _snapshot(folder) == before
    if agent:
        assert folder.stat().st_mtime_ns == changed
    folder.chmod(0o755)


@pytest.mark.parametrize(
    "variables",
    [
        {"TMPDIR": "/none/at/all", "XDG_RUNTIME_DIR": "/none"},
        {"XDG_RUNTIME_DIR": "/proc"},
        {"XDG_RUNTIME_DIR": "relative/none"},
    ],
)
def test_directories_for_a_run_that_are_not_there(
    box: Path, small: Path, variables: dict[str, str]
) -> None:
    environment = {**os.environ, **variables}
    result = run_nestling("replay", small, env=environment)
    assert (result.returncode, result.stderr) == (0, b"")


# --- limits --------------------------------------------------------------------


@pytest.mark.parametrize("limit", [6, 14, 24, 36])
def test_too_few_descriptors(small: Path, limit: int) -> None:
    """libzmq would end the process with an abort; nobody gets that far."""
    command = [
        "sh",
        "-c",
        f'ulimit -n {limit}; exec "$0" "$@"',
        *NESTLING,
        "replay",
        str(small),
        "--json",
    ]
    result = subprocess.run(command, capture_output=True, timeout=30, check=False)
    printed = json.loads(result.stdout)
    assert b"Traceback" not in result.stderr
    assert (result.returncode, printed["verdict"]) == (2, "error")
    assert "Too many open files" in printed["error"]


def _limited(limit: int, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    script = f'ulimit -n {limit}; exec "$0" "$@"'
    command = ["sh", "-c", script, *NESTLING, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=50, check=False)


@pytest.mark.parametrize("limit", [54, 58, 62])
def test_too_few_descriptors_for_all_children(tmp_path: Path, limit: int) -> None:
    """Those that there is room for run; connections come later than launches."""
    result = _limited(limit, "replay", with_children(tmp_path / "wide", 60, at_once=60))
    assert (result.returncode, result.stderr) == (1, b"")
    assert b"Too many open files" in result.stdout


def test_one_child_after_the_other_takes_no_more_descriptors(tmp_path: Path) -> None:
    result = _limited(64, "replay", with_children(tmp_path / "long", 40, at_once=1))
    assert (result.returncode, result.stderr) == (0, b"")


def test_the_program_is_the_script_and_the_module() -> None:
    script = Path(sys.executable).with_name("nestling")
    if not script.exists():
        pytest.skip("nestling is not installed beside this interpreter")
    for command in ([str(script)], [*NESTLING]):
        result = subprocess.run(
            [*command, "--help"], capture_output=True, timeout=30, check=False
        )
        assert result.returncode == 0
        assert b"Usage: nestling" in result.stdout
