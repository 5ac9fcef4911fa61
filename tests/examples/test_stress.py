"""The stress scripts run, and tell a right example from a wrong one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.examples import FOLDER
from support.processes import needs_linux

pytestmark = needs_linux


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the script and one example, which is to be replayed with it."""
    for name in ("stress_examples.py", "stress_worker.py"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(FOLDER.parent / "scripts" / name, tmp_path / "scripts")
    shutil.copytree(FOLDER / "retry", tmp_path / "examples" / "retry")
    return tmp_path


def stressed(checkout: Path) -> subprocess.CompletedProcess[str]:
    script = str(checkout / "scripts" / "stress_examples.py")
    told = ("--count", "1", "--delay", "0.001", "--seed", "1")
    command = [sys.executable, script, *told]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False
    )


def test_one_tree_under_both_launchers_with_the_agent_and_as_a_tape(
    checkout: Path,
) -> None:
    result = stressed(checkout)
    assert (result.returncode, result.stderr) == (0, "")
    line = result.stdout.splitlines()[-1].split()
    # Four replays of five calls; one tree, no problem.
    assert [*line[:3], *line[4:8]] == ["retry", "4", "20", "1", "0", "as", "recorded"]


def test_an_agent_that_does_something_else(checkout: Path) -> None:
    agent = checkout / "examples" / "retry" / "agent.py"
    agent.write_text(agent.read_text().replace('"south": 7', '"south": 8'))
    result = stressed(checkout)
    assert result.returncode == 1
    assert "NOT AS RECORDED" in result.stdout
    assert "request-differs /: call " in result.stdout


def test_a_run_that_a_user_has_cancelled() -> None:
    script = str(FOLDER.parent / "scripts" / "stress_cancels.py")
    told = ("in a forked child", "--count", "2", "--delay", "0.001", "--seed", "1")
    result = subprocess.run(
        [sys.executable, script, *told],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    line = result.stdout.splitlines()[-1].split()
    wanted = ["in-a-forked-child", "8", "1", "0", "as", "recorded"]
    assert [*line[:2], *line[4:8]] == wanted
