"""The chaos script runs, its examples bear it, and it sees what must not be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.examples import FOLDER
from support.processes import needs_linux

pytestmark = needs_linux

SCRIPTS = FOLDER.parent / "scripts"
QUICK = (
    "delay,kill-worker,kill-template,kill-idle-template,stop-worker-briefly,"
    "stop-template-briefly,cancel,cancel-call,cancel-run,store-error,disk-full"
)


def chaos(script: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run the script; return its exit code, its totals, and what it had to say."""
    command = [sys.executable, str(script), *arguments, "--json"]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=55, check=False
    )
    assert ran.stdout, ran.stderr
    return ran.returncode, json.loads(ran.stdout), ran.stderr


@pytest.mark.parametrize(
    ("name", "launcher", "count"),
    [("deep", "template", 8), ("fan-out", "template", 5), ("deep", "exec", 2)],
)
def test_what_comes_of_it_is_right_or_an_honest_error(
    name: str, launcher: str, count: int
) -> None:
    told = ("--count", str(count), "--seed", "short", "--faults", QUICK)
    script = SCRIPTS / "chaos.py"
    code, totals, said = chaos(script, name, "--launcher", launcher, *told)
    assert (code, said) == (0, "")
    assert totals["runs"] == count
    assert totals["undisturbed"] + totals["honest errors"] == count
    assert totals["honest errors"] > 0
    assert sum(totals["faults"].values()) > count / 2


def test_an_agent_that_says_something_else_is_seen(tmp_path: Path) -> None:
    """Another tree than the recorded one, with nothing that says why."""
    for name in ("chaos.py", "chaos_faults.py", "chaos_checks.py"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    (tmp_path / "tests").symlink_to(FOLDER.parent / "tests")
    shutil.copytree(FOLDER / "retry", tmp_path / "examples" / "retry")
    agent = tmp_path / "examples" / "retry" / "agent.py"
    agent.write_text(agent.read_text().replace('"south": 7', '"south": 8'))
    told = ("retry", "--count", "3", "--seed", "1", "--faults", "delay")
    code, totals, said = chaos(tmp_path / "scripts" / "chaos.py", *told)
    assert code == 1
    assert totals["failed"] > 0
    assert "lie: another tree, and nothing says why" in said
    assert "FAILED --seed 1 --run" in said
