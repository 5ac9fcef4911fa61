"""One template for the tests of a module; it stays warm between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nestling.driver.template_io import Template
from support.live import warm


@pytest.fixture(autouse=True, scope="module")
def _template(box: Path) -> Iterator[None]:
    launcher = warm()
    with launcher:
        # It is there before the tests, none of which leaves it behind.
        assert isinstance(launcher._held[0].template_for(""), Template)
        yield


@pytest.fixture
def anyio_backend() -> str:
    """Agents run in processes of their own; who needs trio asks for it."""
    return "asyncio"
