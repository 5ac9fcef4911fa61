"""What helps where a replay did not come out as recorded, if that is meant.

A refresh writes anew what agents tell their models. Where they *do* something else, only
a recording helps; where a process was lost or nothing moved, neither does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nestling.harness.ledger import Problem

_TOLD: Final = frozenset({"request-differs", "log-differs"})
_LOST: Final = frozenset({"worker-lost", "stall", "timeout", "not-supported"})


def next_step(problems: Sequence[Problem], refresh: str, record: str) -> str | None:
    """Return one line that says what can be done about problems of a replay.

    Args:
        problems: what was wrong.
        refresh: what is called to refresh the scenario, a command or an option.
        record: what is called to record it.

    Returns:
        The line, None if there is nothing wrong that a recording could mend.
    """
    kinds = {problem.kind for problem in problems}
    if not kinds or kinds & _LOST:
        return None
    if kinds <= _TOLD:
        return (
            f"if this is meant: {refresh} writes anew what models are told, and keeps "
            f"what they said; {record} asks them anew"
        )
    return f"if this is meant: {record} asks the models anew"


def kinds_of(problems: Sequence[Problem]) -> str:
    """Return the kinds of problems, each once, for a line that sums them up."""
    return ", ".join(dict.fromkeys(problem.kind for problem in problems))
