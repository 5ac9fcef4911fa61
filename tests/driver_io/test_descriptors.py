"""Counting the descriptors that are free."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import Any

import pytest

from nestling.driver.descriptors_io import require_descriptors
from nestling.session.errors import LaunchError

pytestmark = pytest.mark.usefixtures("_nobody_opens")

Limit = Callable[[int], None]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Sets how many descriptors this process may have."""

    def to(count: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (count, count))

    return to


@pytest.fixture
def _nobody_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that were taken could be the one that libzmq needs at that moment."""

    def refuse(*_: Any) -> int:
        pytest.fail("a descriptor was taken")

    monkeypatch.setattr(os, "open", refuse)


def _free_below(number: int) -> int:
    names = map(int, os.listdir("/dev/fd"))
    return number - sum(fd < number for fd in names) + 1  # the one that listed them


def test_exactly_enough(limit: Limit) -> None:
    limit(2000)
    free = _free_below(2000)
    require_descriptors(free)
    problem = f"^found {free} free descriptors, expected {free + 1}: Too many open"
    with pytest.raises(LaunchError, match=problem):
        require_descriptors(free + 1)


def test_no_limit(limit: Limit) -> None:
    limit(-1)
    require_descriptors(5000)
