"""The names that users import: there, and not hidden by a module of the same name."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

import pytest

ROOMS = ("nestling.driver", "nestling.worker", "nestling.harness")


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_is_there(room: str) -> None:
    package = import_module(room)
    assert package.__all__
    for name in package.__all__:
        assert not isinstance(getattr(package, name), ModuleType)


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_hides_a_public_name(room: str) -> None:
    """A submodule becomes an attribute of its package once it is imported."""
    package = import_module(room)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(package.__all__)


@pytest.mark.parametrize("room", ROOMS)
def test_another_name_is_none(room: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        import_module(room).nothing  # noqa: B018 - asking is the test
