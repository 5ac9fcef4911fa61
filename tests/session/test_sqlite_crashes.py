"""Writers that are killed, that have no room, that wait for each other, that fork."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from nestling.session import sqlite_connection_io, sqlite_file_io
from nestling.session.errors import StoreError
from nestling.session.sqlite_backend_io import SqliteBackend
from nestling.session.store_backend import Write
from support.processes import needs_linux
from support.session_logs import rows
from support.sqlite_child import BOUNDARIES, on_statement
from support.sqlite_processes import child, path
from support.sqlite_stores import (
    header,
    held,
    more,
    notes,
    opened,
    put,
    raw,
    ready_to_write,
    tamper,
    turns,
)

__all__ = ["path"]

LENGTH = len(turns(1))


def made(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", turns(1))


def is_complete(path: Path) -> bool:
    """Tell whether both sessions were written; if not, neither was."""
    with opened(path) as backend:
        first, second = held(backend), backend.read("t")
        assert first.tail is None
        assert rows(first.events[:LENGTH]) == rows(turns(1))
        if second is None:
            assert len(first.events) == LENGTH
        else:
            assert len(first.events) == LENGTH + 4
            assert rows(second.events) == rows(turns(1))
        more(backend, "s", notes([len(first.events)]))
    with raw(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return second is not None


# --- killed -----------------------------------------------------------------------


@needs_linux
@pytest.mark.parametrize("boundary", [*BOUNDARIES, "after commit"])
def test_a_killed_writer_leaves_all_or_nothing(path: Path, boundary: str) -> None:
    """And a hot log, which the next one takes over."""
    made(path)
    with child("die", path, boundary) as writer:
        assert writer.end() == -signal.SIGKILL
    assert Path(f"{path}-wal").exists()
    assert is_complete(path) == (boundary == "after commit")


@needs_linux
@pytest.mark.parametrize(
    "allowed", [1, 24, 40, 4000, 4120, 4150, 8300, 20_000, 400_000]
)
def test_a_writer_killed_in_its_commit_leaves_all_or_nothing(
    path: Path, allowed: int
) -> None:
    """The kernel ends it in the middle of a write, after so many bytes."""
    made(path)
    with opened(path) as other:
        # Somebody else has the log open, so that it is not made anew.
        more(other, "s", notes([LENGTH]))
        other.delete("s")
        put(other, "s", turns(1))
        with child("die_in_commit", path, str(allowed)) as writer:
            code = writer.end()
    assert code in (-signal.SIGXFSZ, 0)
    assert is_complete(path) == (code == 0)
    assert (code == 0) == (allowed == 400_000)


SIZES = [0, 1, 50, 100, 511, 512, 600, 4000, 4096, 4097, 8000, 8192, 12_288, 20_480]


@needs_linux
@pytest.mark.parametrize("allowed", [*SIZES, 24_576, 32_767, 400_000])
@pytest.mark.parametrize("is_read_first", [True, False])
def test_a_killed_maker_leaves_a_fresh_file_or_a_store(
    path: Path, allowed: int, is_read_first: bool
) -> None:
    """Whatever part of it was written; a reader makes nothing of it."""
    with child("die_making", path, str(allowed)) as maker:
        code = maker.end()
    assert code == (0 if allowed == 400_000 else -signal.SIGXFSZ)
    with opened(path) as backend:
        if is_read_first:
            assert len(backend.sessions()) == (code == 0)
        put(backend, "t", turns(1))
        assert rows(held(backend, "t").events) == rows(turns(1))


def test_a_hot_log_is_taken_over(path: Path) -> None:
    """What was committed is in the log only, and is there again."""
    made(path)
    size = path.stat().st_size
    change = "UPDATE sessions SET cwd = '/hot'"
    with child("leave_log", path, change) as writer:
        writer.end()
    assert path.stat().st_size == size
    with opened(path) as backend:
        assert held(backend).header.fields == {"cwd": "/hot"}


def test_a_store_whose_maker_died_before_the_log_is_finished(path: Path) -> None:
    """It is ours already, but still in rollback-journal mode."""
    made(path)
    tamper(path, "PRAGMA journal_mode = DELETE")
    with opened(path) as backend:
        more(backend, "s", notes([LENGTH]))
        assert Path(f"{path}-wal").exists()


@pytest.mark.parametrize(
    "statement", ["BEGIN", "CREATE TABLE events", "PRAGMA user_version = 4", "COMMIT"]
)
def test_a_maker_that_fails_leaves_a_fresh_file(
    path: Path, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sqlite_file_io.run

    def run(connection: object, name: str, values: object = ()) -> object:
        if sqlite_file_io.statements()[name].startswith(statement):
            raise StoreError("stopped here")
        return real(connection, name, values)  # type: ignore[arg-type]

    with opened(path) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_file_io, "run", run)
            patch.setattr(sqlite_connection_io, "run", run)
            [error] = backend.write([Write(header(), turns(1), True)])
        assert "stopped here" in str(error)
        assert path.read_bytes() == b""
        assert [found.name for found in path.parent.iterdir()] == [path.name]
        put(backend, "s", turns(1))


# --- no room ------------------------------------------------------------------------


@needs_linux
@pytest.mark.parametrize("allowed", [0, 100, 4120, 12_000])
def test_no_room_leaves_nothing_half_written(path: Path, allowed: int) -> None:
    """F6: both sessions fail, both are as they were, and all is well with room."""
    made(path)
    with opened(path) as other:
        put(other, "u", turns(1))
        with child("fill", path, str(allowed)) as writer:
            told = [writer.lines.next() for _ in range(4)]
            # SQLite reports an error of the disk, after which it is opened anew.
            assert writer.lines.next() == "opened anew"
            assert writer.end() == 0
        assert len(held(other, "s").events) == LENGTH + 4
    for line in told[:2]:
        assert line.startswith(f"StoreError: sqlite:{path}: cannot write: ")
    assert told[2:] == [f"{LENGTH} None", "[None, None]"]
    assert is_complete(path)


def test_a_full_database_fails_every_session_of_the_commit(path: Path) -> None:
    """F6: SQLITE_FULL; the connection that met it goes on."""
    with opened(path) as backend:
        put(backend, "s", turns(1))
        connection = backend._store._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        writes = [
            Write(header("s"), notes([LENGTH]), False),
            Write(header("t"), notes(range(20), "x" * 3000), True),
        ]
        results = backend.write(writes)
        assert [type(result) for result in results] == [StoreError, StoreError]
        assert all("database or disk is full" in str(result) for result in results)
        assert results[0] is not results[1]
        assert len(held(backend).events) == LENGTH
        assert backend.read("t") is None
        connection.execute("PRAGMA max_page_count = 100000")
        assert backend._store._connection is connection
        assert backend.write(writes) == [None, None]


# --- others -------------------------------------------------------------------------


def test_two_processes_write_at_once(path: Path) -> None:
    """F5: also when both make the store; each event is there once."""
    count = 40
    with (
        child("append", path, "a", str(count)) as a,
        child("append", path, "b", str(count)) as b,
    ):
        for writer in (a, b):
            assert writer.lines.next() == "ready"
        for writer in (a, b):
            writer.tell()
        for writer in (a, b):
            assert writer.lines.next(50) == "done"
            assert writer.end() == 0
    with opened(path) as backend:
        for session_id in ("a", "b"):
            assert rows(held(backend, session_id).events) == rows(notes(range(count)))


def test_many_threads_make_a_store_at_once(path: Path) -> None:
    barrier = threading.Barrier(4)

    def make(session_id: str) -> None:
        with opened(path, 30) as backend:
            barrier.wait()
            put(backend, session_id, turns(1))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(make, "abcd"))
    with opened(path) as backend:
        assert [one.id for one in backend.sessions()] == list("abcd")


def test_a_writer_waits_for_another_process(path: Path) -> None:
    """S5: it goes on as soon as the other lets go."""
    made(path)
    with opened(path, 30) as backend, ExitStack() as stack:
        ready_to_write(backend)
        holder = stack.enter_context(child("hold", path, "BEGIN IMMEDIATE"))
        assert holder.lines.next() == "held"
        held(backend)  # readers do not wait
        on_statement(backend, "BEGIN IMMEDIATE", 1, holder.tell)
        more(backend, "s", notes([LENGTH]))
        assert holder.lines.next() == "let go"


def test_a_writer_that_waited_long_enough_fails(path: Path) -> None:
    """And is well again afterwards."""
    made(path)
    writes = [
        Write(header("s"), notes([LENGTH]), False),
        Write(header("t"), turns(1), True),
    ]
    with child("hold", path, "BEGIN IMMEDIATE") as holder, opened(path, 0) as backend:
        assert holder.lines.next() == "held"
        for result in backend.write(writes):
            assert f"{path}: cannot write: database is locked" in str(result)
        found = held(backend)
        with pytest.raises(StoreError, match="cannot repair session 's': database is"):
            backend.repair(found, notes([LENGTH]))
        with pytest.raises(StoreError, match="cannot delete session 's': database is"):
            backend.delete("s")
        holder.tell()
        assert holder.lines.next() == "let go"
        assert backend.write(writes) == [None, None]


READING = ("BEGIN", "SELECT * FROM sessions")


@pytest.mark.parametrize(
    ("holding", "waits_in", "switches"),
    [(["BEGIN IMMEDIATE"], "begin_alone", 2), (READING, "set_journal_wal", 1)],
    ids=["a writer", "a reader"],
)
def test_the_switch_to_the_log_waits_for_others(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    holding: Sequence[str],
    waits_in: str,
    switches: int,
) -> None:
    """S10, S13: at the pace of SQLite's own waiting, not over and over."""
    made(path)
    tamper(path, "PRAGMA journal_mode = DELETE")
    ran: list[str] = []
    with child("hold", path, *holding) as holder, opened(path, 30) as backend:
        real = sqlite_file_io.run

        def run(connection: object, name: str, values: object = ()) -> object:
            if name == waits_in and name not in ran:
                holder.tell()
            ran.append(name)
            return real(connection, name, values)  # type: ignore[arg-type]

        monkeypatch.setattr(sqlite_connection_io, "run", run)
        assert holder.lines.next() == "held"
        more(backend, "s", notes([LENGTH]))
        assert holder.lines.next() == "let go"
    assert ran.count("set_journal_wal") == switches


