"""A scenario's folder is written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nestling.harness.scenario_write_io import write_scenario
from nestling.session.errors import StoreError

OLD = {
    "session.jsonl": b"old root\n",
    "session.1.jsonl": b"old one\n",
    "session.2.jsonl": b"old two\n",
    "README.md": b"kept\n",
}
NEW = {"session.jsonl": b"new root\n", "session.1.jsonl": b"new one\n" * 1000}
AFTER = {**NEW, "README.md": b"kept\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in OLD.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def failing_at(call: Callable[..., Any], failures: set[int]) -> Callable[..., Any]:
    """Return `call`, but for the calls with these numbers, from 1."""
    count = 0

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count in failures:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(*args, **kwargs)

    return run


def test_files_are_replaced_and_stale_recordings_removed(folder: Path) -> None:
    write_scenario(folder, NEW)
    assert contents(folder) == AFTER


def test_a_missing_folder_is_created(tmp_path: Path) -> None:
    write_scenario(tmp_path / "a" / "b", NEW)
    assert contents(tmp_path / "a" / "b") == NEW


def test_other_files_are_left_alone(folder: Path) -> None:
    others = ["session.0.jsonl", "session.x.jsonl", "session.1.jsonl.txt", "seed.jsonl"]
    for name in others:
        (folder / name).write_bytes(b"kept")
    write_scenario(folder, NEW)
    assert set(contents(folder)) == {*AFTER, *others}


def test_a_file_that_is_equal_is_left_alone(folder: Path) -> None:
    before = (folder / "session.jsonl").stat()
    write_scenario(folder, {**NEW, "session.jsonl": OLD["session.jsonl"]})
    after = (folder / "session.jsonl").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_new_files_have_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    write_scenario(tmp_path, NEW)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_short_writes_are_continued(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:100]))
    write_scenario(folder, NEW)
    assert contents(folder) == AFTER


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0b"])
def test_a_name_outside_the_folder_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not a file name"):
        write_scenario(folder, {**NEW, name: b""})
    assert contents(folder) == OLD


# 2 writes of new files and 2 of backups; 2 renames and 1 removal; a sync of each of
# the 4 files, and of the folder.
@pytest.mark.parametrize(
    ("function", "number"),
    [("write", n) for n in range(1, 5)]
    + [("replace", n) for n in range(1, 4)]
    + [("fsync", n) for n in range(1, 6)],
)
def test_a_failure_leaves_the_old_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: str, number: int
) -> None:
    failing = failing_at(getattr(os, function), {number})
    monkeypatch.setattr(os, function, failing)
    with pytest.raises(StoreError, match="No space left"):
        write_scenario(folder, NEW)
    assert contents(folder) == OLD


def test_a_failure_leaves_no_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", failing_at(os.replace, {2}))
    with pytest.raises(StoreError, match="No space left"):
        write_scenario(tmp_path, NEW)
    assert contents(tmp_path) == {}


def test_an_interrupt_leaves_the_old_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_scenario(folder, NEW)
    assert contents(folder) == OLD


def test_what_cannot_be_put_back_is_said_and_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second rename fails, and so does the first of the roll-back.
    monkeypatch.setattr(os, "replace", failing_at(os.replace, {2, 3}))
    with pytest.raises(StoreError, match=r"session\.jsonl: changed .* \.<name>\.old"):
        write_scenario(folder, NEW)
    left = contents(folder)
    assert left[".session.jsonl.old"] == OLD["session.jsonl"]
    assert left["session.1.jsonl"] == OLD["session.1.jsonl"]


def test_the_next_write_clears_what_a_killed_one_left(folder: Path) -> None:
    (folder / ".session.jsonl.new").write_bytes(b"half a ro")
    (folder / ".session.2.jsonl.old").write_bytes(b"older")
    write_scenario(folder, NEW)
    assert contents(folder) == AFTER


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scenario"
    path.write_bytes(b"a file")
    with pytest.raises(StoreError, match="scenario: cannot write"):
        write_scenario(path, NEW)


def test_concurrent_writers_leave_one_of_their_scenarios(tmp_path: Path) -> None:
    scenarios = [
        {f"session{suffix}.jsonl": b"%d" % n for suffix in ("", ".1", f".{n + 2}")}
        for n in range(8)
    ]
    threads = [
        threading.Thread(target=write_scenario, args=(tmp_path, files))
        for files in scenarios
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(tmp_path) in scenarios
