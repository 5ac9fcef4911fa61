"""What is no store of ours is refused, and left as it was found to the last byte."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from nestling.session import sqlite_connection_io, sqlite_file_io
from nestling.session.errors import CorruptError, StoreError, UnsupportedError
from nestling.session.sqlite_backend_io import SqliteBackend
from nestling.session.store_backend import Write
from support.sqlite_processes import child, path
from support.sqlite_stores import (
    header,
    held,
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
NEW = [Write(header("new"), turns(1), True)]
STAMP = "PRAGMA application_id = 0x4E455354"


def refused(path: Path, kind: type[StoreError], *words: str) -> None:
    """Reading and writing are refused alike, and nothing has changed."""
    before = print_of(path)
    for _ in range(2):
        with opened(path) as backend:
            with pytest.raises(StoreError) as caught:
                backend.read("s")
            [error] = backend.write(NEW)
            for found in (caught.value, error):
                assert type(found) is kind, found
                assert all(word in str(found) for word in (*words, str(path)))
    assert print_of(path) == before


def made(path: Path, *statements: str) -> None:
    """A store of ours, closed, then changed by another program."""
    with opened(path) as backend:
        put(backend, "s", turns(1))
    tamper(path, *statements)


# --- other files ----------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 5000,
        bytes(range(256)) * 40,
        b"just some text\n" * 500,
        b"x" * 50,
        b"SQLite format 3\0" + b"\0" * 34,
        b"{}\n",
        b"\n",
    ],
    ids=["zeros", "garbage", "text", "short", "short head", "tiny", "one byte"],
)
def test_what_is_no_database_is_left_alone(path: Path, data: bytes) -> None:
    """S14."""
    path.write_bytes(data)
    refused(path, UnsupportedError, "found no SQLite database")


def test_another_programs_database_is_left_alone(path: Path) -> None:
    """S14: with an application id of its own, or tables and none."""
    tamper(path, "CREATE TABLE theirs(x)", "PRAGMA application_id = 1146308688")
    refused(path, UnsupportedError, "id 0x44534850", "expected 0x4e455354")
    tamper(path, "PRAGMA application_id = 0")
    refused(path, UnsupportedError, "'theirs'", "without an application id")


@pytest.mark.parametrize("version", [1, 3, 5, 17, 0, -1])
def test_other_versions_are_left_alone(path: Path, version: int) -> None:
    """S6, S14: ours, but of an older or a newer layout."""
    made(path, f"PRAGMA user_version = {version}")
    advice = "a newer Nestling may read it" if version > 4 else "there is no upgrade"
    refused(path, UnsupportedError, f"layout version {version}", "expected 4", advice)


def test_a_version_without_an_application_is_left_alone(path: Path) -> None:
    tamper(path, "PRAGMA user_version = 4")
    refused(path, UnsupportedError, "id 0x00000000")


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE events ADD COLUMN more TEXT"],
        ["ALTER TABLE sessions RENAME COLUMN cwd TO folder"],
        ["ALTER TABLE sessions DROP COLUMN cwd"],
        ["CREATE TABLE more(x)"],
        ["CREATE VIEW more AS SELECT 1"],
        ["CREATE TRIGGER t AFTER INSERT ON events BEGIN SELECT 1; END"],
        ["CREATE INDEX more ON events(type)"],
        ["DROP INDEX sessions_by_parent"],
        ["DROP TABLE events"],
    ],
    ids=lambda statements: statements[0],
)
def test_other_tables_are_left_alone(path: Path, statements: list[str]) -> None:
    """S15: a column, an object more or less."""
    made(path, *statements)
    refused(path, UnsupportedError, "is not as layout version 4 has it")


def test_tables_that_are_not_strict_are_left_alone(path: Path) -> None:
    """S15."""
    sql = sqlite_file_io.statements()
    creates = [sql[f"create_{name}"] for name in ("sessions", "events")]
    index = sql["create_sessions_by_parent"]
    loose = [create.replace("STRICT", "") for create in creates]
    tamper(path, *loose, index, STAMP, "PRAGMA user_version = 4")
    refused(path, UnsupportedError, "is not as layout version 4 has it")


def test_tables_by_the_letter_are_ours(path: Path) -> None:
    """What the last test and the one before build differs in what they name only."""
    sql = sqlite_file_io.statements()
    names = ("create_sessions", "create_sessions_by_parent", "create_events")
    tamper(path, *map(sql.__getitem__, names), STAMP, "PRAGMA user_version = 4")
    with opened(path) as backend:
        put(backend, "s", turns(1))


def test_texts_in_another_encoding_are_left_alone(path: Path) -> None:
    tamper(path, "PRAGMA encoding = 'UTF-16le'", "CREATE TABLE t(x)", "DROP TABLE t")
    refused(path, UnsupportedError, "UTF-16le", "expected UTF-8")


def test_tables_that_sqlite_cannot_read_are_left_alone(path: Path) -> None:
    made(path)
    data = path.read_bytes()
    path.write_bytes(data[:4096])
    refused(path, CorruptError, "malformed")
    path.write_bytes(data.replace(b"CREATE TABLE events", b"CREATE TABBY events"))
    refused(path, CorruptError, "malformed")


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_file_that_becomes_a_store_while_it_is_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    """Its head is read, then somebody makes it a store with a log: it is one."""
    path.touch()
    real = sqlite_file_io._head_of_file
    with opened(path) as other, opened(path) as backend:

        def head_of_file(*arguments: str) -> sqlite_file_io.Head:
            found = real(*arguments)
            if other.revision("s") is None:
                put(other, "s", turns(1))
            return found

        def looked_at(*arguments: str) -> sqlite_file_io.Head:
            monkeypatch.setattr(sqlite_file_io, "_head_of_file", real)
            try:
                return head_of_file(*arguments)
            finally:
                if is_seen:
                    held(other)

        monkeypatch.setattr(sqlite_file_io, "_head_of_file", looked_at)
        assert len(held(backend).events) == LENGTH


# --- with an unfinished log -------------------------------------------------------


def test_another_programs_unfinished_log_is_left_alone(path: Path) -> None:
    """Also where the database itself looks fresh: its tables are in the log."""
    log = ("PRAGMA journal_mode = WAL", "CREATE TABLE theirs(x)")
    with child("leave_log", path, *log) as writer:
        writer.end()
    assert sqlite_file_io.Head(0, 0).is_blank
    assert path.read_bytes()[60:64] == bytes(4)
    refused(path, UnsupportedError, "unfinished log of something else")
    tamper(path)  # takes the log in


def test_another_applications_unfinished_log_is_left_alone(path: Path) -> None:
    mark = ("CREATE TABLE theirs(x)", "PRAGMA application_id = 9")
    log = ("PRAGMA journal_mode = WAL", "INSERT INTO theirs VALUES (1)")
    with child("leave_log", path, *mark, *log) as writer:
        writer.end()
    refused(path, UnsupportedError, "id 0x00000009")
    with raw(path) as connection:
        assert connection.execute("SELECT x FROM theirs").fetchone() == (1,)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("PRAGMA user_version = 5", "layout version 5"),
        ("PRAGMA application_id = 5", "id 0x00000005"),
        ("CREATE TABLE more(x)", "'more'"),
    ],
)
def test_a_change_that_only_the_log_holds_is_seen(
    path: Path, change: str, words: str
) -> None:
    made(path)
    with child("leave_log", path, change) as writer:
        writer.end()
    refused(path, UnsupportedError, words)


def test_a_change_in_a_log_without_an_index_leaves_file_and_log(path: Path) -> None:
    """As when somebody copied both: the index is made, nothing else is."""
    made(path)
    with child("leave_log", path, "CREATE TABLE more(x)") as writer:
        writer.end()
    Path(f"{path}-shm").unlink()
    before = print_of(path)
    with opened(path) as backend, pytest.raises(UnsupportedError, match="'more'"):
        backend.read("s")
    after = print_of(path)
    after.pop(f"{path.name}-shm", None)
    assert after == before


# --- the file's name, owner and mode ----------------------------------------------


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_what_names_no_file_is_refused(name: str) -> None:
    """S28."""
    with pytest.raises(StoreError, match="expected the path of a file"):
        SqliteBackend(name)


@pytest.mark.parametrize("name", ["\ud800", "/tmp/\udfff/x"])
def test_a_name_that_cannot_be_encoded_is_refused(name: str) -> None:
    with pytest.raises(StoreError, match="expected a path that the file system"):
        SqliteBackend(name)


def test_a_name_that_is_no_utf_8_is_a_file_of_that_name(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    with opened(tmp_path / name) as backend:
        put(backend, "s", turns(1))
    assert [found.name for found in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", [":memory:", "a b%20?mode=memory&x#y", "é'\n\"", "-x"])
def test_any_name_is_a_file_of_that_name(tmp_path: Path, name: str) -> None:
    with opened(tmp_path / name) as backend:
        put(backend, "s", turns(1))
    assert [found.name for found in tmp_path.iterdir()] == [name]


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "store.db"
    with opened(path) as backend:
        with pytest.raises(StoreError, match="there is no directory") as caught:
            backend.read("s")
        assert str(path.parent) in str(caught.value)
        [error] = backend.write(NEW)
    assert "there is no directory" in str(error)
    assert not path.parent.exists()


def test_a_directory_that_is_a_file_is_refused(path: Path) -> None:
    path.touch()
    with opened(path / "store.db") as backend, pytest.raises(StoreError):
        backend.read("s")


def to_directory(path: Path) -> None:
    path.mkdir()


def to_link(path: Path) -> None:
    other = path.with_name("other.db")
    made(other)
    path.symlink_to(other)


def to_dangling_link(path: Path) -> None:
    path.symlink_to("nothing.db")


def to_pipe(path: Path) -> None:
    os.mkfifo(path)


def to_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made_socket:
        made_socket.bind(os.path.relpath(path))


@pytest.mark.parametrize(
    "make", [to_directory, to_link, to_dangling_link, to_pipe, to_socket]
)
def test_what_is_no_plain_file_is_refused(
    path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S29."""
    monkeypatch.chdir(path.parent)
    make(path)
    refused_names = "symbolic link" if path.is_symlink() else "not a regular file"
    with opened(path) as backend:
        with pytest.raises(StoreError, match=refused_names):
            backend.read("s")
        [error] = backend.write(NEW)
    assert refused_names in str(error)
    assert not (path.parent / "nothing.db").exists()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(path: Path, mode: int) -> None:
    """S30."""
    made(path)
    path.chmod(mode)
    refused(path, StoreError, f"others may write it (mode {mode:04o})")


