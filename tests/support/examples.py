"""The examples, and what two recordings of one of them have in common."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from nestling.harness.scenario import Scenario
from nestling.harness.scenario_io import load_scenario
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject

FOLDER: Final = Path(__file__).parents[2] / "examples"

EXAMPLES: Final = (
    "crash",
    "deep",
    "fan-out",
    "first-turn-fork",
    "mixed",
    "retry",
    "twins",
)

SOURCES: Final = ("agent.py", "model.py", "scenario.toml")

Timeless: TypeAlias = dict[str, tuple[JsonObject, list[JsonObject]]]
"""Header and event contents by spawn path, without times."""


def example(name: str) -> Scenario:
    """Load a committed example."""
    return load_scenario(FOLDER / name)


def copied(name: str, folder: Path) -> Path:
    """Copy the sources of an example, without its recording."""
    made = folder / name
    made.mkdir()
    for source in SOURCES:
        shutil.copy(FOLDER / name / source, made)
    return made


def timeless(logs: Mapping[str, tuple[Header, Sequence[Event]]]) -> Timeless:
    """Return logs by spawn path, without times."""
    return {
        path: (
            {**header.row(), "createdAt": 0},
            [event.content() for event in events],
        )
        for path, (header, events) in logs.items()
    }


def recorded(scenario: Scenario) -> Timeless:
    """Return the recorded logs of a scenario, without times."""
    return timeless(
        {
            path: (each.recording.header, each.recording.events)
            for path, each in scenario.by_path.items()
        }
    )


def swapped(text: str) -> str:
    """Return recorded text of ``twins`` with each twin's answer for the other's."""
    other = {"HERON": "TERN", "TERN": "HERON"}
    return re.sub("HERON|TERN", lambda found: other[found.group()], text)
