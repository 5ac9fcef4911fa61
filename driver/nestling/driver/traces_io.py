"""Finding what a worker left behind, by the traces of the driver that it bears.

A process that was put into a session of its own is in no group of ours any more, and
once its parents have ended nothing else tells where it came from. Two things do: a mark
in the environment that it was started with, and the log of a worker, which takes what
it prints. A process that was given neither is not found (Linux only, all of it).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from nestling.driver.processes_io import IS_LINUX, Process, end, pids, process_of

MARK: Final = "NESTLING_MARK"
"""The variable that holds the mark; no secret."""
_ENTRY: Final = f"{MARK}=".encode()
_STREAMS: Final = (1, 2)


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
    return _owner_mark(os.getpid())


@lru_cache(maxsize=1)
def _owner_mark(pid: int) -> str:
    return f"{pid}-{secrets.token_hex(12)}"


def new_mark() -> str:
    """Return a mark that no other process has; it begins with that of its owner."""
    return f"{owner_mark()}.{secrets.token_hex(6)}"


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
    mark = mark_of(pid)
    if mark is not None:
        return f"{mark}.".startswith(f"{trace.mark}.")
    return any(_prints_to(pid, stream, trace.logs) for stream in _STREAMS)


def _prints_to(pid: int, stream: int, logs: tuple[str, ...]) -> bool:
    try:
        file = os.readlink(f"/proc/{pid}/fd/{stream}").removesuffix(" (deleted)")
    except OSError:
        return False
    return any(
        file.startswith(log) if log.endswith("/") else file == log for log in logs
    )
