"""The run directory: the socket, logs and working directories of one run.

Private (0700), fresh, and removed when the run ends, whichever way it does; if its
driver was killed, by the next one that makes a run directory here.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from nestling.driver.owners_io import LOGS, PREFIX, claim, remove, sweep
from nestling.session.errors import LaunchError
from nestling.wire.endpoint_io import PATH_CAP

_SOCKET: Final = "hub.sock"
_TAIL_BYTES: Final = 2000
_PRINTED_BYTES: Final = 64 * 1024
"""So much of what a worker printed is kept."""


class RunDirectory:
    """The files of one run.

    Attributes:
        path: the directory.
    """

    def __init__(self) -> None:
        """Create the directory.

        Raises:
            LaunchError: if there is no place for it whose path is short enough for a
                socket.
        """
        sweep(bases())
        self.path = new_directory()
        self._logs = self.path / LOGS
        self._work = self.path / "work"
        self._lock = -1
        try:
            self._lock = claim(self.path)
            for folder in (self._logs, self._work):
                folder.mkdir()
        except OSError as error:
            self.remove()
            raise LaunchError(f"{self.path}: cannot use it: {error.strerror}") from None

    @property
    def endpoint(self) -> str:
        """The hub's endpoint."""
        return f"ipc://{self.path / _SOCKET}"

    def log_of(self, launch: str) -> Path:
        """Return the file that takes what a worker prints."""
        return self._logs / f"{launch}.log"

    def work_of(self, launch: str) -> Path:
        """Create and return the working directory of a worker."""
        work = self._work / launch
        work.mkdir()
        return work

    def printed_by(self, launch: str) -> str:
        """Return what a worker printed, the end of it if that is much."""
        return _end_of(self.log_of(launch), _PRINTED_BYTES)

    def tail_of(self, launch: str) -> str:
        """Return the end of what a worker printed, on one line."""
        text = _end_of(self.log_of(launch), _TAIL_BYTES)
        return " | ".join(line.strip() for line in text.splitlines() if line.strip())

    def remove(self) -> None:
        """Remove the directory with everything in it.

        What cannot be removed is left to the next run, with the name of its owner.
        """
        with suppress(OSError):
            remove(self.path)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def bases() -> list[str]:
    """Return where run directories are made: in the first of these that will do."""
    places = (os.environ.get("XDG_RUNTIME_DIR"), _temporary(), "/tmp")
    return [place for place in places if place]


def new_directory() -> Path:
    """Make the directory, in the first place that will do.

    Raises:
        LaunchError: if there is none.
    """
    tried = []
    for base in bases():
        try:
            # mkdtemp makes it 0700, under a name nobody can foresee.
            made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base)).resolve()
        except OSError as error:
            tried.append(f"{base}: {error.strerror}")
            continue
        problem = _socket_problem(made / _SOCKET)
        if problem is None:
            return made
        made.rmdir()
        tried.append(f"{base}: {problem}")
    raise LaunchError(f"no place for a run directory ({'; '.join(tried)})")


def _end_of(log: Path, size: int) -> str:
    """Return so many bytes of the end of a log, as text; nothing if it is none.

    A tool may put something else in its place: a pipe that nobody writes to, which
    would hold up whoever opens it, or a link to what is not the worker's to show.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(log, "rb", opener=lambda path, _: os.open(path, flags)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return ""
            file.seek(max(0, found.st_size - size))
            return file.read(size).decode("utf-8", "backslashreplace")
    except OSError:
        return ""  # the worker never got as far as to have one


def _temporary() -> str | None:
    try:
        return tempfile.gettempdir()
    except OSError:  # it found none that can be written to
        return None


def _socket_problem(path: Path) -> str | None:
    """Say why there can be no socket at a path, or None."""
    encoded = os.fsencode(path)
    if len(encoded) > PATH_CAP:
        return "too long for a socket's path"
    # ZeroMQ takes the path as UTF-8, whatever the locale says.
    if encoded != str(path).encode("utf-8", "surrogatepass"):
        return "not UTF-8, as a socket's path must be"
    return None
