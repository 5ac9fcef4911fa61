"""Fixtures of the wire's tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def endpoint() -> Iterator[str]:
    """An ipc endpoint in a fresh directory whose path is short."""
    folder = tempfile.mkdtemp(prefix="nw-", dir="/tmp")
    yield f"ipc://{folder}/hub"
    shutil.rmtree(folder)
