"""Starting worker processes, and noticing how they end.

Launches happen only in the hub's thread: a worker asks the kernel to die with the
thread that started it, and the hub's lives as long as the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from nestling.driver.exits import Exit
from nestling.session.errors import LaunchError
from nestling.wire.launch import LaunchSpec, encode_launch

_ALLOWED: Final = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "SYSTEMROOT", "VIRTUAL_ENV")
_ALLOWED_PREFIX: Final = "LC_"


class LaunchRequest(NamedTuple):
    """What a launcher needs to know.

    Attributes:
        spec: what the worker is told, secrets included.
        log: the file that takes its stdout and stderr.
        directory: its working directory.
    """

    spec: LaunchSpec
    log: Path
    directory: Path


class WorkerProcess(Protocol):
    """A running worker, in a process group of its own."""

    pid: int

    def fileno(self) -> int | None:
        """Return a descriptor that becomes readable when the process ends, if any."""
        ...

    def has_ended(self) -> bool:
        """Tell whether the process has ended; it is not reaped yet."""
        ...

    def has_succeeded(self) -> bool:
        """Tell whether it has ended with exit code 0; it is not reaped yet."""
        ...

    def kill(self) -> None:
        """End the process and its whole group now."""
        ...

    def reap(self) -> Exit:
        """End what is left of the group, collect the exit, free everything."""
        ...

    def abandon(self) -> None:
        """Free everything, the lifeline included, of a process that cannot be ended."""
        ...


class Launcher(Protocol):
    """A way of starting workers."""

    name: str

    def start(self, request: LaunchRequest) -> WorkerProcess:
        """Start a worker.

        Raises:
            LaunchError: if it cannot be started; nothing is left behind.
        """
        ...


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a worker's environment holds of the driver's: no keys, no tokens.

    The module path is passed on, so that a worker finds what the driver finds, and
    the hash seed is fixed, so that the order of sets is the same in every run.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name in _ALLOWED or name.startswith(_ALLOWED_PREFIX)
    }
    paths = [os.path.abspath(path) for path in sys.path if path]
    kept["PYTHONPATH"] = os.pathsep.join(paths)
    kept["PYTHONHASHSEED"] = "0"
    return kept


class ExecLauncher:
    """Starts each worker as a fresh interpreter."""

    name = "exec"

    def __init__(self, entry: str = "nestling.worker") -> None:
        """Prepare to start workers.

        Args:
            entry: the module that a worker runs as its program.
        """
        self._entry = entry

    def start(self, request: LaunchRequest) -> WorkerProcess:
        """Start a worker (see ``Launcher``)."""
        spec = encode_launch(request.spec)
        try:
            # The worker reads its spec from the pipe and keeps it: the write end,
            # which only the driver has, is its lifeline.
            read_end, write_end = os.pipe()
        except OSError as error:
            raise LaunchError(f"cannot start a worker: {error}") from None
        try:
            os.write(write_end, spec)  # a pipe holds that much
            with request.log.open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", self._entry, str(read_end)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=request.directory,
                    env=worker_environment(os.environ),
                    pass_fds=(read_end,),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(write_end)
            raise LaunchError(f"cannot start a worker: {error}") from None
        finally:
            os.close(read_end)
        return ExecProcess(process, write_end)


class ExecProcess:
    """A worker that was started as a fresh interpreter."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int) -> None:
        self.pid = process.pid
        self._process = process
        self._lifeline = lifeline
        self._pidfd = _pidfd(process.pid)

    def fileno(self) -> int | None:
        """Return the process's pidfd, where the system has them."""
        return self._pidfd

    def has_ended(self) -> bool:
        """Tell whether the process has ended, without reaping it."""
        try:
            return self._waited() is not None
        except ChildProcessError:
            return True  # somebody else in this process has reaped it

    def has_succeeded(self) -> bool:
        """Tell whether it has ended with exit code 0, without reaping it."""
        try:
            waited = self._waited()
        except ChildProcessError:
            return False
        if waited is None:
            return False
        return (waited.si_code, waited.si_status) == (os.CLD_EXITED, 0)

    def _waited(self) -> os.waitid_result | None:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags)

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
        code = self._process.wait()
        self.abandon()
        if code >= 0:
            return Exit(code, None)
        return Exit(None, _signal_name(-code))

    def abandon(self) -> None:
        """Close what is open for the process."""
        os.close(self._lifeline)
        if self._pidfd is not None:
            os.close(self._pidfd)


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
