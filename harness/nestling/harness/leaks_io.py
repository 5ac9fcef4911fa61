"""A check that nothing of Nestling is left: for users' tests, and for our own.

As a pytest fixture::

    @pytest.fixture(autouse=True)
    def leaves_nothing():
        with no_leaks():
            yield

What is looked for: processes that a driver in this process or below it has started, run
directories with their sockets, and threads of a driver. What is found is ended and
removed, so that one test does not fail for another. Processes are found on Linux only.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from nestling.driver.guardian_io import is_guardian
from nestling.driver.owners_io import PREFIX, owner_of, remove
from nestling.driver.processes_io import Process, process_of, processes
from nestling.driver.run_directory_io import bases
from nestling.driver.template_pool_io import TemplatePool, held_pools
from nestling.driver.traces_io import mark_of, owner_pid

SPARE_NAMES: Final = ("nestling:spare", "nestling:template"[:15])
"""What a spare of a template is called, and for a moment before."""

_LAST: Final = 2.0
"""Seconds that what is about to end has for it."""


class LeakError(AssertionError):
    """Something of Nestling was left."""


@contextmanager
def no_leaks() -> Iterator[None]:
    """Fail if the body leaves a process, a run directory or a thread of Nestling.

    A template that was kept warm before the body began, by a launcher that is used as a
    context manager, is not the body's, and neither is what is to be its next worker.

    Raises:
        LeakError: naming all that was left; it is ended and removed by then.
    """
    before, directories = all_processes(), set(run_directories())
    kept = held_pools()
    yield
    left = [
        process
        for process in all_processes() - before
        if _is_ours(process) and not _is_warm(process, kept)
    ]
    found = [*ended(left), *threads_left()]
    found += removed(path for path in run_directories() if path not in directories)
    if found:
        raise LeakError("left: " + "; ".join(found))


# --- processes -----------------------------------------------------------------


def all_processes() -> AbstractSet[Process]:
    """Return the processes that there are."""
    return frozenset(processes())


def _is_ours(process: Process) -> bool:
    """Tell whether a driver in this process, or below it, has started one."""
    mark = mark_of(process.pid)
    if mark is None:
        return is_guardian(process.pid) and process.parent == os.getpid()
    pid = owner_pid(mark)
    if pid is None:
        return False
    owner = process_of(pid)
    # Its driver may be one that was started by the test, and is gone.
    return owner is None or not owner.is_alive or is_below(owner)


def _is_warm(process: Process, kept: list[TemplatePool]) -> bool:
    """Tell whether one is the template, or the spare, of a pool that is still held."""
    held = [pool for pool in held_pools() if any(pool is each for each in kept)]
    templates = {pool.pid() for pool in held}
    is_spare = process.name in SPARE_NAMES and process.parent in templates
    return process.pid in templates or is_spare


def is_below(process: Process | None) -> bool:
    """Tell whether a process is this one or descends from it."""
    while process is not None and process.pid != os.getpid():
        process = process_of(process.parent)
    return process is not None


def ended(left: list[Process]) -> Iterator[str]:
    """End processes, wait until they are gone, and name them.

    Args:
        left: which; guardians may end by themselves.
    """
    for process in sorted(left):
        if is_guardian(process.pid) and _has_ended(process.pid, _LAST):
            continue
        if process_of(process.pid) is None:
            continue
        zombie = "" if process.is_alive else "a zombie of "
        yield f"{zombie}process {process.pid} ({shown(process)})"
        end_process(process.pid)


def shown(process: Process) -> str:
    """Return the command of a process, or its name."""
    try:
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return process.name
    return command.replace(b"\0", b" ").decode("utf-8", "replace").strip() or (
        process.name
    )


def end_process(pid: int) -> None:
    """End a process, wait until it is gone, and reap it if it is a child of ours."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            # Whoever adopted it reaps it; it is gone for us once this is readable.
            select.select([pidfd], [], [], _LAST)
        finally:
            os.close(pidfd)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _has_ended(pid: int, seconds: float) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


# --- files and threads -----------------------------------------------------------


def run_directories() -> Iterator[Path]:
    """Find the run directories that there are, of drivers here, below, or gone."""
    for base in sorted({Path(base).resolve() for base in bases()}):
        for path in sorted(base.glob(f"{PREFIX}*")):
            owner = owner_of(path)
            if owner is None:
                continue  # it is called like one, and is none
            if not owner.is_there() or is_below(process_of(owner.pid)):
                yield path


def removed(paths: Iterable[Path]) -> Iterator[str]:
    """Remove run directories, and name them."""
    for path in paths:
        sockets = [each.name for each in path.iterdir() if each.is_socket()]
        yield f"run directory {path.name} (sockets: {sockets})"
        with suppress(OSError):
            remove(path)


def threads_left() -> Iterator[str]:
    """Name the threads of drivers that run."""
    for thread in threading.enumerate():
        if thread.name.startswith("nestling-"):
            yield f"thread {thread.name}"
