"""What ``--record-mode`` records, what it refuses, and that two do not do it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.plugin_projects import TEST, Project
from support.processes import needs_linux

pytestmark = [needs_linux, pytest.mark.timeout(300)]

SEVERAL = """
import pytest

@pytest.mark.parametrize("n", range(4))
@pytest.mark.scenario("tree")
def test_tree(replay, n):
    replay()

@pytest.mark.parametrize("n", range(2))
@pytest.mark.scenario("new")
def test_new(scenario, replay, n):
    assert len(scenario.sessions) == 3
    replay()
"""


def _logs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("session*.jsonl")}


def test_nothing_is_recorded_by_default(project: Project) -> None:
    project.scenario("new")
    project.write("test_it.py", TEST.replace('"tree"', '"new"'))
    run = project.pytest()
    assert (run.code, run.count("failed"), project.calls) == (1, 1, 0), run.out
    assert "there is no recording, and --record-mode=none (the default)" in run.out
    assert "pytest --record-mode=once 'test_it.py::test_tree'" in run.out
    assert _logs(project.folder / "new") == {}


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["alone", "xdist"])
@pytest.mark.parametrize("mode", ["once", "all"])
def test_each_scenario_is_recorded_at_most_once_in_a_run(
    project: Project, mode: str, more: tuple[str, ...]
) -> None:
    """By two workers, too: the provider is loaded once for a recording."""
    new = project.scenario("new")
    project.write("test_it.py", SEVERAL)
    before = _logs(project.folder / "tree")
    run = project.pytest(f"--record-mode={mode}", *more)
    assert (run.code, run.count("passed")) == (0, 6), run.out
    assert project.calls == (1 if mode == "once" else 2)
    assert set(_logs(new)) == {"session.jsonl", "session.1.jsonl", "session.2.jsonl"}
    # Where the model says the same again, a recording is left as it is.
    assert _logs(project.folder / "tree") == before
    assert run.out.count("recorded: ") == project.calls
    assert "recorded: new\n" in run.out
    left = {path.name for path in new.iterdir()}
    assert left == {"scenario.toml", *_logs(new)}


def test_a_recording_that_fails_writes_nothing(project: Project) -> None:
    new = project.scenario("new")
    project.write(
        "model.py", "async def model(request):\n    raise ValueError('no')\n    yield\n"
    )
    project.write("test_it.py", TEST.replace('"tree"', '"new"'))
    run = project.pytest("--record-mode=once")
    assert (run.code, run.count("failed")) == (1, 1), run.out
    assert "new was not recorded: recording-failed" in run.out
    assert "ValueError: no" in run.out
    assert "nestling/harness/" not in run.out
    assert _logs(new) == {}


def test_ci_records_nothing(project: Project) -> None:
    project.write("test_tree.py", TEST)
    for mode in ("once", "all"):
        run = project.pytest(f"--record-mode={mode}", env={"CI": "true"})
        assert run.code == pytest.ExitCode.USAGE_ERROR, run.out
        assert f"ERROR: --record-mode={mode}: CI is set in the environment" in run.out
    run = project.pytest(env={"CI": "true"})
    assert (run.code, project.calls) == (0, 0), run.out
