"""The page about verifying says what is so."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest

from nestling.harness.scenario_config_io import load_config
from support.recordings import command
from support.scenarios import MIXED

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "verify.md"


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text: str = found
    return text


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, a word of whose system prompt was changed, where we are."""
    shutil.copytree(MIXED, tmp_path / "mixed")
    agent = tmp_path / "mixed" / "agent.py"
    text = agent.read_text()
    assert "harbour's books" in text
    agent.write_text(text.replace("harbour's books", "harbour's book"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mixed"


def test_the_difference(changed: Path) -> None:
    result = command("replay", str(changed))
    assert result.exit_code == 1
    assert block("text") in result.out


def test_the_program(changed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (changed.parent / "program.py").write_text(block("python"))
    runpy.run_path("program.py", run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.startswith("/t2s1b1 call 1 (turn 1, step 1): the request is not ")
    assert "\n/ call 1 (turn 1, step 1): the request is not the recorded" in printed


def test_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text(block("toml"))
    config = load_config(tmp_path)
    assert config is not None
    normalisers = config.normalisers_at(tmp_path)
    told = f"T-7 on 2026-12-01 in {tmp_path}/x"
    assert normalisers.normalised(told) == "{{ticket}} on {{time}} in {{scenario}}/x"


def test_the_tests_that_it_names() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 10
    for file, name in named:
        assert re.search(
            rf"^(async )?def {name}\(", (CHECKOUT / file).read_text(), re.MULTILINE
        )
