"""The ledger of a replay: who bound to which script, what was served, what is wrong.

The verdict comes from here and never from what an agent did with an error.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from nestling.session.outcome import Outcome

ProblemKind: TypeAlias = Literal[
    "session-without-script",
    "script-not-bound",
    "extra-call",
    "leftover-call",
    "log-differs",
    "output-differs",
    "drift",
    "seed-refused",
    "tree-differs",
    "worker-lost",
    "stall",
    "timeout",
    "not-supported",
    "nothing-to-replay",
    "unreadable",
]


class Problem(NamedTuple):
    """One thing that keeps a replay from being ok.

    Attributes:
        path: the spawn path of the session it is about; None for the whole tree.
    """

    kind: ProblemKind
    path: str | None
    message: str


class Account:
    """What happened to one recorded session.

    Attributes:
        path: its spawn path.
        recorded_calls: how many entries its script has.
        id: the live session's id, once one has bound.
        seed_length: how many events the live session inherited, counted by the hub.
        served: how many calls were answered from the script.
        logged: how many events of the live log were compared and found equal.
        outcome: what the live session came to.
        has_settled: whether it ended.
        is_different: whether its log differs from the recorded one.
    """

    def __init__(self, path: str, recorded_calls: int) -> None:
        self.path = path
        self.recorded_calls = recorded_calls
        self.id: str | None = None
        self.seed_length = 0
        self.served = 0
        self.logged = 0
        self.outcome: Outcome | None = None
        self.has_settled = False
        self.is_different = False

    @property
    def is_bound(self) -> bool:
        """Whether a live session has taken this script."""
        return self.id is not None


class Ledger:
    """The accounts of one replay and its problems, in the order they were found."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.problems: list[Problem] = []

    def open(self, path: str, recorded_calls: int) -> Account:
        """Open the account of a recorded session."""
        account = self.accounts[path] = Account(path, recorded_calls)
        return account

    def report(self, kind: ProblemKind, path: str | None, message: str) -> None:
        """Write down a problem."""
        self.problems.append(Problem(kind, path, message))

    @property
    def is_ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems
