"""The pages that are done step by step: the tutorial, and those that go on from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pages import blocks, do
from support.processes import needs_linux

pytestmark = [needs_linux, pytest.mark.timeout(240)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "empty"
    made.mkdir()
    return made


def files_of_the_tutorial(folder: Path) -> None:
    """Write the tutorial's files, as they are at its beginning."""
    for block in blocks("tutorial.md"):
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)


def test_the_tutorial(folder: Path) -> None:
    printed = list(do("tutorial.md", folder))
    assert "1 passed" in printed[-1]
    assert "nestling ==" not in printed[-1]


def test_testing(folder: Path) -> None:
    files_of_the_tutorial(folder)
    assert (
        len(list(do("testing.md", folder, first="nestling record scenarios/moby"))) == 3
    )


def test_from_cassettes(folder: Path) -> None:
    files_of_the_tutorial(folder)
    *_, printed = do("from-cassettes.md", folder)
    assert printed.count("1 passed") == 2
    assert "recorded: scenarios/moby" in printed
