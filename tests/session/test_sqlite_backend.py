"""An SQLite store: what is put in comes back, and stale writers are refused."""

from __future__ import annotations

import os
import random
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from nestling.session.errors import (
    SessionExistsError,
    SessionNotFoundError,
    StoreError,
    UnsupportedError,
)
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.sqlite_backend_io import SqliteBackend
from nestling.session.sqlite_file_io import APPLICATION_ID, statements
from nestling.session.store_backend import Backend, Tail, Write
from support.session_logs import rows
from support.sqlite_processes import path
from support.sqlite_stores import (
    header,
    held,
    kept,
    more,
    notes,
    opened,
    put,
    raw,
    tamper,
    turns,
)

__all__ = ["path"]

LENGTH = len(turns(1))


def test_it_is_a_backend(path: Path) -> None:
    backend: Backend = SqliteBackend(path)
    assert backend.name == f"sqlite:{path}"
    assert backend.shares_commits
    assert backend.lease_folder() == f"{path}-leases"


def test_path_is_absolute_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: a tool that changes the directory does not move the store."""
    monkeypatch.chdir(tmp_path)
    with opened(Path("here.db")) as backend:
        monkeypatch.chdir("/")
        put(backend, "s", turns(1))
    assert (tmp_path / "here.db").exists()


def test_nothing_is_made_before_the_first_write(path: Path) -> None:
    """S21, S22: reading a store that is not there makes nothing."""
    with opened(path) as backend:
        assert backend.read("s") is None
        assert backend.read_from("s", 0) is None
        assert backend.revision("s") is None
        assert backend.sessions() == []
        assert backend.children("s") == []
        assert backend.delete("s") is False
        assert backend.write([]) == []
        backend.close()
        assert list(path.parent.iterdir()) == []


def test_an_empty_file_is_a_fresh_store(path: Path) -> None:
    path.touch()
    with opened(path) as backend:
        assert backend.sessions() == []
        assert path.read_bytes() == b""
        put(backend, "s", turns(1))
        assert len(held(backend).events) == LENGTH


def test_a_database_without_objects_is_a_fresh_store(path: Path) -> None:
    """Also one that keeps a log already: the head is written into the file itself."""
    tamper(path, "PRAGMA journal_mode = WAL", "VACUUM")
    with opened(path) as backend:
        assert backend.sessions() == []
        put(backend, "s", turns(1))
        assert path.read_bytes()[68:72] == b"NEST"
        assert int.from_bytes(path.read_bytes()[60:64]) == 4


def test_files_are_readable_by_nobody_else(path: Path) -> None:
    """S30: the log and its index, too."""
    old = os.umask(0)
    try:
        with opened(path) as backend:
            put(backend, "s", turns(1))
            for suffix in ("", "-wal", "-shm"):
                found = os.stat(f"{path}{suffix}")
                assert stat.S_IMODE(found.st_mode) == 0o600
    finally:
        os.umask(old)


def test_settings_are_what_durability_needs(path: Path) -> None:
    """S20: with our application id in the file."""
    with opened(path) as backend:
        put(backend, "s", turns(1))
        connection = backend._store._connection
        found = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in (
                "application_id", "user_version", "trusted_schema", "mmap_size",
                "foreign_keys", "journal_mode", "synchronous", "busy_timeout",
            )
        }  # fmt: skip
    assert found == {
        "application_id": APPLICATION_ID,
        "user_version": 4,
        "trusted_schema": 0,
        "mmap_size": 0,
        "foreign_keys": 1,
        "journal_mode": b"wal",
        "synchronous": 2,
        "busy_timeout": 5000,
    }


def test_a_setting_that_sqlite_does_not_keep_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("trusted_schema", "mmap_size", "foreign_keys", "synchronous"):
        with monkeypatch.context() as patch, opened(path) as backend:
            patch.setitem(statements(), name, "SELECT 77")
            [error] = backend.write([Write(header(), turns(1), True)])
            assert f"keeps {name} at 77" in str(error)


def test_a_library_without_strict_tables_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 9))
    with (
        opened(path) as backend,
        pytest.raises(StoreError, match=r"3\.37\.0 or newer"),
    ):
        backend.read("s")


FIELDS: dict[str, Any] = {
    "cwd": "/somewhere",
    "parentSession": "p",
    "seedLength": 0,
    "seedDigest": "0" * 64,
    "spawnedBy": {"turn": 1, "step": 2, "context": "fork", "block": 0, "callId": "c"},
    "origin": "subagent",
    "delegationDepth": 0,
    "agentPreset": "",
    "later": {"a": [1, 2.5, None], "b": "\ud83d"},
}


@pytest.mark.parametrize("key", FIELDS)
def test_each_header_field_comes_back(path: Path, key: str) -> None:
    """S17: present or absent, each of its own; also keys without a column."""
    with opened(path) as backend:
        for found in (header("s", **{key: FIELDS[key]}), header("t")):
            assert backend.write([Write(found, turns(1), True)]) == [None]
            assert held(backend, found.id).header == found


def test_events_come_back(path: Path) -> None:
    events = [
        *turns(2),
        *notes([2 * LENGTH], {"deep": [{"a": None}, 1.5, -3, True, ""]}),
    ]
    with opened(path) as backend:
        full = header("s", **FIELDS)
        assert backend.write([Write(full, events, True)]) == [None]
        assert held(backend).header == full
    assert kept(path) == rows(events)
    assert any(event.source_event_seqs is None for event in events)


@pytest.mark.parametrize("sources", [[], [3, 1, 0], [2**53 - 1]])
def test_sources_come_back(path: Path, sources: list[int]) -> None:
    """K11: empty, descending, the greatest."""
    event = Event(0, "x/s", -1, None, "append", sources, True)
    other = Event(1, "x/s", 2**53 - 1, None, {"op": "replace", "start": 0, "end": 1})
    odd = Event(2, "x/s", 0, None, "odd\ud800")
    with opened(path) as backend:
        put(backend, "s", [event, other, odd])
    assert kept(path) == rows([event, other, odd])


@pytest.mark.parametrize(
    "text",
    ["\ud83d", "\ude00\ud83d", "a\0b", "\0", "é" * 500_000, "\U0001f600", '"\\\n', ""],
    ids=lambda text: ascii(text[:8]),
)
def test_odd_texts_come_back(path: Path, text: str) -> None:
    """Half characters, NULs and a megabyte, as data and as a type."""
    events = [
        Event(0, f"x/{text[:50]}", 1, {text[:9]: text}, ignorable=True),
        Event(1, text[:50], 1, [text], ignorable=True),
    ]
    with opened(path) as backend:
        put(backend, "s", events)
    assert kept(path) == rows(events)


@pytest.mark.parametrize(
    "session_id",
    ["..", "--help", "x" * 300, "CON", "a\0b", "é/\\", "'; --", "%s", "😀"],
)
def test_odd_ids_come_back(path: Path, session_id: str) -> None:
    with opened(path) as backend:
        put(backend, session_id, turns(1))
        put(backend, session_id + "2", turns(2))
        assert held(backend, session_id).header.id == session_id
        assert [one.id for one in backend.sessions()] == [session_id, session_id + "2"]
        assert backend.delete(session_id)
        assert backend.read(session_id) is None
        assert len(held(backend, session_id + "2").events) == 2 * LENGTH


def test_half_a_character_names_no_session(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", turns(1))
        assert backend.read("\ud83d") is None
        assert backend.children("\ud83d") == []


def test_suffixes_and_batches_of_random_logs(path: Path) -> None:
    """D2, D3: however a log was cut into batches, each suffix of it comes back."""
    chance = random.Random(1)
    with opened(path) as backend:
        for number in range(20):
            session_id, events = f"s{number}", turns(chance.randint(1, 4))
            cuts = sorted({0, *chance.sample(range(1, len(events)), k=5)})
            for lo, hi in zip(cuts, [*cuts[1:], len(events)], strict=True):
                (put if lo == 0 else more)(backend, session_id, events[lo:hi])
            for seq in range(len(events) + 2):
                found = backend.read_from(session_id, seq)
                assert found is not None
                assert rows(found) == rows(events[seq:])


def test_sessions_and_children_are_ordered(path: Path) -> None:
    ids = ["b", "a", "Z", "é", "😀", "￿"]
    with opened(path) as backend:
        for session_id in ids:
            one = header(session_id, parentSession="p" if session_id > "Z" else "q")
            assert backend.write([Write(one, turns(1), True)]) == [None]
        assert [one.id for one in backend.sessions()] == sorted(ids)
        assert [one.id for one in backend.children("p")] == sorted(ids)[1:]
        for listed in backend.sessions():
            assert listed.revision == backend.revision(listed.id)
            assert (listed.problem, listed.header is None) == ("", False)


def test_children_are_found_by_an_index(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", turns(1))
    with raw(path) as connection:
        plan = connection.execute(
            "EXPLAIN QUERY PLAN " + statements()["children"], (b"p",)
        ).fetchall()
    assert "sessions_by_parent" in str(plan)


def test_a_deleted_session_leaves_nothing(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", turns(1))
        before = backend.revision("s")
        assert backend.delete("s") is True
        assert backend.delete("s") is False
        assert backend.revision("s") is None
        with raw(path) as connection:
            assert connection.execute("SELECT count(*) FROM events").fetchone() == (0,)
        put(backend, "s", turns(2))
        assert backend.revision("s") != before


def test_a_revision_changes_with_each_write(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", turns(1))
        put(backend, "t", turns(1))
        seen, other = {backend.revision("s")}, backend.revision("t")
        for seq in range(LENGTH, LENGTH + 5):
            more(backend, "s", notes([seq]))
            seen.add(backend.revision("s"))
        assert held(backend).revision in seen
        assert len(seen) == 6
        assert backend.revision("t") == other


def test_earlier_rows_are_not_rewritten(path: Path) -> None:
    """S2, B1: an append adds its rows and touches no others."""
    with opened(path) as backend:
        put(backend, "s", turns(1))
        with raw(path) as connection:
            ask = "SELECT rowid, * FROM events WHERE seq < ? ORDER BY seq"
            before = connection.execute(ask, (LENGTH,)).fetchall()
            more(backend, "s", notes([LENGTH]))
            assert connection.execute(ask, (LENGTH,)).fetchall() == before


# --- refusals of one session ----------------------------------------------------


def test_one_refusal_does_not_concern_the_others(path: Path) -> None:
    """Group commit: stale, present, missing and impossible sessions between good ones."""
    events = turns(1)
    with opened(path) as backend:
        for session_id in ("good", "stale", "there", "typed"):
            put(backend, session_id, events)
        before = {one.id: one.revision for one in backend.sessions()}
        results = backend.write(
            [
                Write(header("stale"), notes([LENGTH + 1]), False),
                Write(header("new"), events, True),
                Write(header("there"), notes([0, 1]), True),
                Write(header("missing"), notes([0]), False),
                Write(header("gap"), [*notes([0]), *notes([2])], True),
                Write(header("typed"), [Event(LENGTH, "text-chunks", 0, 0)], False),
                Write(header("nan"), notes([0], {1, 2}), True),
                Write(Header("wrong", "x", {}), events, True),  # type: ignore[arg-type]
                Write(header("good"), notes([LENGTH]), False),
            ]
        )
        failed = [type(result) for result in results]
        assert failed == [
            StoreError, type(None), SessionExistsError, SessionNotFoundError,
            StoreError, StoreError, StoreError, StoreError, type(None),
        ]  # fmt: skip
        assert "has 8 events, it cannot continue at 9" in str(results[0])
        assert "stored already" in str(results[2])
        assert "found an event of seq 2, expected 1" in str(results[4])
        assert "packed row" in str(results[5])
        after = {one.id: one.revision for one in backend.sessions()}
        assert after.keys() == {*before, "new"}
        assert {key for key in before if before[key] != after[key]} == {"good"}
        assert rows(held(backend, "typed").events) == rows(events)
        assert len(held(backend, "good").events) == LENGTH + 1


def test_a_stale_append_leaves_what_the_winner_wrote(path: Path) -> None:
    """S7, B12: even one whose seq would fit."""
    with opened(path) as first, opened(path) as second:
        put(first, "s", turns(1))
        more(second, "s", notes([LENGTH], "winner"))
        for seq in (LENGTH, LENGTH + 1):
            [error] = first.write([Write(header(), notes([seq], "loser"), False)])
            assert "has changed since it was read here" in str(error)
        assert held(first).events[-1].data == "winner"
        more(first, "s", notes([LENGTH + 1]))


def test_a_session_that_was_made_anew_is_another_one(path: Path) -> None:
    with opened(path) as first, opened(path) as second:
        put(first, "s", turns(1))
        second.delete("s")
        put(second, "s", turns(1))
        [error] = first.write([Write(header(), notes([LENGTH]), False)])
        assert "has changed" in str(error)


def test_a_failed_write_is_not_what_was_seen(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", turns(1))
        assert backend.write([Write(header(), notes([0]), False)]) != [None]
        more(backend, "s", notes([LENGTH]))


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_interrupt_behind_the_commit_leaves_the_backend_usable(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """What it had seen is out of date; it must not take that for another's write."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    new = turns(1)
    with opened(path) as backend:
        if is_stored:
            put(backend, "s", new[:2])
        write = Write(header(), new[2:] if is_stored else new, not is_stored)
        with monkeypatch.context() as patch:
            patch.setattr(backend, "_remember", interrupted)
            with pytest.raises(KeyboardInterrupt):
                backend.write([write])
        more(backend, "s", notes([LENGTH]))
        found = held(backend)
        with monkeypatch.context() as patch:
            patch.setattr(backend, "_remember", interrupted)
            with pytest.raises(KeyboardInterrupt):
                backend.repair(found, notes([LENGTH + 1]))
        more(backend, "s", notes([LENGTH + 2]))
        assert rows(held(backend).events) == rows(
            [*new, *notes(range(LENGTH, LENGTH + 3))]
        )


