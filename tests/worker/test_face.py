"""What `nestling.worker` offers is there in whatever order its modules are loaded."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import nestling.driver
import nestling.harness
import nestling.worker


@pytest.mark.parametrize(
    "face",
    [nestling.worker, nestling.driver, nestling.harness],
    ids=lambda f: f.__name__,
)
def test_no_module_hides_a_public_name(face: object) -> None:
    """A package's attribute of a module's name is that module, once it is loaded."""
    module = importlib.import_module(face.__name__)  # type: ignore[attr-defined]
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert modules.isdisjoint(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
