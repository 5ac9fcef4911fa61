"""The lock of a scenario's folder, across processes: many readers, or one writer."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(folder: Path, *, shared: bool = False) -> Iterator[int]:
    """Hold a folder, waiting for a writer, or for everybody, to finish.

    Args:
        folder: it must be there.
        shared: hold it with others who read it.

    Yields:
        A descriptor of the folder.

    Raises:
        OSError: if it cannot be opened or held.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)
