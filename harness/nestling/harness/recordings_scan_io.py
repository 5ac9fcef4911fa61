"""Finding the scenarios' folders below the roots of a test suite."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import fnmatch
from pathlib import Path

from nestling.harness.recordings_report import is_scenario


def scan(roots: Iterable[Path], skipped: Sequence[str]) -> dict[str, AbstractSet[str]]:
    """Return the names of the files of every scenario's folder, by folder.

    Args:
        roots: the folders to look in.
        skipped: patterns of names of folders that are not entered, as in pytest's
            ``norecursedirs``.
    """
    found: dict[str, AbstractSet[str]] = {}
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = [
                each
                for each in folders
                if each != "__pycache__" and not any(fnmatch(each, p) for p in skipped)
                if not os.path.exists(os.path.join(folder, each, "pyvenv.cfg"))
            ]
            if is_scenario(set(names)):
                found[os.path.abspath(folder)] = set(names)
    return found
