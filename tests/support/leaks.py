"""What a test must not leave behind, and the check that it did not.

A test run has a box, a directory of its own that ``TMPDIR`` names. Workers inherit
that variable, whoever starts them, so a process is ours if it descends from this one
or if its environment names the box; a run directory is ours if it is in the box.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

LINUX: Final = sys.platform == "linux"

_PROC: Final = Path("/proc")


class Process(NamedTuple):
    """A process, as the kernel tells of it."""

    pid: int
    parent: int
    state: str
    command: str


def new_box() -> Path:
    """Make a box; its path is short, as sockets are bound in it."""
    return Path(tempfile.mkdtemp(prefix="nb-")).resolve()


@contextmanager
def no_leaks(box: Path) -> Iterator[None]:
    """Fail the test if the body left something; end and remove what it left."""
    strangers = _pids() if LINUX else set()
    descriptors = _descriptors()
    yield
    left = [*_processes_left(box, strangers), *_threads_left(), *_files_left(box)]
    left.extend(_descriptors_left(descriptors))
    if left:
        pytest.fail("the test left " + "; ".join(left), pytrace=False)


# --- processes -----------------------------------------------------------------


def processes_of(box: Path, strangers: AbstractSet[int] = frozenset()) -> list[Process]:
    """Return our processes, this one left out.

    Args:
        box: the box of the test run.
        strangers: processes that are known not to be ours.
    """
    found = [p for p in map(_process, sorted(_pids() - strangers)) if p is not None]
    ours = {os.getpid()}
    is_growing = True
    while is_growing:
        new = {p.pid for p in found if p.parent in ours} - ours
        ours |= new
        is_growing = bool(new)
    marker = f"TMPDIR={box}".encode()
    return [p for p in found if p.pid in ours or marker in _environment(p.pid)]


def _processes_left(box: Path, strangers: set[int]) -> Iterator[str]:
    if not LINUX:
        return
    for process in processes_of(box, strangers):
        if process.parent in strangers and is_spare(process.pid):
            continue  # the next one of a template that is not the test's
        zombie = "a zombie of " if process.state == "Z" else ""
        yield f"{zombie}process {process.pid} ({process.command})"
        end_process(process.pid)


def is_spare(pid: int) -> bool:
    """Tell whether a process is a spare of its template, or about to be called one."""
    try:
        name = (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return True  # it is gone
    return name in ("nestling:spare", "nestling:template"[:15])


def end_process(pid: int) -> None:
    """End a process, wait until it is gone, and reap it if it is a child of ours."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            # Whoever adopted it reaps it; it is gone for us once this is readable.
            select.select([pidfd], [], [], 5)
        finally:
            os.close(pidfd)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _pids() -> set[int]:
    return {int(name) for name in os.listdir(_PROC) if name.isdigit()}


def _process(pid: int) -> Process | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
        command = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None  # it has ended meanwhile
    name, _, rest = stat.rpartition(")")
    state, parent = rest.split()[:2]
    shown = command.replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return Process(pid, int(parent), state, shown or name.partition("(")[2])


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or is another user's


# --- files, threads, descriptors -----------------------------------------------


def _files_left(box: Path) -> Iterator[str]:
    for path in sorted(box.glob("nestling-*")):
        sockets = [str(p.relative_to(path)) for p in path.rglob("*") if p.is_socket()]
        yield f"run directory {path.name} (sockets: {sockets})"
        shutil.rmtree(path, ignore_errors=True)


def _threads_left() -> Iterator[str]:
    for thread in threading.enumerate():
        if thread.name.startswith("nestling-"):
            yield f"thread {thread.name}"


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
