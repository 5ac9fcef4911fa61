"""Finding what a worker left behind, by the traces of the driver that it bears.

A process that was put into a session of its own is in no group of ours any more, and
once its parents have ended nothing else tells where it came from. Three things do: a
mark, in a limit that the kernel keeps and does not heed; the same mark in the
environment that it was started with, for where limits cannot be set; and the log of a
worker, which takes what it prints. A process that has lowered that limit, was given
another environment and prints elsewhere is not found (Linux only, all of it).
"""

from __future__ import annotations

import itertools
import os
import resource
import secrets
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

from nestling.driver.marks import NUMBERS, Mark, bears, chances, mark_of_limit
from nestling.driver.processes_io import IS_LINUX, Process, end, pids, process_of

MARK: Final = "NESTLING_MARK"
"""The variable that holds the mark; no secret."""
_ENTRY: Final = f"{MARK}=".encode()
_STREAMS: Final = (1, 2)
_LOCKS: Final = 10
"""``RLIMIT_LOCKS``: Linux has not enforced it since version 2.4 (``getrlimit(2)``)."""
_numbers: Final = itertools.count()


class Trace(NamedTuple):
    """What the processes of a worker, a template or a driver have in common.

    Attributes:
        mark: the beginning of their marks.
        logs: the logs that they may print to: files, or folders that end in a slash.
    """

    mark: str
    logs: tuple[str, ...] = ()


def owner_mark() -> str:
    """Return what all marks of this process begin with."""
    # A fork of this process is somebody else.
    return str(_owner(os.getpid()))


@lru_cache(maxsize=1)
def _owner(pid: int) -> Mark:
    limit = _limit_of(pid)
    return Mark(pid, secrets.choice(chances(-1 if limit is None else limit)))


def new_mark() -> Mark:
    """Return a mark that no other process has; it begins with that of its owner."""
    number = next(_numbers) % (NUMBERS - 1) + 1
    return _owner(os.getpid())._replace(number=number)


def set_mark(pid: int, mark: Mark | None) -> None:
    """Give a process a mark as a limit, which all that it will start has, too.

    Where that is not possible, what it has in its environment must do.

    Args:
        pid: the process, which was just started.
        mark: its mark; None for one that is nobody's.
    """
    limit = 0 if mark is None else mark.limit
    if IS_LINUX:
        with suppress(OSError, ValueError):  # it has ended, or has a lower limit
            resource.prlimit(pid, _LOCKS, (limit, limit))


def _limit_of(pid: int) -> int | None:
    if not IS_LINUX:
        return None
    try:
        return resource.prlimit(pid, _LOCKS)[1]
    except OSError:
        return None  # it has ended, or is another user's


def owner_pid(mark: str) -> int | None:
    """Return the number of the process that a mark is of, if it is one of ours."""
    number = mark.partition("-")[0]
    return int(number) if number.isdecimal() else None


def bearers(trace: Trace) -> Iterator[Process]:
    """Find the living processes that bear a trace."""
    for pid in pids() if IS_LINUX else ():
        if not _bears(pid, trace):
            continue
        process = process_of(pid)
        # The number may have been given away between the first look and that one.
        if process is not None and process.is_alive and _bears(pid, trace):
            yield process


def end_bearers(trace: Trace) -> list[Process]:
    """Send SIGKILL to what bears a trace; return what there was.

    A process dies a moment later, and may have started another one before: who wants
    nothing to be left calls this until it finds nothing.
    """
    found = list(bearers(trace))
    for process in found:
        end(process)
    return found


def mark_of(pid: int) -> str | None:
    """Return the mark of a process, or None."""
    return next(_marks_of(pid), None)


def _marks_of(pid: int) -> Iterator[str]:
    limit = _limit_of(pid)
    mark = None if limit is None else mark_of_limit(limit)
    if mark is not None:
        yield str(mark)
    # One that could be given no limit of its own has that of whatever is above it.
    told = _told_mark_of(pid)
    if told is not None:
        yield told


def _told_mark_of(pid: int) -> str | None:
    if not IS_LINUX:
        return None
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None  # it has ended, or is another user's
    for entry in entries:
        if entry.startswith(_ENTRY):
            return entry.removeprefix(_ENTRY).decode("utf-8", "backslashreplace")
    return None


def _bears(pid: int, trace: Trace) -> bool:
    has_mark = False
    for mark in _marks_of(pid):
        if bears(mark, trace.mark):
            return True
        has_mark = True
    # One that bears a mark is of that driver, wherever it prints.
    return not has_mark and any(_prints_to(pid, s, trace.logs) for s in _STREAMS)


def _prints_to(pid: int, stream: int, logs: tuple[str, ...]) -> bool:
    try:
        file = os.readlink(f"/proc/{pid}/fd/{stream}").removesuffix(" (deleted)")
    except OSError:
        return False
    return any(
        file.startswith(log) if log.endswith("/") else file == log for log in logs
    )
