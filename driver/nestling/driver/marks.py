"""Marks: which driver a process is of, and which of its workers.

A mark is written in two ways: as text, in the environment that a process was started
with, and as a number, in a limit of it that the kernel keeps and does not heed. An
environment can be emptied; such a limit goes from parent to child whatever they do, and
without privileges can only be lowered. So the drivers below a process that bears a mark
take numbers below its own.
"""

from __future__ import annotations

from typing import Final, NamedTuple

CHANCES: Final = 1 << 20
"""Marks have a chance below this."""
NUMBERS: Final = 1 << 20
"""So many workers of a driver have numbers of their own; then they begin again at 1."""
_PIDS: Final = 1 << 22


class Mark(NamedTuple):
    """A mark.

    Attributes:
        pid: the driver's process.
        chance: what tells it from others that had that pid.
        number: which of its workers or templates; 0 is the driver itself.
    """

    pid: int
    chance: int
    number: int = 0

    def __str__(self) -> str:
        owner = f"{self.pid}-{self.chance:x}"
        return f"{owner}.{self.number:x}" if self.number else owner

    @property
    def limit(self) -> int:
        """The number that stands for it, as a limit."""
        return (self.chance * _PIDS + self.pid) * NUMBERS + self.number


def mark_of_limit(limit: int) -> Mark | None:
    """Return the mark that a limit stands for, or None if it is a limit like others."""
    rest, number = divmod(limit, NUMBERS)
    chance, pid = divmod(rest, _PIDS)
    is_mark = 0 < chance < CHANCES and pid > 0
    return Mark(pid, chance, number) if is_mark else None


def chances(limit: int) -> range:
    """Return the chances that a driver may have below a limit of its own.

    Args:
        limit: the most that it may give what it starts; negative for no limit.
    """
    above = mark_of_limit(limit)
    most = CHANCES if above is None else above.chance
    # Half of them are left for drivers further below.
    return range(max(1, most // 2), max(2, most))


def bears(mark: str, beginning: str) -> bool:
    """Tell whether a mark is another one, or of that other one's driver."""
    return f"{mark}.".startswith(f"{beginning}.")
