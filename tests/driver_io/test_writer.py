"""The writer: what it says is durable is on disk, and what fails fails closed."""

from __future__ import annotations

import errno
import os
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from nestling.driver.hub_io import Bounds
from nestling.driver.instructions import Durable, NotDurable, Persist
from nestling.driver.store_io import Writer
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from nestling.session.errors import StoreError
from nestling.session.event import Event
from nestling.session.header import header_from_row
from nestling.session.jsonl_io import JsonlAppender, read_file
from support.processes import needs_linux
from support.runs import kinds
from support.scenarios import MIXED

Outcomes = queue.SimpleQueue[Durable | NotDurable]


@contextmanager
def _writing(folder: Path) -> Iterator[tuple[Writer, Outcomes]]:
    outcomes: Outcomes = queue.SimpleQueue()
    writer = Writer(folder, outcomes.put)
    try:
        yield writer, outcomes
    finally:
        writer.close()


def _batch(sid: int, first: int, length: int, *, has_header: bool = False) -> Persist:
    header = header_from_row(
        {"type": "session", "version": 0, "id": f"s{sid}", "createdAt": 1}
    )
    events = tuple(Event(seq, "note", 1, seq) for seq in range(first, length))
    return Persist(sid, header if has_header else None, events, length)


def test_batches_are_written_in_order(tmp_path: Path) -> None:
    with _writing(tmp_path) as (writer, outcomes):
        writer.write(_batch(0, 0, 2, has_header=True))
        assert outcomes.get(timeout=20) == Durable(0, 2)
        writer.write(_batch(1, 0, 0, has_header=True))
        assert outcomes.get(timeout=20) == Durable(1, 0)
        for first in range(2, 50):
            writer.write(_batch(0, first, first + 1))
        last = None
        while last != Durable(0, 50):
            last = outcomes.get(timeout=20)
    assert len(read_file(tmp_path / "0000.jsonl").events) == 50
    assert read_file(tmp_path / "0001.jsonl").header.id == "s1"


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    with _writing(tmp_path) as (writer, _):
        writer.write(_batch(0, 0, 1, has_header=True))
        writer.write(_batch(0, 1, 9))
    assert len(read_file(tmp_path / "0000.jsonl").events) == 9


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (StoreError("the disk is gone"), "the disk is gone"),
        (MemoryError("no room"), "MemoryError('no room')"),
    ],
)
def test_a_session_that_failed_once_stays_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str
) -> None:
    append = JsonlAppender.append

    def fail_once(self: JsonlAppender, rows: bytes) -> None:
        monkeypatch.setattr(JsonlAppender, "append", append)
        raise error

    with _writing(tmp_path) as (writer, outcomes):
        monkeypatch.setattr(JsonlAppender, "append", fail_once)
        writer.write(_batch(0, 0, 1, has_header=True))
        assert outcomes.get(timeout=20) == NotDurable(0, problem)
        writer.write(_batch(0, 1, 2))
        outcome = outcomes.get(timeout=20)
        assert outcome == NotDurable(0, "an earlier write of this session failed")
        writer.write(_batch(1, 0, 1, has_header=True))
        assert outcomes.get(timeout=20) == Durable(1, 1)


def test_a_file_that_cannot_be_created(tmp_path: Path) -> None:
    with _writing(tmp_path / "gone") as (writer, outcomes):
        writer.write(_batch(0, 0, 1, has_header=True))
        outcome = outcomes.get(timeout=20)
    assert isinstance(outcome, NotDurable)
    assert "cannot create: No such file or directory" in outcome.problem


def test_few_files_are_open_at_a_time(tmp_path: Path) -> None:
    """However many sessions there are, and each goes on where it was."""
    with _writing(tmp_path) as (writer, outcomes):
        for length in range(1, 4):
            for sid in range(12):
                writer.write(_batch(sid, length - 1, length, has_header=length == 1))
                assert outcomes.get(timeout=20) == Durable(sid, length)
                assert _open_in(tmp_path) == min(12 * (length - 1) + sid + 1, 4)
    assert _open_in(tmp_path) == 0
    for sid in range(12):
        assert len(read_file(tmp_path / f"{sid:04}.jsonl").events) == 3


def _open_in(folder: Path) -> int:
    fds = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sum(os.path.realpath(fd).startswith(f"{folder}/") for fd in fds)


def test_a_file_that_cannot_be_opened_again(tmp_path: Path) -> None:
    with _writing(tmp_path) as (writer, outcomes):
        for sid in range(5):
            writer.write(_batch(sid, 0, 1, has_header=True))
            assert outcomes.get(timeout=20) == Durable(sid, 1)
        (tmp_path / "0000.jsonl").unlink()
        writer.write(_batch(0, 1, 2))
        outcome = outcomes.get(timeout=20)
    assert isinstance(outcome, NotDurable)
    assert "cannot open again: No such file or directory" in outcome.problem


# --- in a run ------------------------------------------------------------------


def _no_space(self: JsonlAppender, rows: bytes) -> None:
    raise StoreError(f"{self._path.name}: cannot append: No space left on device")


def _unexpected(self: JsonlAppender, rows: bytes) -> None:
    raise RuntimeError("nobody foresaw this")


@needs_linux
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("fail", [_no_space, _unexpected])
@pytest.mark.parametrize(("sid", "after"), [(0, 0), (0, 2), (1, 0), (1, 2)])
async def test_a_store_that_fails_for_one_session(
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[[JsonlAppender, bytes], None],
    sid: int,
    after: int,
) -> None:
    append, count = JsonlAppender.append, 0

    def failing(self: JsonlAppender, rows: bytes) -> None:
        nonlocal count
        if self._path.name == f"{sid:04}.jsonl":
            count += 1
            if count > after:
                fail(self, rows)
        append(self, rows)

    monkeypatch.setattr(JsonlAppender, "append", failing)
    with anyio.fail_after(20):
        report = await replay(load_scenario(MIXED), Bounds(5, 20))
    path = ("/", "/t2s1b1")[sid]
    assert kinds(report.problems)[0] == ("worker-lost", path)
    cause = "No space left" if fail is _no_space else "nobody foresaw this"
    assert cause in report.problems[0].message
    if after == 0:
        assert report.accounts[path].served == 0


@needs_linux
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own error for one file; the other session is not touched."""
    write, name = os.write, "0001.jsonl"

    def full(fd: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data)

    monkeypatch.setattr(os, "write", full)
    with anyio.fail_after(20):
        report = await replay(load_scenario(MIXED), Bounds(5, 20))
    assert kinds(report.problems) == [("worker-lost", "/t2s1b1"), ("log-differs", "/")]
    assert "No space left on device" in report.problems[0].message
