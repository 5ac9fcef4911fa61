"""Descriptors: whether there are enough, before libzmq finds out.

libzmq ends the whole process when it runs out of them, whoever else lives in it. So a
run, and each launch, first makes sure that some are left, beside those that launches
before it are still going to take.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from typing import Final

from nestling.session.errors import LaunchError

DESCRIPTORS: Final = 32
"""So many must be free for a run to start: its own dozen, and those of a worker."""
RESERVE: Final = 16
"""So many must be left beside those of workers: for the store's files, a template, and
what is open for a moment only."""
STARTING: Final = 4
"""So many does a worker take that is being started: a pipe, a pidfd, a connection."""
CONNECTING: Final = 1
"""So many does one take that runs and has not been heard of."""


def require_descriptors(count: int) -> None:
    """Check that so many descriptors are free now, without taking one.

    Taking them all for a moment would be enough for another thread to find none.

    Raises:
        LaunchError: naming how many are.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # -1 for none
    fd = free = 0
    while free < count:
        if fd == limit:
            raise LaunchError(
                f"found {free} free descriptors, expected {count}: "
                f"{os.strerror(errno.EMFILE)}"
            )
        free += not _is_open(fd)
        fd += 1


def _is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True
