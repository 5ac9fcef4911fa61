"""Faults that people have met: a log that may no longer be written, while it runs."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from nestling.session.errors import LeaseError, StoreError
from nestling.session.event import Event
from support.session_logs import LogWriter
from support.stores import DURABLE, Place, exact, header

_NOBODY: Final = 65534


@pytest.fixture(params=DURABLE)
def ordinary(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where a store can be of a user whom permission bits concern, unlike root."""
    # All that is imported when it is needed: that user may not be allowed to read it.
    _began(Place(request.param, tmp_path))
    # Not below root's own directories, which nobody else may enter.
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    if not os.geteuid():
        os.chown(folder, _NOBODY, -1)
    try:
        yield Place(request.param, folder)
    finally:
        shutil.rmtree(folder)


@contextmanager
def _bound_by_modes() -> Iterator[None]:
    """Act as an ordinary user."""
    is_root = not os.geteuid()
    try:
        if is_root:
            os.seteuid(_NOBODY)
    except OSError as error:
        pytest.skip(f"root cannot act as somebody else here: {error}")
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def _turns(count: int) -> list[Event]:
    log = LogWriter()
    for _ in range(count):
        log.answered_turn("q", "a")
    return log.events


def _log(place: Place) -> Path:
    return place.path / "s" / "session.jsonl" if place.scheme == "jsonl" else place.path


def _began(place: Place) -> tuple[list[Event], list[Event]]:
    """Store a first turn; return it and a second one."""
    both, length = _turns(2), len(_turns(1))
    with place.open() as store:
        store.create(header())
        store.append("s", both[:length])
    return both[:length], both[length:]


def test_a_log_that_may_no_longer_be_written(ordinary: Place) -> None:
    """A writer that has not opened it yet is told so, and goes on once it may."""
    with _bound_by_modes():
        first, second = _began(ordinary)
        file = _log(ordinary)
        before = file.read_bytes()
        with ordinary.open() as store:
            if ordinary.scheme == "jsonl":
                store.resume("s")
            file.chmod(0o444)
            for _ in range(2):
                with pytest.raises(StoreError, match=str(ordinary.path)) as caught:
                    store.append("s", second)
                assert not isinstance(caught.value, LeaseError)
                told = str(caught.value)
                assert "Permission denied" in told or "readonly" in told, told
                assert "\n" not in told
            assert file.read_bytes() == before
            assert exact(store.read_from("s", 0)) == exact(first)
            file.chmod(0o644)
            if ordinary.scheme == "jsonl":
                store.append("s", second)
        with ordinary.open() as store:
            # What SQLite could open only to be read, it does not open again; and what it
            # then made beside the file stays as the file was.
            if ordinary.scheme == "sqlite":
                for beside in (f"{file}-shm", f"{file}-wal"):
                    if os.path.exists(beside):
                        os.chmod(beside, 0o644)
                store.append("s", second)
            assert exact(store.load("s").events) == exact(first + second)


def test_a_log_that_is_open_already_goes_on(ordinary: Place) -> None:
    """Permissions are asked for when a file is opened; its writer has it open."""
    with _bound_by_modes():
        first, second = _began(ordinary)
        with ordinary.open() as store, ordinary.open() as late:
            store.append("s", second[:1])
            _log(ordinary).chmod(0o444)
            store.append("s", second[1:])
            assert exact(store.read_from("s", 0)) == exact(first + second)
            store.release("s")
            more = _turns(3)[len(first) + len(second) :]
            with pytest.raises(StoreError, match=str(ordinary.path)):
                late.append("s", more)
            assert exact(late.read_from("s", 0)) == exact(first + second)
            _log(ordinary).chmod(0o644)


def test_a_directory_that_may_no_longer_be_written(ordinary: Place) -> None:
    """What is there can go on, where that needs no new file; there is no new session."""
    with _bound_by_modes():
        first, second = _began(ordinary)
        folder = ordinary.path if ordinary.scheme == "jsonl" else ordinary.path.parent
        with ordinary.open() as store:
            store.append("s", second[:1])
            store.create(header("t"))
            folder.chmod(0o555)
            try:
                store.append("s", second[1:])
                if ordinary.scheme == "jsonl":
                    with pytest.raises(StoreError, match=r"/t: .*Permission denied$"):
                        store.append("t", first)
            finally:
                folder.chmod(0o755)
            store.append("t", first)
        with ordinary.open() as store:
            assert exact(store.load("s").events) == exact(first + second)
            assert exact(store.load("t").events) == exact(first)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_file_system_that_became_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The same for a log of lines, whoever runs the test."""
    place = Place("jsonl", tmp_path)
    first, second = _began(place)
    before, real = _log(place).read_bytes(), os.open

    def refusing(path: Any, flags: int, *more: Any, **others: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).endswith(".jsonl"):
            raise OSError(code, os.strerror(code))
        return real(path, flags, *more, **others)

    with place.open() as store:
        store.resume("s")
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refusing)
            for _ in range(2):
                with pytest.raises(StoreError) as caught:
                    store.append("s", second)
                told = f"{_log(place)}: cannot append: {os.strerror(code)}"
                assert str(caught.value) == told
        assert _log(place).read_bytes() == before
        store.append("s", second)
    with place.open() as store:
        assert exact(store.load("s").events) == exact(first + second)
