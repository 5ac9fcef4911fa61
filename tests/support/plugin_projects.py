"""A project of somebody who uses the pytest plugin, run by a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from nestling.harness import record

AGENT: Final = '''
from pathlib import Path
from nestling.worker import Agent, subagent, subagent_fork, tool


@tool
def look(berth: str) -> str:
    """Look at a berth."""
    return "free"


clerk = Agent(
    "any/model", system="You keep the books.", tools=[look, subagent, subagent_fork]
)
'''

MODEL: Final = """
from pathlib import Path
from nestling.harness import Answer, ScriptedModel, fork_call, spawn_call

CALLED = Path(__file__).with_name("called")


def model():
    with CALLED.open("a") as file:
        file.write("x")
    return ScriptedModel(
        by_prompt={
            "Note LANTERN.": "Noted.",
            "Ask two.": [
                Answer(calls=[spawn_call("Say", "Say GULL."), fork_call("Ask", "Code?")]),
                "Both have answered.",
            ],
            "Say GULL.": "GULL",
            "Code?": "LANTERN",
        }
    )
"""

CONFIG: Final = """
agent = "../agent.py:clerk"
provider = "../model.py:model"
prompts = ["Note LANTERN.", "Ask two."]
"""

TEST: Final = """
import pytest

@pytest.mark.scenario("tree")
def test_tree(replay):
    report = replay()
    assert sorted(report.logs) == ["/", "/t2s1b0", "/t2s1b1"]
"""


class Run(NamedTuple):
    """How a pytest run ended.

    Attributes:
        code: its exit code.
        out: what it printed.
    """

    code: int
    out: str

    def count(self, outcome: str) -> int:
        """Return how many tests came to something, like ``passed``."""
        found = re.search(rf"(\d+) {outcome}", self.out.splitlines()[-1])
        return int(found[1]) if found else 0


class Project:
    """A folder with an agent, a provider, scenarios and tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("agent.py", AGENT)
        self.write("model.py", MODEL)
        self.write("pytest.ini", "[pytest]\naddopts = --strict-markers\n")

    def write(self, name: str, text: str) -> Path:
        """Write a file, and return where it is."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def scenario(self, name: str = "tree", config: str = CONFIG) -> Path:
        """Write a scenario that is not recorded yet."""
        return self.write(f"{name}/scenario.toml", config).parent

    def recorded(self, *names: str) -> Project:
        """Write scenarios and record them, without the plugin; return this project."""
        for name in names or ("tree",):
            report = anyio.run(record, self.scenario(name))
            assert report.is_ok, report.problems
        (self.folder / "called").unlink()
        return self

    def pytest(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: str = "."
    ) -> Run:
        """Run pytest in the project; warnings of the plugin are errors."""
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        command += ["-p", "no:hypothesispytest"]  # slow to load
        environment = {k: v for k, v in os.environ.items() if k not in _NOT_PASSED}
        done = subprocess.run(
            [*command, "-W", "error", *arguments],
            cwd=self.folder / cwd,
            env={**environment, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=120,
        )
        return Run(done.returncode, done.stdout.decode())

    @property
    def calls(self) -> int:
        """How often the provider was loaded since the recording."""
        called = self.folder / "called"
        return len(called.read_text()) if called.exists() else 0


_NOT_PASSED: Final = (
    "CI",
    "PYTEST_ADDOPTS",
    "PYTEST_XDIST_WORKER",
    "PYTEST_CURRENT_TEST",
)