def test_a_commit_that_fails_forgets_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else another's write in between would be taken for what was seen."""
    with opened(path) as backend, opened(path) as other:
        put(backend, "s", turns(1))
        with monkeypatch.context() as patch:
            patch.setitem(statements(), "commit", "SELECT no_such_column")
            [error] = backend.write([Write(header(), notes([LENGTH]), False)])
        assert "no such column" in str(error)
        more(other, "s", notes([LENGTH]))
        [error] = backend.write([Write(header(), notes([LENGTH + 1]), False)])
        assert "has changed since" in str(error)


def test_a_read_holds_one_state(path: Path) -> None:
    """Rows and revision of one snapshot, though another writes in the middle."""
    with opened(path) as reader, opened(path) as writer:
        put(writer, "s", turns(1))
        held(reader)
        before = writer.revision("s")

        def traced(sql: str) -> None:
            if "FROM events" in sql:
                reader._store._connection.set_trace_callback(None)
                more(writer, "s", notes([LENGTH]))

        reader._store._connection.set_trace_callback(traced)
        found = held(reader)
        assert (len(found.events), found.revision) == (LENGTH, before)
        assert len(held(reader).events) == LENGTH + 1


# --- repair ---------------------------------------------------------------------


def test_repair_appends_once(path: Path) -> None:
    events = turns(1)
    with opened(path) as backend:
        put(backend, "s", events[:3])
        found = held(backend)
        backend.repair(found, events[3:])
        assert rows(held(backend).events) == rows(events)
        with pytest.raises(StoreError, match="has changed since"):
            backend.repair(found, events[3:])
        assert rows(held(backend).events) == rows(events)
        more(backend, "s", notes([LENGTH]))


