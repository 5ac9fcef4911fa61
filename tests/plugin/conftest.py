"""Projects of users of the plugin; one that is recorded is copied, not made anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.plugin_projects import Project


@pytest.fixture(scope="session")
def _recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Project(tmp_path_factory.mktemp("recorded")).recorded().folder


@pytest.fixture
def project(_recorded: Path, tmp_path: Path) -> Project:
    """A project with a recorded scenario, ``tree``, and no tests."""
    shutil.copytree(_recorded, tmp_path, dirs_exist_ok=True)
    return Project(tmp_path)
