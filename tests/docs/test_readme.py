"""The programs of the README do what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def programs() -> list[str]:
    return re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )


def run(program: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_one_replays_an_example(tmp_path: Path) -> None:
    program = tmp_path / "replay_it.py"
    program.write_text(programs()[0])
    assert run(program, ROOT) == ""


def test_the_second_one_is_a_test(tmp_path: Path) -> None:
    text = programs()[1]
    shutil.copytree(ROOT / "examples" / "mixed", tmp_path / "examples" / "mixed")
    (tmp_path / "test_mixed.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert b"1 passed" in done.stdout, done.stdout


def test_an_agent_of_ones_own(tmp_path: Path) -> None:
    for text in programs()[2:]:
        name = re.match(r"# (\w+\.py)\n", text)
        assert name is not None
        (tmp_path / name[1]).write_text(text)
    assert run(tmp_path / "main.py", tmp_path) == "You said: How deep is 7a?\n"
