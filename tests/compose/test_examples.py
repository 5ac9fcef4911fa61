"""The committed examples are what the script makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nestling.session.boundary import own_events
from nestling.session.jsonl_io import read_file
from nestling.session.outcome import outcome

REPOSITORY = Path(__file__).resolve().parents[2]
MIXED = REPOSITORY / "examples" / "mixed"


def make(folder: Path) -> dict[str, bytes]:
    """Run the script into `folder` and return the recordings by relative path."""
    script = REPOSITORY / "scripts" / "make_examples.py"
    subprocess.run([sys.executable, "-P", script, folder], check=True)
    return recordings(folder)


def recordings(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*.jsonl")
    }


def test_the_committed_examples_are_what_the_script_makes(tmp_path: Path) -> None:
    made = make(tmp_path)
    assert made == recordings(REPOSITORY / "examples")
    assert make(tmp_path) == made


@pytest.mark.parametrize(
    ("name", "kind", "answer"),
    [
        ("session.1.jsonl", "spawn", "GULL"),
        ("session.2.jsonl", "fork", "LANTERN"),
    ],
)
def test_the_children_of_mixed(name: str, kind: str, answer: str) -> None:
    recording = read_file(MIXED / name)
    own = own_events(recording.events, recording.header.seed_length)
    assert recording.header.spawned_by is not None
    assert recording.header.spawned_by.context == kind
    assert bool(recording.header.seed_length) == (kind == "fork")
    assert outcome(own).text == answer
    prompt = next(event for event in own if event.type == "user/message")
    assert answer not in str(prompt.data) or kind == "spawn"
