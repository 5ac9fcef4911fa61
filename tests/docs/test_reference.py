"""The reference page has every flag, option, fixture, key and kind, and no other ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import typer.main

from nestling.harness import cli, pytest_plugin
from nestling.harness.ledger import ProblemKind
from nestling.harness.plugin_options import KEYWORDS
from nestling.harness.scenario_config_io import ScenarioConfig
from nestling.harness.scenario_io import CONFIG_NAME, ROOT_NAME
from support.pages import DOCS

PAGE = (DOCS / "reference.md").read_text()
COMMAND: Any = typer.main.get_command(cli.app)


def names(heading: str) -> set[str]:
    """Return what stands in the first column of the table below a heading."""
    _, found, rest = PAGE.partition(f"\n{heading}\n")
    assert found, heading
    section = re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall("`([^`]+)`", row)}


def flags(command: Any) -> set[str]:
    options = [p for p in command.params if p.param_type_name == "option"]
    return {name for option in options for name in option.opts} - {"--help"}


@pytest.mark.parametrize("name", ["", *COMMAND.commands])
def test_flags(name: str) -> None:
    command = COMMAND.commands[name] if name else COMMAND
    assert names(f"### nestling {name}".rstrip()) == flags(command)


def test_commands() -> None:
    commands = set(re.findall(r"^### nestling (\w+)$", PAGE, re.MULTILINE))
    assert commands == set(COMMAND.commands)


def test_options_of_the_plugin(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "--help", "-p", "no:cacheprovider"]
    shown = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    _, _, section = shown.partition("nestling: replays of recorded agent trees:\n")
    section = section.partition("\n\n")[0]
    assert names("### Options") == set(re.findall(r"(?<!\w)--[\w-]+", section))


def test_keywords_of_the_marker() -> None:
    assert names("### Marker") == set(KEYWORDS)
    for keyword in KEYWORDS:
        assert keyword in pytest_plugin.MARKER


def test_fixtures() -> None:
    """As pytest finds them; those that begin with an underscore are not for users."""
    fixture = type(pytest_plugin.replay)
    found = {
        name
        for name, value in vars(pytest_plugin).items()
        if isinstance(value, fixture) and not name.startswith("_")
    }
    assert len(found) == 3
    assert names("### Fixtures") >= found
    assert {n for n in names("### Fixtures") if n in vars(pytest_plugin)} == found


def test_keys_of_the_configuration() -> None:
    keys = {field.encode_name for field in msgspec.structs.fields(ScenarioConfig)}
    assert names("### Keys of scenario.toml") == keys


def test_files() -> None:
    assert {CONFIG_NAME, ROOT_NAME} <= names("## A scenario's folder")


def test_kinds() -> None:
    assert names("## Kinds of problems") == set(get_args(ProblemKind))
