"""Session files on disk: a durable append, and what a failed one leaves behind."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from nestling.session.errors import StoreError, UnreadableError
from nestling.session.jsonl_io import JsonlAppender, read_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session.jsonl"


@pytest.fixture
def appender(path: Path) -> Iterator[JsonlAppender]:
    opened = JsonlAppender(path)
    yield opened
    opened.close()


class _Fault:
    """A system call that fails with an error the next `times` times."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, code: int) -> None:
        self.times = 0
        self.calls = 0
        self._code = code
        self._real = getattr(os, name)
        patch.setattr(os, name, self)

    def __call__(self, *arguments: object) -> object:
        self.calls += 1
        if self.times <= 0:
            return self._real(*arguments)
        self.times -= 1
        self._before_failing(*arguments)
        raise OSError(self._code, os.strerror(self._code))

    def _before_failing(self, *arguments: object) -> None:
        """Leave something behind."""


class _DiskFull(_Fault):
    """A write that puts half of its bytes on disk before it fails."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch, "write", errno.ENOSPC)

    def _before_failing(self, *arguments: object) -> None:
        fd, data = arguments
        assert isinstance(data, memoryview)
        self._real(fd, data[: len(data) // 2])


def test_rows_are_appended(appender: JsonlAppender, path: Path) -> None:
    appender.append(b"one\n")
    assert path.read_bytes() == b"one\n"
    appender.append(b"")
    appender.append(b"two\nthree\n")
    assert path.read_bytes() == b"one\ntwo\nthree\n"


def test_only_its_owner_may_read_a_session(appender: JsonlAppender, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not os.get_inheritable(appender._fd)


def test_an_append_is_synced_before_it_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = _Fault(monkeypatch, "fsync", errno.EIO)
    opened = JsonlAppender(path)
    assert sync.calls == 1  # the folder, which holds the file's name
    opened.append(b"one\n")
    assert sync.calls == 2
    opened.append(b"two\n")
    assert sync.calls == 3
    opened.close()


def test_short_writes_are_completed(
    appender: JsonlAppender, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    appender.append(b"0123456789\n")
    assert path.read_bytes() == b"0123456789\n"


def test_an_existing_file_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"old")
    with pytest.raises(StoreError, match=r"session\.jsonl: cannot create: File exists"):
        JsonlAppender(path)
    assert path.read_bytes() == b"old"


def test_a_dangling_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="cannot create"):
        JsonlAppender(path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"gone.s\.jsonl: cannot create: No such file"):
        JsonlAppender(tmp_path / "gone" / "s.jsonl")


def test_a_file_whose_name_is_not_durable_is_taken_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors = _descriptors()
    sync = _Fault(monkeypatch, "fsync", errno.EIO)
    sync.times = 1
    with pytest.raises(StoreError, match="cannot create: Input/output error"):
        JsonlAppender(path)
    assert not path.exists()
    assert _descriptors() == descriptors
    JsonlAppender(path).close()


def _descriptors() -> set[int]:
    return {fd for fd in range(64) if _is_open(fd)}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_a_full_disk_leaves_no_half_row(
    appender: JsonlAppender, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults F2 and F6: later rows follow whole ones, without a hole between."""
    appender.append(b"one\n")
    disk = _DiskFull(monkeypatch)
    disk.times = 1
    with pytest.raises(StoreError, match=r"session\.jsonl: cannot append: No space"):
        appender.append(b"lost row\n")
    assert path.read_bytes() == b"one\n"
    appender.append(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_failed_sync_takes_the_rows_back(
    appender: JsonlAppender, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender.append(b"one\n")
    sync = _Fault(monkeypatch, "fsync", errno.EIO)
    sync.times = 1
    with pytest.raises(StoreError, match="cannot append: Input/output error"):
        appender.append(b"lost\n")
    assert path.read_bytes() == b"one\n"
    appender.append(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_failed_rollback_is_told_and_made_good_before_the_next_append(
    appender: JsonlAppender, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender.append(b"one\n")
    disk = _DiskFull(monkeypatch)
    truncate = _Fault(monkeypatch, "ftruncate", errno.EIO)
    disk.times, truncate.times = 1, 2
    with pytest.raises(StoreError) as caught:
        appender.append(b"lost\n")
    for words in ("session.jsonl", "No space left", "4 bytes", "Input/output error"):
        assert words in str(caught.value)
    assert path.read_bytes() == b"one\nlo"
    with pytest.raises(StoreError, match="an earlier append failed"):
        appender.append(b"two\n")
    assert path.read_bytes() == b"one\nlo"
    appender.append(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_an_interrupted_append_is_taken_back_by_the_next(
    appender: JsonlAppender, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            appender.append(b"not known to be durable\n")
    appender.append(b"one\n")
    assert path.read_bytes() == b"one\n"


def _interrupt(_: int) -> None:
    raise KeyboardInterrupt


_LOG = b'{"type":"session","id":"s"}\n{"type":"x","data":1}\n'


def test_a_file_is_read_under_its_name(path: Path) -> None:
    path.write_bytes(_LOG)
    read = read_file(path)
    assert (read.name, read.header.id, len(read.events)) == ("session.jsonl", "s", 1)
    assert read_file(path, "root").place(0) == "root line 2 (event 0)"
    assert path.read_bytes() == _LOG


def test_a_bad_file_is_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"^session\.jsonl: No such file"):
        read_file(path)
    with pytest.raises(UnreadableError, match=r"^root: No such file"):
        read_file(path, "root")
    with pytest.raises(UnreadableError, match="Is a directory"):
        read_file(tmp_path)
    path.write_bytes(_LOG + b"torn")
    with pytest.raises(UnreadableError, match=r"^session\.jsonl line 3: not JSON"):
        read_file(path)
