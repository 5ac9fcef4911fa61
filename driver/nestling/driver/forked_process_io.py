"""A worker that a template forked: a grandchild, whose exit the template reports."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from nestling.driver.exec_process_io import DUMP
from nestling.driver.exits import UNCOLLECTED, Exit
from nestling.driver.processes_io import catches


class ForkedProcess:
    """A forked worker.

    Attributes:
        pid: the process.
        pidfd: the kernel's handle on it, which its number is not.
        launcher: what started it.
        reason: always None.
    """

    launcher = "template"
    reason = None

    def __init__(
        self,
        pid: int,
        pidfd: int,
        lifeline: int,
        terminate_group: Callable[[int], bool],
    ) -> None:
        """Take over the two descriptors.

        Args:
            pid: the process.
            pidfd: a handle on it.
            lifeline: the end of the pipe whose closing ends it.
            terminate_group: has the template send SIGTERM to the group of a worker,
                if it can be asked.
        """
        self.pid = pid
        self.pidfd = pidfd
        self._lifeline = lifeline
        self._terminate_group = terminate_group
        self._exit: Exit | None = None
        self._on_end: Callable[[], None] | None = None
        self._is_freed = False

    def ended(self, exit: Exit) -> None:
        """Take note of how it ended."""
        self._exit = exit
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call `on_end` once, now or later, when the process has ended."""
        self._on_end = on_end
        if self._exit is not None:
            self.ended(self._exit)

    def has_ended(self) -> bool:
        """Tell whether the process has ended, and nobody of its group is left."""
        return self._exit is not None

    def has_failed(self) -> bool:
        """Tell whether it has ended, and is known not to have ended well."""
        exit = self._exit
        return exit is not None and exit.code != 0 and exit.cause != UNCOLLECTED

    def hang_up(self) -> None:
        """Close the worker's lifeline."""
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)

    def terminate(self) -> None:
        """Send SIGTERM to the process group."""
        # The template reaps the leader: nobody else knows how long its pid names
        # the group.
        if self._exit is None and not self._terminate_group(self.pid):
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process; the template ends what is left of its group."""
        self._signal(signal.SIGKILL)

    def dump(self) -> None:
        """Have the process write its stacks into its log, if it knows how to."""
        # Should its pid be another process's by now, its handle reaches nobody.
        if catches(self.pid, DUMP):
            self._signal(DUMP)

    def _signal(self, number: signal.Signals) -> None:
        if not self._is_freed:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def sweep(self) -> bool:
        """Leave it to the template, which does that before it tells of an end."""
        return True

    def reap(self) -> Exit:
        """Return how the process ended, and free everything."""
        if self._exit is None:
            raise AssertionError("a process that has not ended cannot be reaped")
        self.abandon()
        return self._exit

    def abandon(self) -> None:
        """Close what is open for the process."""
        self._on_end = None
        if not self._is_freed:
            self._is_freed = True
            self.hang_up()
            os.close(self.pidfd)
