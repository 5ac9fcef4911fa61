"""Leases: who may write a session. One file each, locked by the kernel.

The lock is what counts, and it ends with the process that holds it, however that ends.
The file only says who it is: one JSON line ``{"id", "pid", "started"}``, `started` in
epoch milliseconds (the name, a hash of the id, and the line are ours). It is removed
while it is still locked, and it may stay where a holder died.

On Linux these are locks of an open file description (``fcntl(2)``, ``F_OFD_SETLK``):
two ``Leases`` of one process exclude each other too, and one can ask without taking.
Elsewhere ``flock`` does the same, but asking takes a shared lock for a moment, in which
another process's ``take`` may fail.

A forked child shares its parent's locks, as both have the same open files. A release in
either ends them for both. But where the holder dies without one, its leases last until
the last such child has ended too, or has executed another program.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
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

_READ: Final = os.O_RDONLY | os.O_CLOEXEC
_WRITE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

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


class Leases:
    """The leases that one store object holds."""

    def __init__(self, folder: str | None) -> None:
        """Hold none yet; nothing is written.

        Args:
            folder: where their files are, made when the first one is taken; None
                where no other object can reach the store.
        """
        self._folder = None if folder is None else os.path.abspath(folder)
        self._held: dict[str, int] = {}  # -1 where there is no file
        self._locks: type[OfdLocks | FlockLocks] = OfdLocks if _HAS_OFD else FlockLocks

    def take(self, session_id: str) -> None:
        """Take a session's lease; one whose holder died is taken over.

        Raises:
            LeaseError: if it is held, by this object or elsewhere; it names the session
                and, where the lease says it, the holder's process.
            StoreError: if its file cannot be made or locked.
        """
        if session_id in self._held:
            raise LeaseError(f"session {session_id!r} is being written here already")
        if self._folder is None:
            self._held[session_id] = -1
            return
        path = self._path(self._folder, session_id)
        try:
            fd = self._locked(path, session_id)
            try:
                _describe(fd, session_id)
            except BaseException:
                self._give_up(fd, path)
                raise
        except OSError as error:
            raise StoreError(
                f"{path}: cannot take this lease: {cause(error)}"
            ) from None
        self._held[session_id] = fd

    def _locked(self, path: str, session_id: str) -> int:
        """Return the open, locked file of that path."""
        for _ in range(_RACES):
            fd = _opened(path)
            try:
                self._locks.lock(fd)
            except (BlockingIOError, PermissionError):
                holder = _holder(fd)
                os.close(fd)
                raise LeaseError(
                    f"session {session_id!r} is being written by {holder}"
                ) from None
            except BaseException:
                os.close(fd)
                raise
            # Its last holder may have removed it since it was opened: then the lock
            # is one that nobody else will ever look for.
            if _is_same(fd, path):
                return fd
            os.close(fd)
        raise StoreError(
            f"{path}: cannot take this lease: its file was removed {_RACES} times"
        )

    def is_elsewhere(self, session_id: str) -> bool:
        """Tell whether somebody else holds a session's lease; nothing is written.

        Raises:
            StoreError: if that cannot be found out.
        """
        if self._folder is None or session_id in self._held:
            return False
        path = self._path(self._folder, session_id)
        try:
            fd = os.open(path, _READ)
            try:
                return self._locks.is_locked(fd)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            problem = f"{path}: cannot look at this lease: {cause(error)}"
            raise StoreError(problem) from None

    def release(self, session_id: str) -> None:
        """Give a lease back; one that is not held is not missed."""
        fd = self._held.pop(session_id, -1)
        if fd >= 0 and self._folder is not None:
            self._give_up(fd, self._path(self._folder, session_id))

    def _give_up(self, fd: int, path: str) -> None:
        """Remove the file, then unlock it: in this order nobody else's is removed."""
        try:
            # Where the file cannot be removed it stays: only its lock counts.
            with suppress(OSError):
                if _is_same(fd, path):
                    os.unlink(path)
            # Closing would not unlock it where a forked child has it open too.
            with suppress(OSError):
                self._locks.unlock(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Give all leases back; may be called again."""
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


def _is_same(fd: int, path: str) -> bool:
    """Tell whether a path still leads to an open file."""
    try:
        found = os.stat(path)
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
