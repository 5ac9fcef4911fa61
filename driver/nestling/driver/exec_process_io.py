"""A worker that runs as a child of the driver: how it ends, and how that is noticed."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from typing import Final

from nestling.driver.exits import UNCOLLECTED, Exit, Usage
from nestling.driver.processes_io import (
    Process,
    catches,
    descendants,
    end,
    is_same,
    processes,
)
from nestling.driver.traces_io import Trace, bearers

DUMP: Final = signal.SIGUSR1
"""Has a worker write the stacks of its threads into its log, once it has said hello."""
POLL: Final = 0.05
"""Seconds between looks at a process that cannot be waited for otherwise."""


class ExecProcess:
    """A worker that was started as a fresh interpreter.

    Attributes:
        pid: the process.
        launcher: what started it.
        reason: why that and no other launcher, if another one was wanted.
    """

    launcher = "exec"

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        lifeline: int,
        trace: Trace,
        reason: str | None = None,
    ) -> None:
        self.pid = process.pid
        self.reason = reason
        self._process = process
        self._lifeline = lifeline
        self._trace = trace
        self._below: set[Process] = set()
        self._left: set[Process] = set()
        self._swept: set[Process] = set()
        self._is_swept = self._is_reaped = False
        self._pidfd = _pidfd(process.pid)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    # --- noticing the end ------------------------------------------------------

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call `on_end` once, now or on the running loop, when the process has ended."""
        self._loop = asyncio.get_running_loop()
        if self._pidfd is None:
            self._poll(on_end)
        else:
            self._loop.add_reader(self._pidfd, self._noticed, on_end)

    def _noticed(self, on_end: Callable[[], None]) -> None:
        self._unwatch()
        on_end()

    def _poll(self, on_end: Callable[[], None]) -> None:
        if self.has_ended():
            self._noticed(on_end)
        elif self._loop is not None:
            self._timer = self._loop.call_later(POLL, self._poll, on_end)

    def _unwatch(self) -> None:
        if self._loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
        self._loop = None

    def fileno(self) -> int | None:
        """Return the process's pidfd, where the system has them."""
        return self._pidfd

    def has_ended(self) -> bool:
        """Tell whether the process has ended, without reaping it."""
        try:
            return self._waited() is not None
        except ChildProcessError:
            return True  # somebody else in this process has reaped it

    def has_failed(self) -> bool:
        """Tell whether it has ended, and is known not to have ended well."""
        try:
            waited = self._waited()
        except ChildProcessError:
            return False
        if waited is None:
            return False
        return (waited.si_code, waited.si_status) != (os.CLD_EXITED, 0)

    def _has_ended_well(self) -> bool:
        try:
            return self._waited() is not None and not self.has_failed()
        except ChildProcessError:
            return False

    def _waited(self) -> os.waitid_result | None:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags)

    # --- ending it -------------------------------------------------------------

    def hang_up(self) -> None:
        """Close the worker's lifeline."""
        self._remember()
        self._close_lifeline()

    def terminate(self) -> None:
        """Send SIGTERM to the process group."""
        self._remember()
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the process group, and to all that is below the process."""
        self._remember()
        self._signal_group(signal.SIGKILL)
        for process in self._below:
            end(process)

    def dump(self) -> None:
        """Have the process write its stacks into its log, if it knows how to."""
        if not self._is_collected() and catches(self.pid, DUMP):
            os.kill(self.pid, DUMP)

    def _remember(self) -> None:
        """Take note of what is below it, as long as that can be told."""
        if not self._is_collected():
            self._below.update(descendants(self.pid))

    def _signal_group(self, number: signal.Signals) -> None:
        # The leader is not reaped before `reap`, so its pid still names this group.
        if self._is_collected():
            return
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # everybody in it has ended; some systems refuse to signal them

    def _is_collected(self) -> bool:
        """Tell whether it was reaped, so that its pid may be another process's."""
        if not self._is_reaped:
            try:
                self._waited()
            except ChildProcessError:  # somebody else in this process did it
                self._is_reaped = True
        return self._is_reaped

    def sweep(self) -> bool:
        """End what a process has left that has ended; tell whether nothing is left."""
        self._left = self._found()
        self._swept.update(self._left)
        for process in self._left:
            end(process)
        self._is_swept = not self._left
        return self._is_swept

    def _found(self) -> set[Process]:
        found = [*bearers(self._trace), *filter(is_same, self._below)]
        if not self._is_collected():
            found += [p for p in processes() if p.group == self.pid and p.is_alive]
        return {p for p in found if p.pid != self.pid}

    def reap(self) -> Exit:
        """Collect the exit of the process, after ending what is left of its group."""
        self._signal_group(signal.SIGKILL)
        if not self._is_swept and not self._has_ended_well():
            # One that ends well has ended its own children.
            self.sweep()
        exit = self._collected()
        self.abandon()
        left = tuple(sorted(map(str, filter(is_same, self._left))))
        return exit._replace(swept=len(self._swept), unkillable=left)

    def _collected(self) -> Exit:
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            self._is_reaped = True
            self._process.returncode = 0  # what `subprocess` says then
            return Exit(None, None, cause=UNCOLLECTED)
        self._is_reaped = True
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return exit_of(status, _usage(usage))

    def abandon(self) -> None:
        """Close what is open for the process."""
        self._unwatch()
        self._close_lifeline()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _close_lifeline(self) -> None:
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)


def exit_of(status: int | None, usage: Usage) -> Exit:
    """Return the exit that a wait status stands for, or the lack of one."""
    if status is None:
        return Exit(None, None, cause=UNCOLLECTED)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return Exit(code, None, usage=usage)
    return Exit(None, _signal_name(-code), usage=usage)


def _usage(usage: resource.struct_rusage) -> Usage:
    user, system = int(usage.ru_utime * 1000), int(usage.ru_stime * 1000)
    return Usage(user, system, usage.ru_maxrss)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _pidfd(pid: int) -> int | None:
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        fd: int = opener(pid)
    except OSError:  # an old kernel, a sandbox, no descriptor left
        return None
    return fd
