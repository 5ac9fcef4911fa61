"""Processes as the kernel tells of them: who they are, what is below them.

A pid alone names nobody: it may have been given to another process meanwhile. A pid
and the time when its process started do, until the next boot. Linux only; elsewhere
nothing is found.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

IS_LINUX: Final = sys.platform == "linux"


class Process(NamedTuple):
    """A process.

    Attributes:
        pid: its number.
        start: when it started, in ticks since the boot.
        parent: the number of its parent.
        group: the number of its process group.
        session: the number of its session.
        is_alive: whether it is no zombie.
        name: what it is called.
    """

    pid: int
    start: int
    parent: int
    group: int
    session: int
    is_alive: bool
    name: str

    # Everything else about it may change.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Process) and self[:2] == other[:2]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:2])

    def __str__(self) -> str:
        return f"process {self.pid} ({self.name})"


def pids() -> list[int]:
    """Return the number of every process there is, zombies included."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def processes() -> Iterator[Process]:
    """Find every process there is, zombies included."""
    for process in map(process_of, pids() if IS_LINUX else ()):
        if process is not None:
            yield process


def process_of(pid: int) -> Process | None:
    """Look a process up; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The name may hold anything, parentheses too.
    head, _, tail = stat.rpartition(b")")
    fields = tail.split()
    name = head.partition(b"(")[2].decode("utf-8", "backslashreplace")
    parent, group, session, start = (int(fields[i]) for i in (1, 2, 3, 19))
    return Process(pid, start, parent, group, session, fields[0] not in b"ZX", name)


def is_same(process: Process) -> bool:
    """Tell whether a process is still there, and alive."""
    now = process_of(process.pid)
    return now is not None and now.is_alive and now.start == process.start


def end(process: Process) -> None:
    """Send SIGKILL to a process, and to no other one that has its number now."""
    with suppress(OSError):  # it has ended, or is another user's
        pidfd = os.pidfd_open(process.pid)
        try:
            if is_same(process):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def descendants(pid: int) -> list[Process]:
    """Find what is below a process, as long as that one lives."""
    found: list[Process] = []
    parents = [pid]
    while parents:
        parent = parents.pop()
        for child in map(process_of, _children(parent)):
            # A number that was given away meanwhile has another parent now.
            if child is not None and child.parent == parent:
                found.append(child)
                parents.append(child.pid)
    return found


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    with suppress(OSError):  # it has ended, or the kernel has no such file
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                found.update(map(int, file.read().split()))
    return found


def catches(pid: int, number: signal.Signals) -> bool:
    """Tell whether a process has a handler for a signal, and so outlives it."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/status") as file:
        mask = int(file.read().partition("SigCgt:")[2].split()[0], 16)
        return bool(mask & 1 << number - 1)
    return False
