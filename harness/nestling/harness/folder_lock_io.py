"""The lock of a scenario's folder, across processes: many readers, or one writer."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nestling.harness.write_journal_io import is_interrupted, settle


@contextmanager
def held(folder: Path, *, shared: bool = False) -> Iterator[int]:
    """Hold a folder, waiting for a writer, or for everybody, to finish.

    What a writer that was killed has begun is undone before.

    Args:
        folder: it must be there.
        shared: hold it with others who read it.

    Yields:
        A descriptor of the folder.

    Raises:
        OSError: if it cannot be opened or held.
        UnreadableError: if a write was interrupted, and cannot be undone.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _hold(folder, fd, shared=shared)
        yield fd
    finally:
        os.close(fd)


def _hold(folder: Path, fd: int, *, shared: bool) -> None:
    while shared:
        fcntl.flock(fd, fcntl.LOCK_SH)
        if not is_interrupted(folder):
            return
        fcntl.flock(fd, fcntl.LOCK_EX)  # lets go of the other before it waits
        settle(folder, fd)
    fcntl.flock(fd, fcntl.LOCK_EX)
    settle(folder, fd)
