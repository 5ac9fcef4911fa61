"""Every test of the contract runs over every backend that it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.stores import BACKENDS, DURABLE, Place


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a store is, of any backend."""
    return Place(request.param, tmp_path)


@pytest.fixture(params=DURABLE)
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a store is that outlives its process."""
    return Place(request.param, tmp_path)
