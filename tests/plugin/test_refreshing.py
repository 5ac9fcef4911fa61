"""``--snapshot-update``, levels of verification, gates: what a test can ask for besides."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.plugin_projects import AGENT, TEST, Project
from support.processes import needs_linux

pytestmark = [needs_linux, pytest.mark.timeout(300)]

SEVERAL = TEST.replace("def test_tree(replay)", "def test_tree(replay, n)").replace(
    "@pytest.mark.sc", '@pytest.mark.parametrize("n", range(4))\n@pytest.mark.sc'
)

SYRUPY = """
def pytest_addoption(parser):
    parser.getgroup("other").addoption(
        "--snapshot-update", action="store_true", default=False, dest="update_snapshots"
    )

def pytest_configure(config):
    print("snapshots", config.option.update_snapshots)
"""

LEVELS = """
import pytest

@pytest.mark.scenario("tree", verify="warn")
def test_warn(replay):
    assert replay().warnings

@pytest.mark.scenario("tree", verify="off")
def test_off(replay):
    assert not replay().warnings
"""

GATES = """
import anyio
import pytest
from nestling.harness import Gate

@pytest.mark.anyio
@pytest.mark.scenario("tree")
async def test_held(replay):
    gate = Gate("/t2s1b0", call=1, chunk=1)
    async with anyio.create_task_group() as group:
        async def run():
            report = await replay.run(gates=[gate])
            assert report.is_ok
        group.start_soon(run)
        await gate.reached()
        gate.release()

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_refresh(project: Project, more: tuple[str, ...]) -> None:
    """Once in a run, without the provider; what is as it was is not touched."""
    tree = project.folder / "tree"
    project.write("test_tree.py", SEVERAL)
    project.write("conftest.py", SYRUPY)  # the option is that plugin's, and counts
    before = _files(tree)
    run = project.pytest("--snapshot-update", *more)
    assert (run.code, run.count("passed"), project.calls) == (0, 4, 0), run.out
    assert _files(tree) == before
    assert "refreshed" not in run.out

    project.write("agent.py", AGENT.replace("You keep", "You burn"))
    run = project.pytest("--snapshot-update", *more)
    assert (run.code, run.count("passed"), project.calls) == (0, 4, 0), run.out
    assert run.out.count("refreshed: tree (session.") == 1
    after = _files(tree)
    assert set(after) == set(before)
    assert b"You burn" in after["session.jsonl"]
    assert project.pytest(*more).code == 0


def test_what_cannot_be_refreshed(project: Project) -> None:
    """Another child, another call: that takes a recording, and nothing is written."""
    project.write("test_tree.py", TEST)
    before = _files(project.folder / "tree")
    project.write("agent.py", AGENT.replace(", subagent, subagent_fork]", "]"))
    run = project.pytest("--nestling-snapshot-update")
    assert (run.code, run.count("failed")) == (1, 1), run.out
    assert "tree was not refreshed: script-not-bound" in run.out
    assert "├─ t2s1b0" in run.out
    assert "nestling/harness/" not in run.out
    assert _files(project.folder / "tree") == before


def test_levels(project: Project) -> None:
    project.write("test_levels.py", LEVELS)
    project.write("agent.py", AGENT.replace("You keep", "You burn"))
    run = project.pytest()
    assert (run.code, run.count("passed")) == (0, 2), run.out
    assert "warning: tree: request-differs /" in run.out


def test_gates(project: Project) -> None:
    project.write("test_gates.py", GATES)
    run = project.pytest()
    assert (run.code, run.count("passed")) == (0, 1), run.out
