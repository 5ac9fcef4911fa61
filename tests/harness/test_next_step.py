"""What a person is told to do about a replay that did not come out."""

from __future__ import annotations

import pytest

from nestling.harness.ledger import Problem, ProblemKind
from nestling.harness.nearest import Nearest
from nestling.harness.next_step import kinds_of, next_step


@pytest.mark.parametrize(
    ("kinds", "helps"),
    [
        ((), ()),
        (("request-differs",), ("REFRESH", "RECORD")),
        (("log-differs", "request-differs"), ("REFRESH", "RECORD")),
        (("leftover-call",), ("RECORD",)),
        (("request-differs", "script-not-bound"), ("RECORD",)),
        (("worker-lost",), ()),
        (("request-differs", "stall"), ()),
        (("not-supported",), ()),
    ],
)
def test_what_helps(kinds: tuple[ProblemKind, ...], helps: tuple[str, ...]) -> None:
    problems = [Problem(kind, "/", "") for kind in kinds]
    said = next_step(problems, "REFRESH", "RECORD")
    words = ("REFRESH", "RECORD")
    assert tuple(word for word in words if word in (said or "")) == helps
    assert (said is None) == (not helps)


def test_each_kind_is_named_once() -> None:
    kinds: tuple[ProblemKind, ...] = ("drift", "log-differs", "drift")
    assert kinds_of([Problem(kind, "/", "") for kind in kinds]) == "drift, log-differs"


def test_another_request_is_never_wholly_alike() -> None:
    assert "(99 % alike)" in str(Nearest("/", 1, 1.0))
