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
from nestling.driver.marks_io import end_marked

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
        mark: str,
        reason: str | None = None,
    ) -> None:
        self.pid = process.pid
        self.reason = reason
        self._process = process
        self._lifeline = lifeline
        self._mark = mark
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

    def _waited(self) -> os.waitid_result | None:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags)

    # --- ending it -------------------------------------------------------------

    def kill(self) -> None:
        """Send SIGKILL to the process group."""
        # The leader is not reaped before `reap`, so its pid still names this group.
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return  # everybody in it has ended; some systems refuse to signal them

    def reap(self) -> Exit:
        """Collect the exit of the process, after ending what is left of its group."""
        self.kill()
        exit = self._collected()
        if exit.code != 0:
            # One that ends well has ended its own children.
            end_marked(self._mark)
        self.abandon()
        return exit

    def _collected(self) -> Exit:
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            self._process.returncode = 0  # what `subprocess` says then
            return Exit(None, None, cause=UNCOLLECTED)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return exit_of(status, _usage(usage))

    def abandon(self) -> None:
        """Close what is open for the process."""
        self._unwatch()
        os.close(self._lifeline)
        if self._pidfd is not None:
            os.close(self._pidfd)


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