def test_a_directory_that_everybody_may_write_is_refused(path: Path) -> None:
    """S30: unless files in it belong to who made them, as in /tmp."""
    made(path)
    path.parent.chmod(0o777)
    refused(path, StoreError, "everybody may replace files")
    path.parent.chmod(0o1777)
    with opened(path) as backend:
        held(backend)


def test_another_users_file_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S30."""
    made(path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    refused(path, StoreError, f"belongs to user {os.getuid()}")


def test_a_file_that_cannot_be_created_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S31."""

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with opened(path) as backend:
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", full)
            [error] = backend.write(NEW)
        assert "cannot create: No space left on device" in str(error)
        assert not path.exists()
        assert backend.write(NEW) == [None]


def test_a_file_that_is_replaced_while_open_is_noticed(path: Path) -> None:
    """S16: what would be written would be in a file that nobody finds."""
    with opened(path) as backend:
        put(backend, "s", turns(1))
        path.rename(path.with_name("moved.db"))
        with pytest.raises(StoreError, match="removed or replaced"):
            backend.read("s")
        path.touch(mode=0o600)
        [error] = backend.write([Write(header(), notes([LENGTH]), False)])
        assert "removed or replaced" in str(error)
        assert path.read_bytes() == b""


def test_a_file_that_is_replaced_while_it_is_opened_is_noticed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at it and the opening: what was judged was another file."""
    made(path)
    other = path.with_name("other.db")
    made(other)

    def connect(path: str, options: str, busy_seconds: float) -> sqlite3.Connection:
        other.replace(path)
        return sqlite_file_io.connect(path, options, busy_seconds)

    monkeypatch.setattr(sqlite_connection_io, "connect", connect)
    with opened(path) as backend, pytest.raises(StoreError, match="was replaced while"):
        backend.read("s")


# --- while it is open ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("PRAGMA user_version = 5", "layout version 5"),
        ("PRAGMA application_id = 5", "id 0x00000005"),
        ("CREATE TABLE more(x)", "'more'"),
    ],
)
def test_another_owner_is_seen_in_each_transaction(
    path: Path, change: str, words: str
) -> None:
    """S16."""
    with opened(path) as backend:
        put(backend, "s", turns(1))
        found = held(backend)
        with raw(path) as connection:
            connection.execute(change)
            [error] = backend.write([Write(header(), notes([LENGTH]), False)])
            assert type(error) is UnsupportedError
            assert words in str(error)
            for use in (
                lambda: backend.repair(found, notes([LENGTH])),
                lambda: backend.delete("s"),
                lambda: backend.read("s"),
                backend.sessions,
            ):
                with pytest.raises(UnsupportedError):
                    use()
            rows = connection.execute("SELECT count(*) FROM events").fetchone()
            assert rows == (LENGTH,)


def test_a_rewritten_store_is_still_ours(path: Path) -> None:
    """VACUUM counts as a change of the schema, but is none."""
    with opened(path) as backend:
        put(backend, "s", turns(1))
        with raw(path) as connection:
            connection.execute("VACUUM")
        assert len(held(backend).events) == LENGTH


def test_a_damaged_file_is_corrupt(path: Path) -> None:
    with opened(path) as backend:
        for number in range(30):
            put(backend, f"s{number}", turns(3))
    data = bytearray(path.read_bytes())
    data[4096 * 4 :] = b"\xff" * (len(data) - 4096 * 4)
    path.write_bytes(data)
    with opened(path) as backend:
        with pytest.raises(CorruptError, match="malformed") as caught:
            backend.read("s29")
        assert f"sqlite:{path}: cannot read session 's29'" in str(caught.value)
    assert path.read_bytes() == data


def test_an_opening_that_fails_closes_the_connection(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(path)
    connections: list[sqlite3.Connection] = []

    def connect(*arguments: object) -> sqlite3.Connection:
        connections.append(sqlite_file_io.connect(*arguments))  # type: ignore[arg-type]
        return connections[-1]

    monkeypatch.setattr(sqlite_connection_io, "connect", connect)
    monkeypatch.setitem(sqlite_file_io.statements(), "synchronous", "SELECT 1")
    with opened(path) as backend, pytest.raises(StoreError, match="synchronous"):
        backend.read("s")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connections[0].execute("x")
