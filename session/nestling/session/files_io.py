"""Files and directories that must survive a crash: small steps that stores share."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, NamedTuple

from nestling.session.errors import StoreError

_RACES: Final = 8
"""So often a directory may vanish while another one is made in it."""


class Stamp(NamedTuple):
    """A file's identity and state, as the system tells them."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def revision(self) -> str:
        """An opaque token that changes whenever the file does."""
        return ":".join(map(str, self))


def stamp_of(found: os.stat_result) -> Stamp:
    """Return the stamp of a file that was asked about."""
    return Stamp(
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )


def cause(error: OSError) -> str:
    """Return what an error of the system is called, without its number and path."""
    return error.strerror or str(error)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`: the system may take less than it is given."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(path: str) -> None:
    """Make the names in a directory durable; not every platform can open one."""
    if os.name != "posix":
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: str, root: str) -> None:
    """Make a directory, private to its owner, and all that is missing above it.

    Each one's name is durable on return; from `root` down also where another process
    made it, because that may have died before it was.

    Raises:
        StoreError: naming the directory that cannot be made.
    """
    missing = []
    step = path
    while step not in (root, os.path.dirname(step)):
        missing.append(step)
        step = os.path.dirname(step)
    # Above and at the root, only what is missing is looked at: a directory that one
    # may enter is not always one that may be read.
    while step != os.path.dirname(step) and not os.path.lexists(step):
        missing.append(step)
        step = os.path.dirname(step)
    for _ in range(_RACES):
        try:
            for step in reversed(missing):
                _make_directory(step)
        except FileNotFoundError as error:
            vanished = error
        except OSError as error:
            problem = f"{step}: cannot make this directory: {cause(error)}"
            raise StoreError(problem) from None
        else:
            return
    problem = f"{step}: cannot make this directory: {cause(vanished)}"
    raise StoreError(problem) from None


def _make_directory(path: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    sync_directory(os.path.dirname(path))
