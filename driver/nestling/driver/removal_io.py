"""Removing a folder that others have filled: any depth, any permissions.

``shutil.rmtree`` calls itself once a level and stops at a folder that may not be written
to. A tool that nests folders deeply, or takes away its own rights to one, as caches of
some package managers do, would so be left on the disk for good.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def remove_folder(path: Path) -> None:
    """Remove a folder and all that is in it; links are removed, not followed.

    Folders inside are moved to its top before they are emptied, so that no path gets
    too long.

    Raises:
        OSError: the first one that there was; what could be removed is gone.
    """
    first: OSError | None = None
    waiting = [path]
    emptied = []
    while waiting:
        folder = waiting.pop()
        emptied.append(folder)
        try:
            entries = _opened(folder)
        except OSError as error:
            first = first or error
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(_raised(path, folder, entry))
                else:
                    os.unlink(entry)
            except OSError as error:
                first = first or error
    for folder in reversed(emptied):
        try:
            folder.rmdir()
        except OSError as error:
            first = first or error
    if first is not None:
        raise first


def _opened(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, from which it can be removed then."""
    os.chmod(folder, 0o700)
    with os.scandir(folder) as entries:
        return list(entries)


def _raised(top: Path, folder: Path, entry: os.DirEntry[str]) -> Path:
    """Move a folder of a folder to the top, and return where it is."""
    if folder == top:
        return Path(entry)
    os.chmod(entry, 0o700)  # its way to its parent is written into itself
    moved = top / secrets.token_hex(8)
    os.rename(entry, moved)
    return moved
