"""One session's file: published whole, and then only appended to.

A failed append is taken back, so that no half row stands before later ones; a failed
first publication leaves nothing. Where even that fails, it is done again before the
next append.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from nestling.session.errors import SessionExistsError, StoreError
from nestling.session.files_io import (
    Stamp,
    cause,
    make_directories,
    stamp_of,
    sync_directory,
    write_all,
)

UNPUBLISHED: Final = ".new-"
"""So begin the names of files that are not published yet, beside the log."""

# O_APPEND: after a rollback the file's end is not where the last write ended.
_APPENDING: Final = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


class LogFile:
    """A session's file as this process last saw it.

    What ``append`` took is durable. The file is open from an append until ``close``.

    Attributes:
        path: the file.
        sound: up to which byte its rows count.
        length: how many events these rows hold.
    """

    def __init__(self, path: str, stamp: Stamp, sound: int, length: int) -> None:
        """Know a file; it is not touched.

        Args:
            path: the file.
            stamp: as it was when it was looked at.
            sound: so many bytes of it count; the next append removes the others.
            length: how many events these hold.
        """
        self.path = path
        self.sound = sound
        self.length = length
        self._stamp = stamp
        self._most: int | None = None  # where a write that was cut short ends, at most
        self._fd = -1
        self._is_swept = False

    @property
    def is_cut_short(self) -> bool:
        """Whether rows of a failed write may stand behind the sound ones."""
        return self._most is not None

    def is_as_left(self, found: Stamp) -> bool:
        """Tell whether the file is still what this process left."""
        left = self._stamp
        if (found.dev, found.ino) != (left.dev, left.ino):
            return False
        if self._most is not None:
            return self.sound <= found.size <= self._most
        return (found.size, found.mtime_ns) == (left.size, left.mtime_ns)

    def append(self, rows: bytes, count: int) -> None:
        """Remove what stands behind the sound rows, append `rows`, and sync.

        Args:
            rows: whole rows, or nothing.
            count: how many events they hold.

        Raises:
            StoreError: if they are not durable; the file then ends where it did
                before, or will before anything more is appended. Also if somebody
                else changed the file, which is then left alone.
        """
        fd = self._opened()
        if self.is_cut_short or self._stamp.size > self.sound:
            self._cut(fd, "removing what stands behind its sound rows")
        if not rows:
            return
        self._most = self.sound + len(rows)
        try:
            write_all(fd, rows)
            os.fsync(fd)
            self._stamp = stamp_of(os.fstat(fd))
        except OSError as error:
            self._cut(fd, cause(error))
            raise StoreError(f"{self.path}: cannot append: {cause(error)}") from None
        self.sound = self._most
        self.length += count
        self._most = None

    def _opened(self) -> int:
        """Return the open file, if it is still what it was."""
        try:
            # By its path: what is open may have been removed from it.
            found = stamp_of(os.stat(self.path))
            if not self.is_as_left(found):
                raise StoreError(
                    f"{self.path}: found {found.size} bytes where {self._stamp.size} "
                    "were left: somebody else wrote this session; nothing was appended"
                )
            if self._fd < 0:
                self._sweep()
                self._fd = os.open(self.path, _APPENDING)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot append: {cause(error)}") from None
        return self._fd

    def _sweep(self) -> None:
        if not self._is_swept:
            remove_unpublished(os.path.dirname(self.path))
            self._is_swept = True

    def _cut(self, fd: int, why: str) -> None:
        if self._most is None:
            self._most = self._stamp.size
        try:
            os.ftruncate(fd, self.sound)
            os.fsync(fd)
            self._stamp = stamp_of(os.fstat(fd))
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot append ({why}), nor restore its "
                f"{self.sound} bytes: {cause(error)}"
            ) from None
        self._most = None

    def close(self) -> None:
        """Close the file; another append opens it again. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def publish(path: str, root: str, data: bytes, count: int) -> LogFile:
    """Make a new session durable: its file appears whole, or not at all.

    Args:
        path: of the file; the directories that lead to it are made.
        root: the store's directory.
        data: what it begins with, whole rows.
        count: how many events these hold.

    Raises:
        SessionExistsError: if there is such a file; it is never replaced.
        StoreError: if it cannot be made durable.
    """
    directory = os.path.dirname(path)
    make_directories(directory, root)
    try:
        remove_unpublished(directory)
        # The name is nobody else's: two that publish at once must not meet in it.
        made = os.path.join(
            directory, f"{UNPUBLISHED}{os.getpid()}-{os.urandom(8).hex()}"
        )
        _publish(made, path, data)
        return LogFile(path, stamp_of(os.stat(path)), len(data), count)
    except FileExistsError:
        raise SessionExistsError(f"{path}: this session is stored already") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot create: {cause(error)}") from None


def _publish(made: str, path: str, data: bytes) -> None:
    fd = os.open(made, _APPENDING | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        write_all(fd, data)
        os.fsync(fd)
        os.link(made, path)  # unlike a rename it never replaces anything
        try:
            sync_directory(os.path.dirname(path))
        except BaseException as error:
            _take_back(path, error)
            raise
    finally:
        os.close(fd)
        # Readers do not see it, and the session's next write removes it.
        with suppress(OSError):
            os.unlink(made)


def _take_back(path: str, error: BaseException) -> None:
    """Remove a file whose name is not durable, so that it is not stored."""
    why = cause(error) if isinstance(error, OSError) else repr(error)
    try:
        os.unlink(path)
    except OSError as second:
        raise StoreError(
            f"{path}: cannot create ({why}), nor remove what was created: "
            f"{cause(second)}; the session may be stored"
        ) from None


def remove_unpublished(directory: str) -> None:
    """Remove what writers that died have left beside a log.

    Raises:
        OSError: if the directory cannot be read or changed.
    """
    for name in os.listdir(directory):
        if name.startswith(UNPUBLISHED):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))