def test_an_empty_repair_changes_nothing(path: Path) -> None:
    """S24."""
    with opened(path) as backend:
        put(backend, "s", turns(1))
        found = held(backend)
        backend.repair(found, [])
        assert backend.revision("s") == found.revision


def test_a_stale_repair_leaves_a_newer_tail(path: Path) -> None:
    """S8: also when it would have removed something."""
    with opened(path) as first, opened(path) as second:
        put(first, "s", turns(1))
        found = held(first)
        more(second, "s", notes([LENGTH]))
        with pytest.raises(StoreError, match="has changed since"):
            first.repair(found._replace(tail=Tail(LENGTH, "")), [])
        assert len(held(first).events) == LENGTH + 1


def test_closers_that_do_not_follow_roll_the_repair_back(path: Path) -> None:
    """S25: nor does anything of the repair stay."""
    with opened(path) as backend:
        put(backend, "s", turns(1))
        tamper(path, f"UPDATE events SET data = '!' WHERE seq = {LENGTH - 1}")
        found = held(backend)
        for closers in (notes([LENGTH]), notes([LENGTH - 1, LENGTH + 1])):
            with pytest.raises(StoreError, match=r"seq|cannot continue"):
                backend.repair(found, closers)
        with pytest.raises(StoreError, match="must be repaired first"):
            backend.repair(found._replace(tail=None), notes([LENGTH - 1]))
        with raw(path) as connection:
            ask = "SELECT count(*), revision FROM events, sessions"
            assert connection.execute(ask).fetchone() == (LENGTH, 1)


