"""A coverage run sees what a forked worker does."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from nestling.worker import tape_pilot
from support.launchers import LAUNCHERS
from support.processes import needs_linux
from support.scenarios import MIXED

ROOT: Final = Path(__file__).parents[2]

pytestmark = [
    needs_linux,
    pytest.mark.skipif(
        importlib.util.find_spec("coverage") is None,
        reason="coverage is not installed: nothing says that it sees workers",
    ),
]


def _coverage(folder: Path, *arguments: object) -> None:
    command = [sys.executable, "-m", "coverage", *map(str, arguments)]
    own = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
    subprocess.run(command, cwd=folder, env=own, check=True, capture_output=True)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_lines_that_only_a_worker_executes(launcher: str, tmp_path: Path) -> None:
    config = f"--rcfile={ROOT / 'pyproject.toml'}"
    tapes = ("--agent", "tape", "--json")
    program = ("-m", "nestling.harness", "replay", MIXED, *tapes)
    _coverage(tmp_path, "run", config, *program, "--launcher", launcher)
    # The driver, its three workers, and the template if there is one.
    files = [path for path in tmp_path.iterdir() if path.name.startswith(".coverage.")]
    assert len(files) == 4 + (launcher == "template")
    _coverage(tmp_path, "combine", config)
    _coverage(tmp_path, "json", config, "-o", "report.json")
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    executed = {
        Path(name).name: set(each["executed_lines"])
        for name, each in report["files"].items()
    }
    # Bodies of methods that need a session, which nobody but a worker has.
    assert len(executed[Path(tape_pilot.__file__).name] & _bodies()) > 30


def _bodies() -> set[int]:
    lines = Path(tape_pilot.__file__).read_text().splitlines()
    return {n for n, line in enumerate(lines, 1) if line.startswith(" " * 8)}
