"""How a worker's process came to be, how it ended, and what its session has left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from nestling.session.event import Event
from nestling.session.header import Header

TEMPLATE_LOST: Final = "template-lost"
"""The cause of an exit that nobody could collect: the template died, and with it the
workers it had forked."""

UNCOLLECTED: Final = "reaped by somebody else"
"""The cause of an exit that was collected elsewhere in the driver, or by the kernel
because the driver ignores SIGCHLD."""


UNKILLABLE: Final = "unkillable"
"""The cause of an exit that never came: the process is there still, and left alone."""


class Log(NamedTuple):
    """What one session has left."""

    header: Header
    events: Sequence[Event]


class Usage(NamedTuple):
    """What a process and the children it had waited for used.

    Attributes:
        user_ms: CPU time, milliseconds.
        system_ms: CPU time in the kernel for it, milliseconds.
        max_rss_kb: the most memory it had at one time, KiB, shared pages included.
    """

    user_ms: int
    system_ms: int
    max_rss_kb: int


class Birth(NamedTuple):
    """How a worker's process came to be.

    Attributes:
        launcher: ``template`` or ``exec``.
        reason: why that one and not the one that was wanted, if so.
    """

    pid: int
    launcher: str
    reason: str | None


class Exit(NamedTuple):
    """The end of one process.

    Attributes:
        code: its exit status, or None if a signal ended it or it never started.
        signal: the signal's name, or None.
        stderr_tail: the last lines it wrote to its log file.
        cause: why there is neither code nor signal, if it did start; else "".
        usage: what it used, where that is known.
        swept: how many processes it had left behind, which were ended then.
        unkillable: what of it could not be ended in time, named for people.
    """

    code: int | None
    signal: str | None
    stderr_tail: str = ""
    cause: str = ""
    usage: Usage | None = None
    swept: int = 0
    unkillable: tuple[str, ...] = ()

    def __str__(self) -> str:
        how = f"exit code {self.code}" if self.signal is None else self.signal
        if self.code is None and self.signal is None:
            how = self.cause or "not started"
        if self.unkillable:
            how = f"{how}, {UNKILLABLE}: {', '.join(self.unkillable)}"
        return f"{how}: {self.stderr_tail}" if self.stderr_tail else how
