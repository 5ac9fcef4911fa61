"""What a test must not leave behind, and the check that it did not.

It is the check that users have (``nestling.harness.no_leaks``), and a stricter one: a
test run has a box, a directory of its own that ``TMPDIR`` names. Workers inherit that
variable, whoever starts them, so a process is ours if it descends from this one or if
its environment names the box; a run directory is ours if it is in the box.
"""

from __future__ import annotations

import gc
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from nestling.driver.processes_io import Process, pids, process_of
from nestling.harness.leaks_io import (
    SPARE_NAMES,
    ended,
    is_below,
    removed,
    threads_left,
)

BOUND: Final = 2.0
"""Seconds within which nothing of a driver that was killed is left."""

LINUX: Final = sys.platform == "linux"


def new_box() -> Path:
    """Make a box; its path is short, as sockets are bound in it."""
    return Path(tempfile.mkdtemp(prefix="nb-")).resolve()


@contextmanager
def no_leaks(box: Path) -> Iterator[None]:
    """Fail the test if the body left something; end and remove what it left."""
    strangers = frozenset(_pids())
    descriptors = _descriptors()
    yield
    left = [*_processes_left(box, strangers), *threads_left()]
    left.extend(removed(sorted(box.glob("nestling-*"))))
    left.extend(_descriptors_left(descriptors))
    if left:
        pytest.fail("the test left " + "; ".join(left), pytrace=False)


# --- processes -----------------------------------------------------------------


def processes_of(box: Path, strangers: AbstractSet[int] = frozenset()) -> list[Process]:
    """Return our processes, this one left out.

    Args:
        box: the box of the test run.
        strangers: the numbers of processes that are known not to be ours. Looking each
            of them up would cost more than most tests; none is given away again before
            all others have been.
    """
    others = (process_of(pid) for pid in _pids() if pid not in strangers)
    found = {process for process in others if process is not None}
    ours = {os.getpid()}
    is_growing = True
    while is_growing:
        new = {p.pid for p in found if p.parent in ours} - ours
        ours |= new
        is_growing = bool(new)
    marker = f"TMPDIR={box}".encode()
    return [
        p
        for p in sorted(found)
        if p.pid != os.getpid() and (p.pid in ours or marker in _environment(p.pid))
    ]


def _processes_left(box: Path, strangers: AbstractSet[int]) -> Iterator[str]:
    yield from ended(
        [
            process
            for process in processes_of(box, strangers)
            # It may be the next spare of a template that is not the test's.
            if not (process.parent in strangers and is_spare(process.pid))
            # What a driver that was killed has left ends by itself, within its bound.
            and (is_below(process) or not _ends(process.pid))
        ]
    )


def _pids() -> list[int]:
    return pids() if LINUX else []


def _ends(pid: int) -> bool:
    """Wait for a process's end; tell whether it came in time."""
    try:
        fd = os.pidfd_open(pid)
    except (AttributeError, OSError):
        return not Path(f"/proc/{pid}").exists()
    try:
        return bool(select.select([fd], [], [], BOUND)[0])
    finally:
        os.close(fd)


def is_spare(pid: int) -> bool:
    """Tell whether a process is a spare of its template, or about to be called one."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return True  # it is gone
    return name in SPARE_NAMES


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or is another user's


# --- descriptors ---------------------------------------------------------------


def _descriptors() -> dict[int, str]:
    if not LINUX:
        return {}
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that listed them
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _descriptors_left(before: dict[int, str]) -> Iterator[str]:
    left = _descriptors().items() - before.items()
    if left:
        gc.collect()
        left = _descriptors().items() - before.items()
    for fd, target in sorted(left):
        yield f"descriptor {fd} ({target})"


def reap_quietly(process: subprocess.Popen[bytes]) -> None:
    """End a process that a test started and free what it holds."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
