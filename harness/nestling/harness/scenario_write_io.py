"""Writing a scenario's folder: all of its files or none, and each file whole.

Every file is written beside its target, synced and renamed over it. A failure puts
back what was there; if the writer is killed, whoever holds the folder next does
(``write_journal_io``). One writer at a time holds it, across processes, and
``load_scenario`` waits for it. Who reads the files otherwise sees whole ones, but may meet
old and new ones side by side until then: the sessions' ``seedDigest`` tells.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from nestling.harness.folder_lock_io import held
from nestling.harness.write_journal_io import (
    JOURNAL,
    Journal,
    backup_of,
    clear,
    is_interrupted,
    write_durably,
)
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
    """One write of a folder, which is held; it can be undone until it is complete.

    Attributes:
        changed: the names of the files that it has written or removed.
    """

    def __init__(self, folder: Path, folder_fd: int) -> None:
        self._folder = folder
        self._folder_fd = folder_fd
        self.changed: list[str] = []
        self._temporary: list[Path] = []

    def run(self, files: Mapping[str, bytes]) -> None:
        paths = {self._folder / name: content for name, content in files.items()}
        old = {path: path.read_bytes() for path in paths if path.exists()}
        changed = [path for path in paths if old.get(path) != paths[path]]
        stale = self._stale(files)
        if not changed and not stale:
            return
        journal = Journal(
            [path.name for path in (*changed, *stale) if path in old or path in stale],
            [path.name for path in changed if path not in old],
        )
        try:
            for path in changed:
                self._write(self._new(path), paths[path])
            for path in changed:
                if path in old:
                    self._write(backup_of(path), old[path])
            journal.write(self._folder, self._folder_fd)
            self._replace(changed, stale)
        except BaseException:
            # Without a journal nothing was replaced, and backups may be half written.
            if is_interrupted(self._folder):
                self._undo(journal)
            raise
        finally:
            clear(self._temporary)

    def _replace(self, changed: Sequence[Path], stale: Sequence[Path]) -> None:
        for path in changed:
            os.replace(self._new(path), path)
            self.changed.append(path.name)
        for path in stale:
            self._temporary.append(backup_of(path))
            os.replace(path, backup_of(path))
            self.changed.append(path.name)
        os.fsync(self._folder_fd)
        (self._folder / JOURNAL).unlink()
        with suppress(OSError):  # it is done; after a power cut it may be undone
            os.fsync(self._folder_fd)

    def _stale(self, files: Mapping[str, bytes]) -> list[Path]:
        return [
            path
            for path in sorted(self._folder.iterdir())
            if _CHILD_FILE.fullmatch(path.name) and path.name not in files
        ]

    def _undo(self, journal: Journal) -> None:
        lost = journal.undo(self._folder)
        if lost:
            # The backups are now the only copies, and the journal says so.
            self._temporary = [p for p in self._temporary if p.suffix != ".old"]
            raise StoreError(
                f"{', '.join(str(self._folder / name) for name in lost)}: changed by a "
                "write that failed, and could not be put back; what they held is beside "
                "them, in .<name>.old"
            )
        os.fsync(self._folder_fd)
        self._temporary.append(self._folder / JOURNAL)

    def _write(self, path: Path, content: bytes) -> None:
        self._temporary.append(path)
        write_durably(path, content)

    def _new(self, path: Path) -> Path:
        return path.with_name(f".{path.name}.new")
