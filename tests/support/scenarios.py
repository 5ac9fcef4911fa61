"""Scenario folders for tests that start processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from compose.trees import TREES
from nestling.harness.compose import Composer, Tree, spawn_call, text
from nestling.harness.scenario_write_io import write_scenario
from nestling.session.jsontext import JsonObject
from support.logs import Log, write_folder

MIXED: Final = Path(__file__).parents[2] / "examples" / "mixed"

_PREFIX: Final[list[JsonObject]] = [
    {"type": "block-start", "index": 0, "blockType": "text"},
    {"type": "text-delta", "index": 0, "text": "partial"},
]


def composed(folder: Path, name: str) -> Path:
    """Write a composed tree."""
    write_scenario(folder, TREES[name]().files())
    return folder


def saying(folder: Path, said: str) -> Path:
    """Write one session that says something and is done."""
    root = Composer("é😀", 1_000)
    root.turn("Begin.")
    root.says(text(said))
    root.end()
    write_scenario(folder, Tree(root).files())
    return folder


def with_children(folder: Path, count: int, *, at_once: int) -> Path:
    """Write a root that spawns so many children, a step at a time."""
    root = Composer("root", 1_000)
    root.turn("Begin.")
    for first in range(0, count, at_once):
        calls = [spawn_call(f"c{first + n}", f"Say {n}") for n in range(at_once)]
        children = [root.spawn(call) for call in root.says(*calls)]
        for child in children:
            child.turn()
            child.says(text("word"))
            child.end()
        for child in children:
            root.returns(child)
        root.step()
    root.says(text("all"))
    root.end()
    write_scenario(folder, Tree(root).files())
    return folder


def hanging(folder: Path) -> Path:
    """Write one session whose only call hangs after its first two chunks."""
    root = Log("root").turn("go").chunks(_PREFIX)
    root.chunks([{"type": "finish", "reason": {"kind": "stop"}}])
    root.message([{"type": "text", "text": "partial"}]).end()
    return overridden(write_folder(folder, root), [{"kind": "hang"}])


def overridden(folder: Path, override: object) -> Path:
    """Give a scenario an override."""
    (folder / "replay.override.json").write_text(json.dumps(override))
    return folder
