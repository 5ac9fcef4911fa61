"""A recorded tree as a test: green, red, in every kind of test function."""

from __future__ import annotations

import pytest

from support.plugin_projects import AGENT, TEST, Project
from support.processes import needs_linux

pytestmark = [needs_linux, pytest.mark.timeout(300)]

KINDS = """
import os
import anyio
import pytest

pytestmark = pytest.mark.scenario("tree")


def test_sync(replay, scenario):
    report = replay()
    assert report.is_ok
    assert report.scenario is scenario is replay.scenario
    assert replay.folder.name == "tree"
    parents(report)


@pytest.mark.anyio
async def test_async(replay):
    ticks = []

    async def tick():
        while True:
            ticks.append(None)
            await anyio.sleep(0)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        report = await replay.run()
        group.cancel_scope.cancel()
    assert len(ticks) > 1  # the test's own loop went on
    parents(report)


@pytest.mark.anyio
async def test_sync_in_async(replay):
    parents(replay())


@pytest.mark.scenario("tree", launcher="exec", timeout=60, stall=30)
def test_options(replay):
    assert replay().launcher == "exec"


@pytest.mark.scenario("tree", agent="tape")
def test_tape(replay):
    parents(replay())


TEMPLATES = set()


def parents(report):
    # Every worker was forked from one and the same process: it is below no other.
    assert report.launcher == "template"
    from nestling.driver.template_pool_io import held_pools
    (pool,) = held_pools()
    TEMPLATES.add(pool.pid())
    assert pool.generation == len(TEMPLATES) == 1


@pytest.fixture
def anyio_backend():
    return "asyncio"
"""

RED = """
import pytest

@pytest.mark.scenario("tree")
def test_red(replay):
    replay()

@pytest.mark.scenario("tree")
def test_looked_at(replay):
    report = replay(check=False)
    assert {p.path for p in report.problems} == {"/"}
"""

WRONG = """
import pytest
mark = pytest.mark.scenario

def test_unmarked(replay): replay()

@mark("tree", speeed=1)
def test_option(replay): replay()

@mark("tree", timeout="long")
def test_value(replay): replay()

@mark("tree", "tree")
def test_two(scenario): pass

@mark("tr\\0ee")
def test_nul(replay): replay()

@mark("elsewhere")
def test_nowhere(replay): replay()

@mark("tree", agent="no_such.py:clerk")
def test_agent(replay): replay()

@mark("tree")
def test_never_called(replay): pass

@mark("tree")
def test_only_marked(): pass

@mark("tree")
def test_failed_before(replay): assert 1 == 2
"""

SAYS = {
    "test_unmarked": "need to be told which one",
    "test_option": "found speeed=, expected agent, launcher, timeout, stall, verify, speed, network",
    "test_value": "found timeout='long', expected seconds, at least 0.1",
    "test_two": "found 'tree', 'tree', expected the path of one scenario",
    "test_nul": "found 'tr\\x00ee', expected the path of one scenario",
    "test_nowhere": "no such file or folder, expected a scenario",
    "test_agent": "no_such.py",
    "test_never_called": "the test passed, but nothing was replayed",
    "test_only_marked": "has neither the fixture `replay` nor `scenario`",
    "test_failed_before": "assert 1 == 2",
}


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_a_tree_replays(project: Project, more: tuple[str, ...]) -> None:
    project.write("test_tree.py", TEST)
    run = project.pytest(*more)
    assert (run.code, run.count("passed"), project.calls) == (0, 1, 0), run.out
    assert "nestling ==" not in run.out  # nothing to say is not said


def test_all_kinds_of_tests_and_one_template(project: Project) -> None:
    project.write("test_kinds.py", KINDS)
    run = project.pytest()
    assert (run.code, run.count("passed")) == (0, 5), run.out


def test_a_failure_shows_the_tree_and_not_our_code(project: Project) -> None:
    project.write("test_red.py", RED)
    project.write("agent.py", AGENT.replace("You keep", "You burn"))
    run = project.pytest()
    assert (run.code, run.count("failed"), run.count("passed")) == (1, 1, 1), run.out
    assert "├─ t2s1b0" in run.out
    assert "failed: tree, 1 problem" in run.out
    assert "You burn" in run.out
    assert "You keep" in run.out
    assert "if this is meant: --snapshot-update" in run.out
    assert "Traceback" not in run.out
    assert "nestling/harness" not in run.out


def test_what_is_wrong_is_said_in_a_sentence(project: Project) -> None:
    project.write("test_wrong.py", WRONG)
    run = project.pytest("-rfE")
    assert (run.code, run.count("passed")) == (1, 0), run.out
    assert run.count("failed") + run.count("errors?") == len(SAYS)
    for test, said in SAYS.items():
        (line,) = [
            line
            for line in run.out.splitlines()
            if line.startswith(("FAILED", "ERROR")) and f"::{test} " in line
        ]
        assert said in run.out, line
    assert "nestling/harness/" not in run.out
    assert "During handling" not in run.out


def test_an_unreadable_recording_is_named(project: Project) -> None:
    """Of many scenarios, which; and what can be done."""
    project.write("test_tree.py", TEST)
    log = project.folder / "tree" / "session.1.jsonl"
    log.write_text(log.read_text() + "garbage\n")
    run = project.pytest()
    assert (run.code, run.count("failed")) == (1, 1), run.out
    assert f"{log} line " in run.out
    assert "restore it, or --record-mode=all" in run.out
