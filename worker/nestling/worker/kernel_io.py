"""What a worker and its template ask of the kernel that Python has no call for.

Linux only, all of it; elsewhere these do nothing and find nothing.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

IS_LINUX: Final = sys.platform == "linux"

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_LOOK: Final = 0.01
_TASKS: Final = Path("/proc/self/task")

_libc: Final = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Ask for SIGKILL when the thread that started this process ends.

    Who calls this checks its parent afterwards: it may have ended before.
    """
    if IS_LINUX:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of those descendants whose own parents end."""
    if IS_LINUX:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def call_myself(name: str) -> None:
    """Take a name that lists of processes show; 15 bytes of it count."""
    if IS_LINUX:
        _libc.prctl(_PR_SET_NAME, name.encode("ascii", "replace"), 0, 0, 0)


def hear_of_children() -> None:
    """Let the exits of children be collected, here and in what is forked from here.

    Who starts a program may have it ignore SIGCHLD. The kernel reaps its children
    then, and nobody learns how they ended.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def flush_c_streams() -> None:
    """Write out what C code printed, so that no fork prints it once more."""
    _libc.fflush(None)


def thread_count() -> int:
    """Return how many threads this process has, those that C code started included."""
    return len(os.listdir(_TASKS)) if IS_LINUX else 1


def children() -> set[int]:
    """Return the pids of this process's children, zombies included.

    One that ends meanwhile may hide another: who must have all of them asks again.
    """
    found: set[int] = set()
    for task in _TASKS.iterdir() if IS_LINUX else ():
        with suppress(OSError):  # the thread has ended, or the kernel has no such file
            found.update(map(int, (task / "children").read_text().split()))
    return found


def has_children() -> bool:
    """Tell whether this process has a child, be it a zombie."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    try:
        os.waitid(os.P_ALL, 0, flags)
    except ChildProcessError:
        return False
    return True


def is_alive(pid: int) -> bool:
    """Tell whether a child of this process is no zombie."""
    return _stat(pid)[1][:1] not in (b"Z", b"X", b"")


def described(pid: int) -> str:
    """Return a child of this process as people see it."""
    name = _stat(pid)[0].decode("utf-8", "backslashreplace")
    return f"process {pid} ({name})"


def _stat(pid: int) -> tuple[bytes, bytes]:
    """Return the name of a process, and what the kernel tells of it after that."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        head, _, tail = file.read().rpartition(b")")
        return head.partition(b"(")[2], tail.strip()
    return b"", b""


def end_children(seconds: float = 2.0) -> None:
    """End every child, and what it leaves to this process, and wait for it.

    Args:
        seconds: so long; one that the kernel does not let go of is left.
    """
    deadline = time.monotonic() + seconds
    while (found := children()) and (left := deadline - time.monotonic()) > 0:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait_for_one(found, left)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue


def _wait_for_one(pids: set[int], seconds: float) -> None:
    """Wait until one of these children has ended, but not for ever."""
    poll, pidfds = select.poll(), []
    try:
        for pid in pids:
            pidfds.append(os.pidfd_open(pid))
            poll.register(pidfds[-1], select.POLLIN)
    except OSError:  # an old kernel, or no descriptor left: look again soon
        seconds = min(seconds, _LOOK)
    try:
        poll.poll(seconds * 1000)
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
