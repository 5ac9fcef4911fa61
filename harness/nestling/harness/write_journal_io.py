"""What a write of a scenario's folder has begun, so that whoever comes next can undo it.

Several files cannot be replaced at once. A writer that is killed between two of them
leaves a journal, which names those that it was about to replace and those that it was
about to make; what they held is beside them. Whoever holds the folder next puts it back.
The write counts when its journal is removed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from nestling.session.errors import UnreadableError

JOURNAL: Final = ".session.undo"
_MOST_BYTES: Final = 16 * 2**20
_LEFT: Final = re.compile(
    r"\.(?:session(?:\.[1-9][0-9]*)?\.jsonl|scenario\.toml|session\.undo)\.(?:new|old)"
)


class Journal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be undone.

    Attributes:
        replaced: the names of files that are replaced or removed; what each held is in
            its ``backup_of`` until it is put back.
        created: those of files that were not there.
    """

    replaced: list[str]
    created: list[str]

    def write(self, folder: Path, folder_fd: int) -> None:
        """Make it durable, and all that stands in the folder by now.

        Args:
            folder: the folder.
            folder_fd: a descriptor of it.

        Raises:
            OSError: if that fails.
        """
        waiting = folder / f"{JOURNAL}.new"
        try:
            write_durably(waiting, msgspec.json.encode(self))
            os.replace(waiting, folder / JOURNAL)
        except BaseException:
            clear([waiting])
            raise
        os.fsync(folder_fd)

    def undo(self, folder: Path) -> list[str]:
        """Put back what was there; return the names of files where that failed."""
        return [
            *(name for name in self.replaced if not _put_back(folder, name)),
            *(name for name in self.created if not _removed(folder / name)),
        ]


def backup_of(path: Path) -> Path:
    """Return where what a file held is kept while it is replaced."""
    return path.with_name(f".{path.name}.old")


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and sync it.

    Raises:
        OSError: if that fails; half a file may be there then.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o666)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def is_interrupted(folder: Path) -> bool:
    """Tell whether a write of a folder, which is held, was begun and not ended."""
    return os.path.lexists(folder / JOURNAL)


def settle(folder: Path, folder_fd: int) -> None:
    """Undo what a killed writer has begun, and clear what it left.

    Args:
        folder: the folder; nobody else may hold it.
        folder_fd: a descriptor of it.

    Raises:
        UnreadableError: if what was there cannot be put back.
    """
    if is_interrupted(folder):
        lost = _read(folder / JOURNAL).undo(folder)
        if lost:
            raise UnreadableError(
                f"{folder}: a write of it was interrupted, and could not be undone here; "
                f"what {', '.join(lost)} held is in .<name>.old"
            )
        try:
            os.fsync(folder_fd)
            (folder / JOURNAL).unlink()
            os.fsync(folder_fd)
        except OSError as error:
            raise UnreadableError(
                f"{folder / JOURNAL}: {error.strerror or error}"
            ) from None
    clear(folder / name for name in os.listdir(folder) if _LEFT.fullmatch(name))


def clear(paths: Iterable[Path]) -> None:
    """Remove files that nobody needs; one that cannot be removed stays."""
    for path in paths:
        with suppress(OSError):
            path.unlink()


def _read(path: Path) -> Journal:
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise UnreadableError(f"{path}: found no journal of a write, expected one")
        journal = msgspec.json.decode(path.read_bytes(), type=Journal)
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableError(f"{path}: no journal of a write: {error}") from None
    for name in (*journal.replaced, *journal.created):
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise UnreadableError(f"{path}: found {name!r}, expected names of files")
    return journal


def _put_back(folder: Path, name: str) -> bool:
    path = folder / name
    try:
        os.replace(backup_of(path), path)
    except FileNotFoundError:
        return True  # it is back already
    except OSError:
        return False
    return True


def _removed(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
