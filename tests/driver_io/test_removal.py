"""Folders that tools have left in a state in which they are hard to remove."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nestling.driver.owners_io import Owner, sweep
from nestling.driver.removal_io import remove_folder
from nestling.driver.run_directory_io import RunDirectory
from nestling.harness.leaks_io import removed

LEVELS = 3 * sys.getrecursionlimit()
"""More than a function that calls itself gets to, and than a path can name."""


def nest(folder: Path) -> None:
    """Nest folders, a file in each, deeply."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


def test_one_that_is_deep(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    nest(tmp_path / "top")
    remove_folder(tmp_path / "top")
    assert list(tmp_path.iterdir()) == []


def test_what_a_link_leads_to_is_kept(tmp_path: Path) -> None:
    outside, top = tmp_path / "outside", tmp_path / "top"
    (top / "folder").mkdir(parents=True)
    outside.mkdir(mode=0o750)
    (outside / "file").write_text("kept")
    (top / "link").symlink_to(outside)
    (top / "folder" / "link").symlink_to(outside)
    (top / "folder" / "file").symlink_to(outside / "file")
    remove_folder(top)
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "file").read_text() == "kept"
    assert outside.stat().st_mode & 0o777 == 0o750


def _refuse_as_for_a_user(patch: pytest.MonkeyPatch) -> None:
    """Look at modes also where this is root, who may do everything."""

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *more: Any) -> Any:
            folder = Path(path).parent
            bits = 0o700 if real is os.scandir else 0o300
            looked = Path(path) if real is os.scandir else folder
            if looked.stat().st_mode & bits != bits:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *more)

        return call

    for name in ("scandir", "unlink", "rename"):
        patch.setattr(os, name, refusing(getattr(os, name)))


def test_one_that_may_not_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "top" / "one" / "two" / "three"
    locked.mkdir(parents=True)
    (locked / "file").touch()
    for folder in (locked, *list(locked.parents)[:3]):
        folder.chmod(0o500)
    locked.chmod(0)
    with monkeypatch.context() as patch:
        _refuse_as_for_a_user(patch)
        remove_folder(tmp_path / "top")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_told_and_the_rest_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path / "top"
    (top / "folder" / "below").mkdir(parents=True)
    for path in (top / "a", top / "kept", top / "folder" / "b"):
        path.touch()
    real = os.unlink

    def unlink(path: Any) -> None:
        if Path(path).name == "kept":
            raise OSError(5, "Input/output error")
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(OSError, match="Input/output error"):
            remove_folder(top)
    assert [str(path.relative_to(top)) for path in top.rglob("*")] == ["kept"]


# --- run directories ---------------------------------------------------------------


def test_a_run_directory_is_removed_whatever_a_tool_made_there(box: Path) -> None:
    made = RunDirectory()
    nest(made.work_of("w0"))
    made.remove()
    assert not made.path.exists()


def test_one_that_is_left_does_not_keep_the_next_driver_from_starting(
    tmp_path: Path,
) -> None:
    left = tmp_path / "nestling-left"
    (left / "work").mkdir(parents=True)
    nest(left / "work")
    gone = Owner(2**22 + 1, 5, "1-a")
    (left / "owner").write_bytes(msgspec.json.encode(gone))
    assert sweep([str(tmp_path)]) == [left]
    assert not left.exists()


def test_what_cannot_be_removed_keeps_its_owner(
    box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the next run finds it."""
    made = RunDirectory()
    with monkeypatch.context() as patch:

        def fail(_: object) -> None:
            raise OSError(5, "Input/output error")

        patch.setattr("nestling.driver.owners_io.remove_folder", fail)
        made.remove()
    assert (made.path / "owner").exists()
    assert list(removed([made.path])) == [
        f"run directory {made.path.name} (sockets: [])"
    ]
    assert not made.path.exists()


def test_the_leak_check_removes_them_too(box: Path) -> None:
    made = RunDirectory()
    nest(made.work_of("w0"))
    assert len(list(removed([made.path]))) == 1
    assert not made.path.exists()
    made.remove()
