"""Leases: who may write a session. One file each, locked by the kernel.

The lock is what counts, and it ends with the process that holds it, however that ends.
The file only says who it is: one JSON line ``{"id", "pid", "started"}``, `started` in
epoch milliseconds (the name, a hash of the id, and the line are ours). It is removed
while it is still locked, and it may stay where a holder died.

On Linux these are locks of an open file description (``fcntl(2)``, ``F_OFD_SETLK``):
two ``Leases`` of one process exclude each other too, and one can ask without taking.
Elsewhere ``flock`` does the same, but asking takes a shared lock for a moment, in which
another process's ``take`` may fail.

A forked child inherits its parent's open files, but holds no lease: what it gives back
is only its own, and what its parent holds is refused to it. A lease ends when its holder
gives it back, or else when the last process that has the descriptor has closed it: where
the holder dies, that is when every such child has used or closed its own ``Leases``, has
ended, or has executed another program.

An interrupt may come at any step. What it leaves of a lease is told apart from one that
is held, and the next call that concerns that session, or ``close``, clears it away.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import struct
import sys
import time
from contextlib import suppress
from typing import Final

from nestling.session.errors import JsonDomainError, LeaseError, StoreError
from nestling.session.files_io import cause, make_directories, write_all
from nestling.session.jsontext import dumps, is_int0, loads

_RACES: Final = 64
"""So often a lease's file may be removed between opening and locking it."""

_LONGEST: Final = 16384
"""More bytes than a lease's line has: of an id's 512 characters each may have twelve."""

# O_NONBLOCK: a pipe of that name must not hold whoever asks.
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_NO_FILES: Final = (errno.ELOOP, errno.ENXIO)
"""Why a symbolic link, and a socket, cannot be opened."""

_FLOCK: Final = "hhqqi4x"
"""Linux's struct flock: type, whence, start, length, pid (which must be 0)."""


class OfdLocks:
    """Locks of open file descriptions."""

    @staticmethod
    def lock(fd: int) -> None:
        """Lock a file, or raise ``BlockingIOError``."""
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))

    @staticmethod
    def unlock(fd: int) -> None:
        """Unlock a file, for all who share its description."""
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK))

    @staticmethod
    def is_locked(fd: int) -> bool:
        """Tell whether another description has the file locked."""
        told = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
        return bool(struct.unpack(_FLOCK, told)[0] != fcntl.F_UNLCK)


