"""Stores whose log is being taken into the file, was so in part, or is left as it is."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from nestling.session import sqlite_connection_io, sqlite_file_io
from nestling.session.store_backend import Write
from support.processes import environment_with_tests, needs_linux
from support.session_logs import rows
from support.sqlite_child import MANY
from support.sqlite_processes import child, path
from support.sqlite_stores import (
    header,
    held,
    more,
    notes,
    opened,
    print_of,
    put,
    raw,
    tamper,
    turns,
)

__all__ = ["path"]

LENGTH = len(turns(1))
WRITTEN = notes(range(MANY), "x" * 1000)


def is_cut(path: Path) -> bool:
    """Tell whether the head counts pages that the file does not have."""
    data = path.read_bytes()
    return int.from_bytes(data[28:32]) * 4096 > len(data)


@needs_linux
@pytest.mark.parametrize("how", ["killed", "full"])
def test_a_checkpoint_that_was_cut_short_is_no_damage(path: Path, how: str) -> None:
    """What the file lacks is in the log still; so SQLite reads it, and so do we."""
    with child("cut_checkpoint", path, how) as writer:
        assert writer.end() == (-signal.SIGXFSZ if how == "killed" else 0)
    assert is_cut(path)
    with opened(path) as backend:
        assert rows(held(backend).events) == rows(WRITTEN)
    with opened(path) as backend:
        more(backend, "s", notes([MANY]))
        assert len(held(backend).events) == MANY + 1
    with raw(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@needs_linux
def test_a_checkpoint_under_way_is_no_damage(path: Path) -> None:
    """Another process has taken a part of the log into the file, and goes on."""
    with child("cut_checkpoint", path, "under way") as writer:
        assert writer.lines.next() == "under way"
        assert is_cut(path)
        with opened(path) as backend:
            assert rows(held(backend).events) == rows(WRITTEN)
            writer.tell()
            assert writer.end() == 0
            assert len(held(backend).events) == MANY + 1


def test_a_store_is_opened_while_another_process_writes_much(path: Path) -> None:
    """At any moment of its checkpoints, over and over until it has ended."""
    with child("write_much", path, "12") as writer:
        assert writer.lines.next() == "ready"
        while writer.process.poll() is None:
            with opened(path, 30) as backend:
                assert [one.id for one in backend.sessions()] == ["s"]
        assert writer.end() == 0
    with opened(path) as backend:
        assert len(held(backend).events) == 1 + 12 * 300


# --- looking writes nothing -----------------------------------------------------


def look(path: Path) -> None:
    """Do all that only reads."""
    with opened(path) as backend:
        assert [one.id for one in backend.sessions()] == ["s"]
        assert len(held(backend).events) == LENGTH
        assert len(backend.read_from("s", 1) or ()) == LENGTH - 1
        assert backend.revision("s") is not None
        assert backend.children("s") == []
        assert backend.delete("t") is False


def made(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", turns(1))


def without_index(path: Path) -> dict[str, str]:
    found = print_of(path)
    found.pop(f"{path.name}-shm", None)
    return found


@pytest.mark.parametrize("has_index", [True, False])
def test_looking_leaves_a_killed_writers_file_and_log(
    path: Path, has_index: bool
) -> None:
    """They may be all that tells what happened; the next writer takes the log in."""
    made(path)
    with child("leave_log", path, "UPDATE sessions SET cwd = '/hot'") as writer:
        writer.end()
    if not has_index:
        Path(f"{path}-shm").unlink()
    before = without_index(path)
    assert before.keys() == {path.name, f"{path.name}-wal"}
    for _ in range(2):
        look(path)
        assert without_index(path) == before
    with opened(path) as backend:
        assert held(backend).header.fields == {"cwd": "/hot"}
        more(backend, "s", notes([LENGTH]))
    assert print_of(path).keys() == {path.name}
    assert print_of(path) != before


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_looking_leaves_nothing_beside_a_store(path: Path, mode: str) -> None:
    made(path)
    tamper(path, f"PRAGMA journal_mode = {mode}")
    before = print_of(path)
    look(path)
    assert print_of(path) == before


def test_looking_uses_what_cannot_write(path: Path) -> None:
    """Until a write is asked for."""
    made(path)
    with opened(path) as backend:
        held(backend)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            backend._store._connection.execute("DELETE FROM events")
        more(backend, "s", notes([LENGTH]))
        held(backend)
        more(backend, "s", notes([LENGTH + 1]))


def test_a_reader_that_writes_waits_for_its_turn_as_before(path: Path) -> None:
    """What it has read is still what it continues, after it was opened to write."""
    made(path)
    with opened(path) as backend, opened(path) as other:
        held(backend)
        more(other, "s", notes([LENGTH]))
        [error] = backend.write([Write(header(), notes([LENGTH + 1]), False)])
        assert "has changed since" in str(error)
        assert len(held(backend).events) == LENGTH + 1
        more(backend, "s", notes([LENGTH + 1]))


def test_a_file_that_is_replaced_before_the_first_write_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(path)
    other = path.with_name("other.db")
    made(other)
    with opened(path) as backend:
        held(backend)

        def look_at(*arguments: str) -> object:
            found = real_look(*arguments)
            monkeypatch.setattr(sqlite_connection_io, "look_at", real_look)
            other.replace(path)
            return found

        real_look = sqlite_file_io.look_at
        monkeypatch.setattr(sqlite_connection_io, "look_at", look_at)
        [error] = backend.write([Write(header(), notes([LENGTH]), False)])
        assert "removed or replaced" in str(error)


# --- where nothing can be written -------------------------------------------------

LOOK = """
import sys
from pathlib import Path
from nestling.session.errors import StoreError
from nestling.session.store_backend import Write
from support.sqlite_stores import header, held, notes, opened
with opened(Path(sys.argv[1])) as backend:
    try:
        for _ in range(2):
            print(len(held(backend).events), held(backend).header.fields.get("cwd"))
        [error] = backend.write([Write(header(), notes([99]), False)])
        print(error)
    except StoreError as error:
        print(error)
