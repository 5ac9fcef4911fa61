"""Session files on disk: reading one whole, and a plain durable append."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from nestling.session.errors import StoreError, UnreadableError
from nestling.session.reading import Recording, read_recording

# O_APPEND: after a rollback the file's end is not where the last write ended.
_APPENDING: Final = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


def read_file(path: Path, name: str | None = None) -> Recording:
    """Read a recording from a file; the file is only read.

    Args:
        path: the file.
        name: what errors call it; its file name by default.

    Raises:
        UnreadableError: if the file cannot be read, or not as a recording.
    """
    name = path.name if name is None else name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{name}: {error.strerror or error}") from None
    return read_recording(data, name)


class JsonlAppender:
    """One session's file, for appending. What ``append`` took is durable.

    A failed append is rolled back, so that no half row stands before later ones. The
    file is open from an append until ``close``.
    """

    def __init__(self, path: Path) -> None:
        """Create the file, which must not exist.

        Raises:
            StoreError: if it cannot be created.
        """
        self._path = path
        try:
            self._fd = _create(path)  # -1 while it is closed
        except OSError as error:
            raise StoreError(f"{path}: cannot create: {error.strerror}") from None
        self._size = 0
        self._is_torn = False

    def append(self, rows: bytes) -> None:
        """Append whole rows and return once they are on disk.

        Raises:
            StoreError: if they are not; the file then ends where it did before, or
                will before anything more is appended.
        """
        fd = self._opened()
        if self._is_torn:
            self._roll_back(fd, "an earlier append failed")
        self._is_torn = True
        try:
            view = memoryview(rows)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        except OSError as error:
            self._roll_back(fd, str(error.strerror))
            raise StoreError(f"{self._path}: cannot append: {error.strerror}") from None
        self._size += len(rows)
        self._is_torn = False

    def _opened(self) -> int:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, _APPENDING)
            except OSError as error:
                problem = f"{self._path}: cannot open again: {error.strerror}"
                raise StoreError(problem) from None
        return self._fd

    def _roll_back(self, fd: int, cause: str) -> None:
        try:
            os.ftruncate(fd, self._size)
            os.fsync(fd)
        except OSError as error:
            raise StoreError(
                f"{self._path}: cannot append ({cause}), nor restore its "
                f"{self._size} bytes: {error.strerror}"
            ) from None
        self._is_torn = False

    def close(self) -> None:
        """Close the file; another append opens it again. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _create(path: Path) -> int:
    fd = os.open(path, _APPENDING | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _sync_directory(path.parent)
    except OSError:
        os.close(fd)
        path.unlink()
        raise
    return fd


def _sync_directory(path: Path) -> None:
    """Make a new file's name durable; not every platform can open a directory."""
    if os.name != "posix":
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