def test_a_repair_of_what_is_gone_is_refused(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", turns(1))
        found = held(backend)
        backend.delete("s")
        with pytest.raises(StoreError, match="has changed since"):
            backend.repair(found, [])


# --- SQL in one file -------------------------------------------------------------


def test_sql_stands_in_one_file() -> None:
    """D4, D5: no SQL in Python, and nothing to be put into it."""
    folder = Path(sqlite_folder())
    for source in folder.glob("sqlite_*.py"):
        text = source.read_text()
        for word in ("SELECT ", "INSERT ", "UPDATE ", "DELETE ", "PRAGMA ", "CREATE "):
            assert word not in text, source
    for body in statements().values():
        assert "{" not in body
        assert "%" not in body
        assert ";" not in body


def test_sql_is_loaded_from_beside_the_module() -> None:
    """D6: from the package's own folder, which is packaged whole."""
    assert len(statements()) > 30
    assert os.path.isfile(os.path.join(sqlite_folder(), "sqlite_store.sql"))


def sqlite_folder() -> str:
    from nestling.session import sqlite_file_io

    return os.path.dirname(sqlite_file_io.__file__)


def test_a_newer_header_is_unsupported(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", turns(1))
        tamper(path, "UPDATE sessions SET version = 1")
        for method in (backend.read, lambda i: backend.read_from(i, 0)):
            with pytest.raises(UnsupportedError, match=r"session 's': .*version 1"):
                method("s")
        [listed] = backend.sessions()
        assert (listed.id, listed.header) == ("s", None)
        assert "version 1" in listed.problem
        assert listed.revision == backend.revision("s")