@pytest.mark.parametrize("holding", [["BEGIN IMMEDIATE"], READING])
def test_the_switch_to_the_log_gives_up_in_time(
    path: Path, holding: Sequence[str]
) -> None:
    """S12."""
    made(path)
    tamper(path, "PRAGMA journal_mode = DELETE")
    with child("hold", path, *holding) as holder:
        assert holder.lines.next() == "held"
        with opened(path, 0) as backend:
            [error] = backend.write([Write(header(), notes([LENGTH]), False)])
            assert "cannot write: database is locked" in str(error)
            holder.tell()
            assert holder.lines.next() == "let go"
            more(backend, "s", notes([LENGTH]))


def test_no_switch_to_the_log_starts_after_the_time_is_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12: the time counts from the opening, not from each try."""
    made(path)
    tamper(path, "PRAGMA journal_mode = DELETE")
    ran: list[str] = []

    def run(connection: object, name: str, values: object = ()) -> object:
        ran.append(name)
        if name == "set_journal_wal":
            name = "begin_alone"  # busy, as long as the other one writes
        return real(connection, name, values)  # type: ignore[arg-type]

    real = sqlite_file_io.run
    monkeypatch.setattr(sqlite_connection_io, "run", run)
    with child("hold", path, "BEGIN IMMEDIATE") as holder, opened(path, 0) as backend:
        assert holder.lines.next() == "held"
        [error] = backend.write([Write(header(), notes([LENGTH]), False)])
        assert "database is locked" in str(error)
    assert ran.count("begin_alone") == 0


def test_only_a_busy_switch_is_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S11; and a file system that cannot have a log is named as what it is."""
    made(path)
    tamper(path, "PRAGMA journal_mode = DELETE")
    sql = sqlite_file_io.statements()
    ran: list[str] = []

    def run(connection: object, name: str, values: object = ()) -> object:
        ran.append(name)
        # Without the guard this would go on for ever.
        assert ran.count("set_journal_wal") < 3
        return real(connection, name, values)  # type: ignore[arg-type]

    real = sqlite_file_io.run
    with opened(path) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_connection_io, "run", run)
            patch.setitem(sql, "set_journal_wal", "SELECT no_such_column")
            [error] = backend.write([Write(header(), notes([LENGTH]), False)])
            assert "no such column" in str(error)
            assert ran.count("begin_alone") == 0
            patch.setitem(sql, "set_journal_wal", "PRAGMA journal_mode = TRUNCATE")
            [error] = backend.write([Write(header(), notes([LENGTH]), False)])
            assert "journal_mode at b'truncate'" in str(error)
        more(backend, "s", notes([LENGTH]))


