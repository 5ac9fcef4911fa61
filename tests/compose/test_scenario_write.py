"""A scenario's folder is written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nestling.harness.folder_lock_io import held
from nestling.harness.scenario_write_io import write_scenario
from nestling.harness.write_journal_io import JOURNAL
from nestling.session.errors import StoreError, UnreadableError

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


# 2 writes of new files, 2 of backups, 1 of the journal, which is renamed; 2 renames and 1
# removal; a sync of each of the 5 files, and of the folder, with the journal and after.
STEPS = (
    [("write", n) for n in range(1, 6)]
    + [("replace", n) for n in range(1, 5)]
    + [("fsync", n) for n in range(1, 8)]
)


@pytest.mark.parametrize(("function", "number"), STEPS)
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
    # The second rename of a log fails, and so does the first of the roll-back.
    monkeypatch.setattr(os, "replace", failing_at(os.replace, {3, 4}))
    with pytest.raises(StoreError, match=r"session\.jsonl: changed .* \.<name>\.old"):
        write_scenario(folder, NEW)
    left = contents(folder)
    assert left[".session.jsonl.old"] == OLD["session.jsonl"]
    assert left["session.1.jsonl"] == OLD["session.1.jsonl"]

    with held(folder, shared=True):
        assert contents(folder) == OLD  # whoever comes next puts it back


KILLED = """
import os, sys
from pathlib import Path
from nestling.harness.scenario_write_io import write_scenario

function, number = sys.argv[2], int(sys.argv[3])
call, count = getattr(os, function), 0

def run(*args, **kwargs):
    global count
    count += 1
    if count == number:
        os.kill(os.getpid(), 9)
    return call(*args, **kwargs)

setattr(os, function, run)
write_scenario(Path(sys.argv[1]), {"session.jsonl": b"new", "session.1.jsonl": b"new",
                                   "session.3.jsonl": b"new"})
"""


@pytest.mark.parametrize("is_reader", [True, False])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_what_a_killed_writer_has_begun_is_undone(
    folder: Path, number: int, *, is_reader: bool
) -> None:
    # The journal's rename, then those of three logs and of one that is removed.
    command = [sys.executable, "-c", KILLED, str(folder), "replace", str(number)]
    assert subprocess.run(command, check=False).returncode == -9
    if is_reader:
        with held(folder, shared=True):
            found = {n: c for n, c in contents(folder).items() if n[0] != "."}
            assert found == OLD
    else:
        with held(folder):
            assert contents(folder) == OLD


def test_a_killed_writer_that_was_done_has_written_all(folder: Path) -> None:
    # The last sync comes when the journal is gone.
    command = [sys.executable, "-c", KILLED, str(folder), "fsync", "9"]
    assert subprocess.run(command, check=False).returncode == -9
    with held(folder):
        assert contents(folder) == {
            "README.md": b"kept\n",
            **{f"session{n}.jsonl": b"new" for n in ("", ".1", ".3")},
        }


@pytest.mark.parametrize(
    ("journal", "said"),
    [
        (b"", "no journal of a write"),
        (b'{"replaced":["../x"],"created":[]}', "expected names of files"),
        (b'{"replaced":[],"created":["a/b"]}', "expected names of files"),
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_what_is_no_journal_is_refused(
    folder: Path, journal: bytes, said: str, *, shared: bool
) -> None:
    (folder / JOURNAL).write_bytes(journal)
    with pytest.raises(UnreadableError, match=said), held(folder, shared=shared):
        pass


def test_a_journal_that_cannot_be_removed_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / JOURNAL).write_bytes(b'{"replaced":[],"created":[]}')

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(UnreadableError, match="Read-only"), held(folder, shared=True):
        pass


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
