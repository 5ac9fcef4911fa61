"""The tutorial, done from an empty folder to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pages import do
from support.processes import needs_linux

pytestmark = [needs_linux, pytest.mark.timeout(180)]


def test_the_tutorial(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    printed = list(do("tutorial.md", folder))
    assert "1 passed" in printed[-1]
    assert "nestling ==" not in printed[-1]
