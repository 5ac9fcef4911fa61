"""Whose run directory one is, and the removal of those whose owners are gone.

A run directory holds a file that names its owner: the pid, when that process started,
and the mark that all it starts bears. The owner keeps the file locked. It is gone if
nobody holds the lock and that process is not there any more: both, since a pid means
nothing in another container, and a lock may be lost. A directory without such a file is
never touched, whatever it is called.

Whoever makes a run directory first removes those of owners that are gone, and ends what
bears their marks. Two who do so at the same time take turns by the same lock.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from nestling.driver.processes_io import process_of
from nestling.driver.removal_io import remove_folder
from nestling.driver.traces_io import Trace, end_bearers, owner_mark

PREFIX: Final = "nestling-"
"""What the names of run directories begin with."""
OWNER: Final = "owner"
"""The file that names the owner."""
LOGS: Final = "logs"
"""The folder that workers print into."""
SECONDS: Final = 1.0
"""So long a sweep takes at most, or little more; what is left is left to the next."""
_GONE: Final = 0.5
"""So long what was ended has to be gone."""
_LOOK: Final = 0.005
_CAP: Final = 4096


class Owner(msgspec.Struct, frozen=True):
    """A process that has run directories.

    Attributes:
        pid: its number.
        start: when it started, in ticks since the boot; None where nobody knows.
        mark: what the marks of its workers begin with.
    """

    pid: int
    start: int | None
    mark: str

    def is_there(self) -> bool:
        """Tell whether the process is there, and alive."""
        process = process_of(self.pid)
        if process is None or not process.is_alive:
            return False
        return self.start is None or process.start == self.start


class Left(NamedTuple):
    """A run directory of an owner that is gone.

    Attributes:
        path: the directory.
        owner: who that was.
        lock: the open owner file, locked.
    """

    path: Path
    owner: Owner
    lock: int


def claim(path: Path) -> int:
    """Make this process the owner of a directory.

    Returns:
        The descriptor that holds the lock.

    Raises:
        OSError: if that cannot be written or locked.
    """
    process = process_of(os.getpid())
    start = None if process is None else process.start
    text = msgspec.json.encode(Owner(os.getpid(), start, owner_mark()))
    # It is there under its name only when it is complete and locked.
    new = path / f"{OWNER}.new"
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, text)
        new.rename(path / OWNER)
    except BaseException:
        os.close(fd)
        raise
    return fd


def owner_of(path: Path) -> Owner | None:
    """Return the owner of a directory; None if it names none, or is not this user's."""
    found = _opened(path)
    if found is None:
        return None
    owner, fd = found
    os.close(fd)
    return owner


def _opened(path: Path) -> tuple[Owner, int] | None:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # Everybody may make directories where run directories are.
        folder = path.lstat()
        if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.getuid():
            return None
        fd = os.open(path / OWNER, flags)
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.read(fd, _CAP), type=Owner), fd
    except (OSError, ValueError):
        os.close(fd)
        return None


def abandoned(bases: Iterable[str]) -> Iterator[Left]:
    """Find the run directories of owners that are gone.

    Nobody else finds one as long as its lock is not closed, which is the caller's.
    """
    for base in dict.fromkeys(map(os.path.realpath, bases)):
        try:
            names = sorted(n for n in os.listdir(base) if n.startswith(PREFIX))
        except OSError:
            continue
        for name in names:
            left = _abandoned(Path(base, name))
            if left is not None:
                yield left


def _abandoned(path: Path) -> Left | None:
    found = _opened(path)
    if found is None:
        return None
    owner, fd = found
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been removed by another one just before.
        if os.fstat(fd).st_nlink and not owner.is_there():
            return Left(path, owner, fd)
    except OSError:
        pass  # its owner holds it, or somebody who removes it
    os.close(fd)
    return None


def sweep(bases: Iterable[str], seconds: float = SECONDS) -> list[Path]:
    """Remove the run directories of owners that are gone, and end their processes.

    Args:
        bases: where run directories are made.
        seconds: so long.

    Returns:
        What was removed.
    """
    removed = []
    deadline = time.monotonic() + seconds
    for left in abandoned(bases):
        try:
            if time.monotonic() > deadline:
                break
            _end_workers(left, min(deadline, time.monotonic() + _GONE))
            remove(left.path)
            removed.append(left.path)
        except OSError:
            continue  # a start does not fail for what somebody else has left
        finally:
            os.close(left.lock)
    return removed


def _end_workers(left: Left, deadline: float) -> None:
    trace = Trace(left.owner.mark, (f"{left.path / LOGS}/",))
    while end_bearers(trace) and time.monotonic() < deadline:
        time.sleep(_LOOK)


def remove(path: Path) -> None:
    """Remove a directory; its owner file last, so that what is left is found again.

    Raises:
        OSError: if something of it is left.
    """
    path.chmod(0o700)
    for entry in list(path.iterdir()):
        if entry.name == OWNER:
            continue
        if entry.is_dir() and not entry.is_symlink():
            remove_folder(entry)
        else:
            entry.unlink()
    with suppress(FileNotFoundError):
        (path / OWNER).unlink()
    path.rmdir()
