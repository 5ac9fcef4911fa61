"""The ledger of a replay: who bound to which script, what was served, what is wrong.

The verdict comes from here and never from what an agent did with an error.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from nestling.harness.nearest import Nearest
from nestling.session.outcome import Outcome
from nestling.session.spawn_path import sort_key

ProblemKind: TypeAlias = Literal[
    "session-without-script",
    "script-not-bound",
    "extra-call",
    "leftover-call",
    "log-differs",
    "request-differs",
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
    "recording-failed",
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
        seed_length: how many events the live session inherited, counted by the hub,
            once it was created.
        served: how many calls were answered from the script.
        unscripted: how many calls were opened of which not one chunk was recorded.
        logged: how many recorded events were found in the live log.
        outcome: what the live session came to.
        has_settled: whether it ended.
        is_different: whether its log differs from the recorded one, and must not.
        has_other_inputs: whether something that its model was told, or might have been,
            is another than recorded, missing or new.
        was_ended: whether it was ended with the run, or with its parent.
    """

    def __init__(self, path: str, recorded_calls: int) -> None:
        self.path = path
        self.recorded_calls = recorded_calls
        self.id: str | None = None
        self.seed_length: int | None = None
        self.served = 0
        self.unscripted = 0
        self.logged = 0
        self.outcome: Outcome | None = None
        self.has_settled = False
        self.is_different = False
        self.has_other_inputs = False
        self.was_ended = False

    @property
    def is_bound(self) -> bool:
        """Whether a live session has taken this script."""
        return self.id is not None

    @property
    def came_to_its_end(self) -> bool:
        """Whether nothing kept the session from doing all that was recorded."""
        return self.has_settled and not self.is_different and not self.was_ended


class Ledger:
    """The accounts of one replay, its problems and its warnings.

    Attributes:
        accounts: what happened to each recorded session, by spawn path.
        nearest: the recorded call that is most like the one that was missed, by the
            path of the session that asked.
    """

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self._found: list[Problem] = []
        self._warnings: list[Problem] = []
        self.nearest: dict[str, Nearest] = {}

    def open(self, path: str, recorded_calls: int) -> Account:
        """Open the account of a recorded session."""
        account = self.accounts[path] = Account(path, recorded_calls)
        return account

    def report(self, kind: ProblemKind, path: str | None, message: str) -> None:
        """Write down a problem."""
        self._found.append(Problem(kind, path, message))

    def warn(self, kind: ProblemKind, path: str | None, message: str) -> None:
        """Write down what would be a problem if it were verified strictly."""
        self._warnings.append(Problem(kind, path, message))

    @property
    def warnings(self) -> list[Problem]:
        """What was found and does not count, in the order of problems."""
        return sorted(self._warnings, key=_place)

    @property
    def problems(self) -> list[Problem]:
        """What was found, the same on every schedule.

        Children stand before their parents, so that a cause stands before what came
        of it; else spawn paths are in order. What is about no session stands last.
        """
        return sorted(self._found, key=_place)

    @property
    def is_ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self._found


def _place(problem: Problem) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    above = ((2, 0, ""),)  # sorts after every element of a path
    return (*sort_key(problem.path or ""), above)
