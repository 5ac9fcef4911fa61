"""The ledger of a replay as a section of its report: what bound, and what did not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from nestling.harness.ledger import Account, Problem
from nestling.harness.nearest import Nearest
from nestling.harness.printable import shown
from nestling.session.jsontext import JsonObject

_SECTIONS: Final = {
    "extra": ("session-without-script", "extra-call"),
    "missing": ("script-not-bound",),
    "leftover": ("leftover-call",),
    "drift": ("drift",),
    "requestDiffers": ("request-differs",),
}
"""Which problems are told of where."""

_FEW: Final = 8
"""So many paths are named in one line for people."""


class Balanced(Protocol):
    """What the ledger's section is made from."""

    @property
    def accounts(self) -> Mapping[str, Account]:
        """The account of each recorded session, by spawn path."""
        ...

    @property
    def problems(self) -> Sequence[Problem]:
        """What was wrong."""
        ...

    @property
    def nearest(self) -> Mapping[str, Nearest]:
        """What is most like what was missed, by the path of who asked."""
        ...


def ledger_json(report: Balanced) -> JsonObject:
    """Return the ledger as the object that stands in ``nestling replay --json``.

    ``bound`` and ``unbound`` are spawn paths of recorded sessions. Of ``leftover``
    calls the first is named, from 1. ``extra`` and ``requestDiffers`` tell the nearest
    recorded call, where there is one.
    """
    accounts = report.accounts
    return {
        "bound": [path for path, each in accounts.items() if each.is_bound],
        "unbound": [path for path, each in accounts.items() if not each.is_bound],
        **{name: _entries(report, name) for name in _SECTIONS},
    }


def _entries(report: Balanced, section: str) -> list[JsonObject]:
    return [
        _entry(report, problem)
        for problem in report.problems
        if problem.kind in _SECTIONS[section]
    ]


def _entry(report: Balanced, problem: Problem) -> JsonObject:
    entry: JsonObject = {"path": problem.path, "message": problem.message}
    account = report.accounts.get(problem.path or "")
    if problem.kind == "leftover-call" and account is not None:
        entry["calls"] = [account.served + 1, account.recorded_calls]
    nearest = _nearest(report, problem)
    if nearest is not None:
        entry["nearest"] = nearest._asdict()
    return entry


def _nearest(report: Balanced, problem: Problem) -> Nearest | None:
    if problem.kind not in ("session-without-script", "extra-call", "request-differs"):
        return None
    return report.nearest.get(problem.path or "")


def ledger_lines(report: Balanced) -> Iterator[str]:
    """Yield the ledger for people: what is not balanced, one line each."""
    accounts = report.accounts
    bound = sum(account.is_bound for account in accounts.values())
    if accounts:
        yield f"ledger: {bound} of {len(accounts)} recorded sessions bound"
    unbound = [path for path, each in accounts.items() if not each.is_bound]
    if unbound:
        more = f" and {len(unbound) - _FEW} more" if len(unbound) > _FEW else ""
        yield f"  unbound: {', '.join(map(shown, unbound[:_FEW]))}{more}"
    for path, account in accounts.items():
        left = account.recorded_calls - account.served
        if account.is_bound and left > 0:
            first, last = account.served + 1, account.recorded_calls
            which = f"call {first}" if first == last else f"calls {first} to {last}"
            yield f"  not asked for: {which} of {shown(path)}"
    for problem in report.problems:
        nearest = _nearest(report, problem)
        if nearest is not None:
            yield f"  {problem.kind} {shown(problem.path or '')}: {nearest}"
