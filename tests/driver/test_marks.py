"""Marks of drivers and workers: as text, as a limit, and below one another."""

from __future__ import annotations

import pytest

from nestling.driver.marks import (
    CHANCES,
    NUMBERS,
    Mark,
    bears,
    chances,
    mark_of_limit,
)

LARGEST = Mark((1 << 22) - 1, CHANCES - 1, NUMBERS - 1)


@pytest.mark.parametrize(
    "mark", [Mark(1, 1), Mark(1, 1, 1), Mark(4_194_303, 1, 7), LARGEST]
)
def test_as_a_limit_and_back(mark: Mark) -> None:
    assert mark_of_limit(mark.limit) == mark
    # The kernel's calls take 63 bits, and the largest number of all is no limit.
    assert mark.limit < 1 << 62


@pytest.mark.parametrize("limit", [-1, 0, 1, 1024, 1 << 40, 1 << 62, (1 << 63) - 1])
def test_a_limit_like_others_is_no_mark(limit: int) -> None:
    assert mark_of_limit(limit) is None


def test_whose_a_mark_is() -> None:
    owner = Mark(77, 0xABC)
    worker = owner._replace(number=0x1F)
    assert (str(owner), str(worker)) == ("77-abc", "77-abc.1f")
    assert bears(str(worker), str(owner))
    assert bears(str(worker), str(worker))
    assert not bears(str(owner), str(worker))
    assert not bears("77-abc.1f0", str(worker))
    assert not bears("77-abcd.1f", str(owner))


@pytest.mark.parametrize("limit", [-1, 1024, (1 << 63) - 1])
def test_nobody_above(limit: int) -> None:
    assert chances(limit) == range(CHANCES // 2, CHANCES)


def test_below_a_worker_of_another_driver() -> None:
    """A limit is lowered by each, whatever its pid and its workers' numbers are."""
    limit, depth = Mark(1, CHANCES - 1, 1).limit, 0
    while (below := chances(limit))[-1] > 1:
        largest = LARGEST._replace(chance=below[-1])
        assert largest.limit < limit
        limit = largest.limit
        depth += 1
    assert depth > CHANCES // 4
    limit, depth = Mark(1, CHANCES // 2, 1).limit, 0
    while (below := chances(limit))[0] > 1:
        limit = LARGEST._replace(chance=below[0]).limit
        depth += 1
    assert depth >= 17, "also if chance has it that numbers get small"