def _flock(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


class FlockLocks:
    """The same by ``flock``, for systems without the other."""

    @staticmethod
    def lock(fd: int) -> None:
        """Lock a file, or raise ``BlockingIOError``."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @staticmethod
    def unlock(fd: int) -> None:
        """Unlock a file, for all who share its description."""
        fcntl.flock(fd, fcntl.LOCK_UN)

    @staticmethod
    def is_locked(fd: int) -> bool:
        """Tell whether another description has the file locked."""
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False


_HAS_OFD: Final = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")


class _Lease:
    """A lease that is held, or what an interrupt has left of one.

    Attributes:
        files: its open file; none where there is none, or not yet, or no longer.
        is_taken: it is held, and all of its taking is done.
    """

    def __init__(self) -> None:
        self.files: list[int] = []
        self.is_taken = False

    def close(self) -> None:
        """Close the file; may be called again, also after an interrupt."""
        # In one call: a signal between forgetting the number and closing it would leave
        # it open, and closed twice it could be another file's by then.
        with suppress(OSError):
            list(map(os.close, map(self.files.pop, [0] * len(self.files))))


class Leases:
    """The leases that one store object holds, in the process that took them."""

    def __init__(self, folder: str | None) -> None:
        """Hold none yet; nothing is written.

        Args:
            folder: where their files are, made when the first one is taken; None
                where no other object can reach the store.
        """
        self._folder = None if folder is None else os.path.abspath(folder)
        self._held: dict[str, _Lease] = {}
        self._pid = os.getpid()
        self._locks: type[OfdLocks | FlockLocks] = OfdLocks if _HAS_OFD else FlockLocks

    def take(self, session_id: str) -> None:
        """Take a session's lease; one whose holder died is taken over.

        Raises:
            LeaseError: if it is held, by this object or elsewhere; it names the session
                and, where the lease says it, the holder's process.
            StoreError: if its file cannot be made or locked.
        """
        if self._is_held(session_id):
            raise LeaseError(f"session {session_id!r} is being written here already")
        # Known before it is locked: else an interrupt between the two would leave a
        # lock that nothing ever ends.
        lease = self._held[session_id] = _Lease()
        try:
            if self._folder is not None:
                self._lock(lease, self._path(self._folder, session_id), session_id)
                _describe(lease.files[0], session_id)
            lease.is_taken = True
        except OSError as error:
            self.release(session_id)
            path = self._path(self._folder or "", session_id)
            raise _refused(path, "cannot take this lease", error) from None
        except BaseException:
            self.release(session_id)
            raise

    def _is_held(self, session_id: str) -> bool:
        """Tell whether this object holds a lease; what is left of one is cleared."""
        self._disown()
        lease = self._held.get(session_id)
        if lease is not None and not lease.is_taken:
            self.release(session_id)
            return False
        return lease is not None

    def _disown(self) -> None:
        """In a forked child, forget what its parent holds.

        The files are closed, but not unlocked: the locks are the parent's as well.
        """
        if self._pid != os.getpid():
            for lease in self._held.values():
                lease.close()
            self._held.clear()
            self._pid = os.getpid()

    def _lock(self, lease: _Lease, path: str, session_id: str) -> None:
        """Open and lock the file of that path."""
        for _ in range(_RACES):
            lease.files = [_opened(path)]
            (fd,) = lease.files
            if not _is_file(fd):
                lease.close()
                raise OSError("this is no regular file")
            try:
                self._locks.lock(fd)
            except (BlockingIOError, PermissionError):
                holder = _holder(fd)
                lease.close()
                raise LeaseError(
                    f"session {session_id!r} is being written by {holder}"
                ) from None
            # Its last holder may have removed it since it was opened: then the lock
            # is one that nobody else will ever look for.
            if _is_same(fd, path):
                return
            lease.close()
        raise StoreError(
            f"{path}: cannot take this lease: its file was removed {_RACES} times"
        )

    def is_elsewhere(self, session_id: str) -> bool:
        """Tell whether somebody else holds a session's lease; nothing is written.

        Raises:
            StoreError: if that cannot be found out.
        """
        if self._folder is None or self._is_held(session_id):
            return False
        path = self._path(self._folder, session_id)
        try:
            fd = os.open(path, _READ)
            try:
                # Nobody can have taken a lease in what is no file.
                return _is_file(fd) and self._locks.is_locked(fd)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in _NO_FILES:
                return False
            raise _refused(path, "cannot look at this lease", error) from None

    def release(self, session_id: str) -> None:
        """Give a lease back; one that is not held is not missed."""
        self._disown()
        lease = self._held.get(session_id)
        if lease is None:
            return
        lease.is_taken = False
        if self._folder is not None:
            self._give_up(lease, self._path(self._folder, session_id))
        # Forgotten last: until then, another call can do what an interrupt left undone.
        self._held.pop(session_id, None)

    def _give_up(self, lease: _Lease, path: str) -> None:
        """Remove the file, then unlock it: in this order nobody else's is removed.

        Each step may be done again, and where the taking did not get that far.
        """
        if not lease.files:
            return
        (fd,) = lease.files
        # Where the file cannot be removed it stays: only its lock counts.
        with suppress(OSError):
            # Nothing if it is ours, as it mostly is; refused if it is somebody else's.
            self._locks.lock(fd)
            if _is_same(fd, path):
                os.unlink(path)
        # Closing would not unlock it where a forked child has it open too.
        with suppress(OSError):
            self._locks.unlock(fd)
        lease.close()

    def close(self) -> None:
        """Give all leases back; may be called again."""
        self._disown()
        for session_id in list(self._held):
            self.release(session_id)

    @staticmethod
    def _path(folder: str, session_id: str) -> str:
        name = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()
        return os.path.join(folder, f"{name}.lock")


def _opened(path: str) -> int:
    try:
        return os.open(path, _WRITE, 0o600)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        make_directories(folder, folder)
        return os.open(path, _WRITE, 0o600)


def _refused(path: str, problem: str, error: OSError) -> StoreError:
    """Say what failed; where a file stands for a directory, which one it is."""
    if isinstance(error, NotADirectoryError):
        step = os.path.dirname(path)
        while not os.path.lexists(step):
            step = os.path.dirname(step)
        return StoreError(f"{step}: is no directory")
    return StoreError(f"{path}: {problem}: {cause(error)}")


def _is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _is_same(fd: int, path: str) -> bool:
    """Tell whether a path still leads to an open file."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), found)


def _describe(fd: int, session_id: str) -> None:
    started = time.time_ns() // 1_000_000
    line = dumps({"id": session_id, "pid": os.getpid(), "started": started}) + b"\n"
    os.ftruncate(fd, 0)
    write_all(fd, line)


def _holder(fd: int) -> str:
    """Say who holds a lease, by what its file says."""
    try:
        told = loads(os.pread(fd, _LONGEST, 0))
    except (OSError, JsonDomainError):
        told = None  # it has not been written yet
    pid = told.get("pid") if type(told) is dict else None
    if not is_int0(pid):
        return "another process, or another store object of this one"
    if pid == os.getpid():
        return f"another store object of this process ({pid})"
    return f"process {pid}"
