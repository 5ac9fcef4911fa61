"""What a run of pytest pays that uses nothing of the plugin, and who may be beside it."""

from __future__ import annotations

import os

import pytest

from support.plugin_projects import TEST, Project
from support.processes import needs_linux

pytestmark = [needs_linux, pytest.mark.timeout(300)]

BARE = """
import sys

def test_what_is_loaded():
    loaded = {name for name in sys.modules if name.split(".")[0] in ("nestling", "zmq")}
    assert loaded <= {"nestling", "nestling.harness", "nestling.harness.pytest_plugin"}
    assert "nestling.harness.pytest_plugin" in loaded
"""

STRICT = """
[pytest]
addopts = --strict-markers --strict-config -W error
"""

RECORDING = """
def pytest_addoption(parser):
    parser.getgroup("recording").addoption(
        "--record-mode", default="none",
        choices=("once", "new_episodes", "none", "all", "rewrite"),
    )

def pytest_configure(config):
    print("mode", config.getoption("--record-mode"))
"""


def test_it_is_not_loaded(project: Project) -> None:
    project.write("test_bare.py", BARE)
    project.write("pytest.ini", STRICT)
    run = project.pytest()
    assert (run.code, run.count("passed")) == (0, 1), run.out


@pytest.mark.parametrize("how", ["-p", "conftest"])
def test_others_have_options_of_the_same_names(project: Project, how: str) -> None:
    """Theirs work as they did, and count for us; ours have longer names, too."""
    project.write("conftest.py" if how == "conftest" else "other.py", RECORDING)
    project.write("test_it.py", TEST.replace('"tree"', '"new"'))
    project.scenario("new")
    loaded = () if how == "conftest" else ("-p", "other")
    paths = [".", os.environ.get("PYTHONPATH", "")]
    env = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    run = project.pytest(*loaded, "--record-mode=new_episodes", "-s", env=env)
    assert (run.code, project.calls) == (0, 1), run.out
    assert "mode new_episodes" in run.out
    run = project.pytest(*loaded, "--nestling-record-mode=all", "-s", env=env)
    assert (run.code, project.calls) == (0, 2), run.out
    assert "mode none" in run.out