"""


def looked_at_on_a_read_only_medium(path: Path) -> list[str]:
    """Return what a process says that sees the store's directory mounted so."""
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77; '
    found = subprocess.run(
        [
            *("unshare", "-rm", "sh", "-c", mount + 'exec "$2" -c "$3" "$4"', "sh"),
            *(str(path.parent), sys.executable, LOOK, str(path)),
        ],
        env=environment_with_tests(),
        capture_output=True,
        timeout=50,
        check=False,
    )
    if found.returncode == 77 or found.stderr.startswith(b"unshare: "):
        pytest.skip(f"NOT TESTED: no read-only mounts here: {found.stderr!r}")
    assert (found.returncode, found.stderr) == (0, b"")
    return found.stdout.decode().splitlines()


@needs_linux
@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_store_on_a_read_only_medium_can_be_looked_at(path: Path, mode: str) -> None:
    made(path)
    tamper(path, f"PRAGMA journal_mode = {mode}")
    before = print_of(path)
    *told, error = looked_at_on_a_read_only_medium(path)
    assert told == [f"{LENGTH} None"] * 2
    assert error.startswith(f"sqlite:{path}: cannot write: ")
    assert print_of(path) == before


@needs_linux
@pytest.mark.parametrize("has_index", [True, False])
def test_a_log_on_a_read_only_medium(path: Path, has_index: bool) -> None:
    """It is read with the index that is there; without one it is not passed over."""
    made(path)
    with child("leave_log", path, "UPDATE sessions SET cwd = '/hot'") as writer:
        writer.end()
    if not has_index:
        Path(f"{path}-shm").unlink()
    before = print_of(path)
    told = looked_at_on_a_read_only_medium(path)
    if has_index:
        assert told[:-1] == [f"{LENGTH} /hot"] * 2
    else:
        assert len(told) == 1
        assert "unfinished log, which can only be read where" in told[0]
    assert print_of(path) == before
