"""The programs of the page about agents do what the page says."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import anyio
import pytest

from nestling.driver import Driver, SyncDriver
from nestling.harness import ScriptedModel, cast_of, load_scenario, record, replay
from nestling.worker.references_io import load_module

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The page's modules, in the files that it names."""
    agent, run, stream, panel, model, conftest = blocks("python")
    files = {
        "harbour.py": agent + panel,
        "model.py": model,
        "stream.py": stream,
        "program.py": stream + run,
        "conftest.py": conftest,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "scenario").mkdir()
    (toml,) = blocks("toml")
    (tmp_path / "scenario" / "scenario.toml").write_text(
        toml.replace('"model.py:model"', '"../model.py:model"')
    )
    return tmp_path


def loaded(folder: Path, name: str) -> ModuleType:
    return load_module(str(folder / name))


async def test_recording_and_replaying(folder: Path) -> None:
    scenario = folder / "scenario"
    report = await record(scenario)
    assert report.problems == ()
    recorded = load_scenario(scenario)
    assert len(recorded.root.script) == 2
    assert recorded.root.tool_calls[0].name == "depth"
    for agent in (None, "tape"):
        replayed = await replay(recorded, cast=cast_of(scenario, agent))
        assert replayed.problems == ()


def test_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its last line runs it; it prints each event of the first turn."""
    monkeypatch.chdir(folder)
    runpy.run_path("program.py", run_name="__main__")
    printed = capsys.readouterr().out.split("\n")
    assert printed[0] == "/ turn/start"
    assert "/ assistant/message" in printed
    assert printed.count("/ turn/end") == 1


def test_without_an_event_loop(folder: Path) -> None:
    stream = loaded(folder, "stream.py").my_stream
    with SyncDriver(providers={"openai": stream}) as driver:
        agent = loaded(folder, "harbour.py").keeper
        result = driver.start(agent, "How deep is berth 7a?").result()
    assert (result.text, result.stop_reason) == ("12.5 m", "completed")


async def test_a_loop_of_ones_own(folder: Path) -> None:
    model = ScriptedModel(lambda request: f"heard {len(request.messages)}")
    async with Driver(providers={"*": model}) as driver:
        run = await driver.start(f"{folder / 'harbour.py'}:panel", "Shall we?")
        with anyio.fail_after(50):
            result = await run.result()
        logs = await run.close()
    assert result.text == "heard 2"
    assert {path for path in logs if path.count("/") == 1 and path != "/"} == {
        "/t1s0kfor",
        "/t1s0kagainst",
    }


def test_the_fixture(folder: Path) -> None:
    (folder / "test_it.py").write_text("def test_nothing() -> None: pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    result = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    assert b"1 passed" in result.stdout, result.stdout
    assert result.returncode == 0
