"""How a worker's process ended: one record for every exit."""

from __future__ import annotations

from typing import NamedTuple


class Exit(NamedTuple):
    """The end of one process.

    Attributes:
        code: its exit status, or None if a signal ended it or it never started.
        signal: the signal's name, or None.
        stderr_tail: the last lines it wrote to its log file.
    """

    code: int | None
    signal: str | None
    stderr_tail: str = ""

    def __str__(self) -> str:
        how = f"exit code {self.code}" if self.signal is None else self.signal
        if self.code is None and self.signal is None:
            how = "not started"
        return f"{how}: {self.stderr_tail}" if self.stderr_tail else how
