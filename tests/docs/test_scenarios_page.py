"""The files, commands and programs of the page about scenarios do what the page says."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import anyio
import pytest

from nestling.driver.stated_cancels import CancelPoint
from nestling.harness import load_scenario
from nestling.harness.scenario_config_io import ScenarioConfig
from nestling.harness.steps import Step, StepCancel
from support.processes import needs_linux, run_nestling

PAGE = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()

pytestmark = needs_linux


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the page makes."""
    agent, model, *_ = blocks("python")
    (config,) = blocks("toml")
    (tmp_path / "agent.py").write_text(agent)
    (tmp_path / "model.py").write_text(model)
    (tmp_path / "scenario.toml").write_text(config)
    return tmp_path


@pytest.mark.timeout(240)  # five commands, each a program
def test_the_page(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (commands,) = blocks("sh")
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "nestling"
        done = run_nestling(*arguments, cwd=folder)
        assert (done.returncode, done.stderr) == (0, b""), done.stdout
    assert b"nothing changed" in done.stdout
    (call,) = load_scenario(folder).by_path["/t2s1b1"].script
    assert len(call.entry.chunks) == 3
    _, _, gates, save = blocks("python")
    (folder / "gates.py").write_text(gates)
    (folder / "save.py").write_text(save)
    anyio.run(runpy.run_path("gates.py", {"folder": folder})["main"])
    monkeypatch.syspath_prepend(folder)
    model = __import__("model").model()
    anyio.run(runpy.run_path("save.py")["save"], model)
    assert capsys.readouterr().out == "held after three chunks\nTrue\nTrue\n"
    assert run_nestling("replay", "saved", cwd=folder).returncode == 0


def test_every_key_is_told_of() -> None:
    keys = set(ScenarioConfig.__struct_fields__) - {"steps"}
    keys |= set(Step.__struct_fields__) | set(StepCancel.__struct_fields__)
    assert {key for key in keys if f"`{key}`" not in PAGE} - {
        "options",
        "normalisers",
    } == set()
    for table in ("[[steps]]", "[options]", "[normalisers]"):
        assert f"`{table}`" in PAGE
    assert set(StepCancel.__struct_fields__) < {*CancelPoint._fields}