# --- forks --------------------------------------------------------------------------


@needs_linux
def test_a_forked_child_leaves_its_parents_store_alone(path: Path) -> None:
    """Neither what it inherited nor a new one: the locks are the parent's."""
    with child("fork", path) as forking:
        told = [forking.lines.next() for _ in range(3)]
        assert forking.end() == 0
    assert all("was forked from" in line for line in told[:2])
    assert told[2] == "parent: written"
    with opened(path) as backend:
        assert len(held(backend).events) == LENGTH + 1


def test_another_backend_of_this_process_keeps_its_locks(path: Path) -> None:
    """Opening and closing must not take the first one's POSIX locks away.

    A process that closes any descriptor of a file loses its locks on it; the next
    other process would then believe itself alone, and remove the log when it ends.
    """
    with opened(path) as first:
        put(first, "s", turns(1))
        with opened(path) as second:
            held(second)
        with child("hold", path, "BEGIN IMMEDIATE") as other:
            assert other.lines.next() == "held"
            other.tell()
            other.end()
        assert Path(f"{path}-wal").stat().st_size > 0
        more(first, "s", notes([LENGTH]))
        assert len(held(first).events) == LENGTH + 1


def test_close_may_be_called_again(path: Path) -> None:
    backend = SqliteBackend(path)
    backend.close()
    put(backend, "s", turns(1))
    backend.close()
    backend.close()
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    assert len(held(backend).events) == LENGTH
    backend.close()
