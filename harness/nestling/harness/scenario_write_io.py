"""Writing a scenario's folder: all of its files or none, and each file whole.

Every file is written beside its target, synced and renamed over it. A failure puts
back what was there. One writer at a time holds the folder, across processes, and
``load_scenario`` waits for it. Who reads the files otherwise sees whole ones, but may meet
old and new ones side by side while a write is going on or after a power cut in the middle
of one: the sessions' ``seedDigest`` tells.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nestling.harness.folder_lock_io import held
from nestling.session.errors import StoreError

_CHILD_FILE: Final = re.compile(r"session\.[1-9][0-9]*\.jsonl")
_LOG_FILE: Final = re.compile(r"session(?:\.[1-9][0-9]*)?\.jsonl")


class ScenarioChangedError(StoreError):
    """A recording was written by somebody else meanwhile."""


def write_scenario(
    folder: Path,
    files: Mapping[str, bytes],
    expected: Mapping[str, bytes] | None = None,
) -> list[str]:
    """Write the files of a scenario, and remove recordings it no longer has.

    A file that holds its bytes already is left alone, and so is every file that is
    neither named nor a ``session.<n>.jsonl``.

    Args:
        folder: the scenario's folder; created if it is missing.
        files: what each file is to hold, by its name.
        expected: the logs that the folder holds, as far as the writer knows; None to
            write whatever it holds.

    Returns:
        The names of the files that were written or removed, in their order.

    Raises:
        ScenarioChangedError: if it holds other logs than expected; nothing is written.
        StoreError: if not everything could be made durable; the folder then holds
            what it held before, unless the message says otherwise.
        ValueError: if a name is not that of a file in the folder.
    """
    for name in files:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise ValueError(f"{name!r} is not a file name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with held(folder) as folder_fd:
            if expected is not None and logs_in(folder) != expected:
                raise ScenarioChangedError(
                    f"{folder}: the recording was written by somebody else meanwhile"
                )
            write = _Write(folder, folder_fd)
            write.run(files)
            return write.changed
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"{folder}: cannot write: {reason}") from error


def logs_in(folder: Path) -> dict[str, bytes]:
    """Return the logs of a scenario's folder, by name; the folder is to be held.

    Raises:
        OSError: if one cannot be read.
    """
    names = [path.name for path in folder.iterdir() if _LOG_FILE.fullmatch(path.name)]
    return {name: (folder / name).read_bytes() for name in names}


class _Write:
    """One write of a folder, which can be undone until it is complete.

    Names that start with a dot are its own; the folder is held, so whatever bears one
    was left by a writer that was killed.

    Attributes:
        changed: the names of the files that it has written or removed.
    """

    def __init__(self, folder: Path, folder_fd: int) -> None:
        self._folder = folder
        self._folder_fd = folder_fd
        self.changed: list[str] = []
        self._undo: list[tuple[Path, Path | None]] = []
        self._temporary: list[Path] = []

    def run(self, files: Mapping[str, bytes]) -> None:
        try:
            self._replace(files)
        except BaseException:
            self._roll_back()
            raise
        finally:
            for path in self._temporary:
                path.unlink(missing_ok=True)

    def _replace(self, files: Mapping[str, bytes]) -> None:
        paths = {self._folder / name: content for name, content in files.items()}
        old = {path: path.read_bytes() for path in paths if path.exists()}
        changed = [path for path in paths if old.get(path) != paths[path]]
        new = {path: self._written(path, "new", paths[path]) for path in changed}
        kept = {
            path: self._written(path, "old", old[path])
            for path in changed
            if path in old
        }
        for path in changed:
            os.replace(new[path], path)
            self._undo.append((path, kept.get(path)))
            self.changed.append(path.name)
        for path in self._stale(files):
            backup = self._temporary_path(path, "old")
            os.replace(path, backup)
            self._undo.append((path, backup))
            self.changed.append(path.name)
        os.fsync(self._folder_fd)

    def _stale(self, files: Mapping[str, bytes]) -> list[Path]:
        return [
            path
            for path in sorted(self._folder.iterdir())
            if _CHILD_FILE.fullmatch(path.name) and path.name not in files
        ]

    def _roll_back(self) -> None:
        lost = [str(path) for path, backup in self._undo if not _undone(path, backup)]
        if lost:
            # The backups are now the only copies.
            self._temporary = [p for p in self._temporary if p.suffix != ".old"]
            raise StoreError(
                f"{', '.join(lost)}: changed by a write that failed, and could not be "
                "put back; what they held is beside them, in .<name>.old"
            )
        os.fsync(self._folder_fd)

    def _written(self, path: Path, kind: str, content: bytes) -> Path:
        """Write a durable file that waits beside `path`, and return where it is."""
        temporary = self._temporary_path(path, kind)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o666)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        return temporary

    def _temporary_path(self, path: Path, kind: str) -> Path:
        temporary = path.with_name(f".{path.name}.{kind}")
        self._temporary.append(temporary)
        return temporary


def _undone(path: Path, backup: Path | None) -> bool:
    """Put back what `path` held; None is nothing. Tell whether that worked."""
    try:
        if backup is None:
            path.unlink()
        else:
            os.replace(backup, path)
    except OSError:
        return False
    return True
