"""The ledger: what it holds, and in which order it tells it."""

from __future__ import annotations

from itertools import permutations

import pytest

from nestling.harness.ledger import Account, Ledger

ORDERED = [
    "/t1s1b2",
    "/t1s1b10/t1s1b0/t5s1b0",
    "/t1s1b10/t1s1b0",
    "/t1s1b10/t2s1b0",
    "/t1s1b10",
    "/",
]
"""Children before their parents, numbers as numbers."""


def test_problems_are_told_in_one_order() -> None:
    for found in permutations(ORDERED):
        ledger = Ledger()
        for path in found:
            ledger.report("log-differs", path, "x")
        assert [problem.path for problem in ledger.problems] == ORDERED
        assert not ledger.is_ok


def test_the_problems_of_one_session_are_told_as_they_were_found() -> None:
    ledger = Ledger()
    for path, message in (("/", "1"), ("/t1s1b0", "2"), ("/", "3"), (None, "4")):
        ledger.report("drift", path, message)
    assert [problem.message for problem in ledger.problems] == ["2", "1", "3", "4"]


def test_an_empty_ledger_is_ok() -> None:
    ledger = Ledger()
    assert ledger.is_ok
    assert ledger.problems == []


@pytest.mark.parametrize("reason", ["is_different", "was_ended"])
def test_what_keeps_a_session_from_its_end(reason: str) -> None:
    account = Account("/", 1)
    assert came_to_its_end(account) is False
    account.has_settled = True
    assert came_to_its_end(account) is True
    setattr(account, reason, True)
    assert came_to_its_end(account) is False


def came_to_its_end(account: Account) -> bool:
    """Read the property anew: the type checker takes it for unchanged."""
    return account.came_to_its_end
