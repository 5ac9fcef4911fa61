"""Rows that another program damaged: they bound the tail, or nothing is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from nestling.session.errors import CorruptError, StoreError
from nestling.session.store_backend import Write
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
OPEN = turns(2)[: LENGTH + 3]
"""A whole turn, and the start of another one."""

BAD = LENGTH + 1

EVERYTHING = "SELECT * FROM sessions, events ORDER BY seq"

LAX = ("PRAGMA ignore_check_constraints = ON", "PRAGMA foreign_keys = OFF")


def damage(path: Path, change: str, seq: int) -> None:
    tamper(path, *LAX, change.format(seq=seq))


SET = "UPDATE events SET {column} WHERE seq = {{seq}}"
CHANGES = {
    "data cut": SET.format(column="data = substr(data, 1, 5)"),
    "data empty": SET.format(column="data = ''"),
    "data no text": SET.format(column="data = CAST(x'22ff22' AS TEXT)"),
    "data beyond": SET.format(column="data = '1e999'"),
    "data two": SET.format(column="data = '1 2'"),
    "type no text": SET.format(column="type = CAST(x'ff' AS TEXT)"),
    "type packed": SET.format(column="type = 'text-chunks'"),
    "time": SET.format(column="time = 9007199254740992"),
    "sources": SET.format(column="source_event_seqs = '[-1]'"),
    "sources cut": SET.format(column="source_event_seqs = '['"),
    "sources kind": SET.format(column="source_event_seqs = '{{}}'"),
    "operation": SET.format(column="surface_op = 'replace'"),
    "operation kind": SET.format(column="surface_op = '7'"),
    "ignorable": SET.format(column="ignorable = 0"),
    "missing": "DELETE FROM events WHERE seq = {seq}",
    "moved": "UPDATE events SET seq = seq + 100 WHERE seq = {seq}",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_bad_row_bounds_the_tail(path: Path, change: str) -> None:
    """S18, K16, F1: what stands before it is kept, and repair removes the rest."""
    with opened(path) as backend:
        put(backend, "s", OPEN)
        put(backend, "t", OPEN)
        more(backend, "s", notes([len(OPEN)]))
        damage(path, change + " AND session_id = 's'", BAD)
        found = held(backend)
        assert rows(found.events) == rows(OPEN[:BAD])
        assert found.tail is not None
        assert found.tail.problem.startswith("event row ")
        suffix = backend.read_from("s", 3)
        assert suffix is not None
        assert rows(suffix) == rows(OPEN[3:BAD])
        assert backend.revision("s") == found.revision

        backend.repair(found, notes([BAD]))
        assert rows(held(backend).events) == rows([*OPEN[:BAD], *notes([BAD])])
        assert held(backend).tail is None
        assert backend.revision("s") != found.revision
        more(backend, "s", notes([BAD + 1]))
        assert rows(held(backend, "t").events) == rows(OPEN)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_bad_row_before_a_turns_end_is_damage(path: Path, change: str) -> None:
    """K16, B14: nothing is rewritten, and nothing is given back."""
    with opened(path) as backend:
        put(backend, "s", OPEN)
        damage(path, change, 2)
        with raw(path) as connection:
            connection.text_factory = bytes
            before = connection.execute(EVERYTHING).fetchall()
            for use in (
                lambda: backend.read("s"),
                lambda: backend.read_from("s", 0),
                lambda: backend.read_from("s", 2),
                lambda: backend.read_from("s", 3),
            ):
                with pytest.raises(CorruptError, match="a turn ends at event row 7"):
                    use()
            assert connection.execute(EVERYTHING).fetchall() == before
        found = backend.read_from("s", LENGTH)
        assert found is not None
        assert rows(found) == rows(OPEN[LENGTH:])


def test_a_suffix_behind_a_gap_is_not_sound(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", OPEN)
        tamper(path, f"DELETE FROM events WHERE seq = {BAD}")
        for seq in (BAD, BAD + 1):
            assert backend.read_from("s", seq) == []


@pytest.mark.parametrize(
    "change", ["data = '['", "type = 'text-chunks'", "time = -1e18"]
)
def test_nothing_is_put_behind_a_bad_row(path: Path, change: str) -> None:
    """S26: also by a backend that has not read the session."""
    with opened(path) as backend:
        put(backend, "s", OPEN)
    tamper(path, *LAX, f"UPDATE events SET {change} WHERE seq = {len(OPEN) - 1}")
    with opened(path) as backend:
        for seq in (len(OPEN), len(OPEN) - 1):
            [error] = backend.write([Write(header(), notes([seq]), False)])
            assert "must be repaired first: event row 10" in str(error)
        backend.repair(held(backend), [])
        assert rows(held(backend).events) == rows(OPEN[:-1])
        more(backend, "s", notes([len(OPEN) - 1]))


def test_a_whole_log_may_be_the_tail(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", OPEN[:4])
        tamper(path, "UPDATE events SET seq = -1 WHERE seq = 0")
        found = held(backend)
        assert found.events == []
        backend.repair(found, [])
        assert held(backend).events == []
        more(backend, "s", OPEN[:4])
    assert kept(path) == rows(OPEN[:4])


HEADERS = {
    "incarnation = ''": "incarnation",
    "incarnation = CAST(x'ff' AS TEXT)": "incarnation",
    "revision = -1": "revision",
    "created_at = -1": "createdAt",
    "created_at = 9007199254740992": "createdAt",
    "cwd = CAST(x'ff' AS TEXT)": "cwd",
    "parent_session = CAST(x'c3' AS TEXT)": "parent_session",
    "seed_length = -1": "seedLength",
    "seed_digest = 'abc'": "seedDigest",
    "spawned_by = '7'": "spawnedBy",
    "spawned_by = '{'": "spawned_by",
    "delegation_depth = -3": "delegationDepth",
    "other_fields = '[]'": "other_fields",
    "other_fields = '{'": "other_fields",
    'other_fields = \'{"cwd": "/"}\'': "cwd",
    "other_fields = '{\"sandboxMode\": 1}'": "sandboxMode",
}


@pytest.mark.parametrize("change", HEADERS)
def test_a_bad_header_is_damage(path: Path, change: str) -> None:
    """S17, S19, S27: session and field are named; the others are not concerned."""
    with opened(path) as backend:
        for session_id in ("r", "s", "t"):
            one = header(session_id, parentSession="p")
            assert backend.write([Write(one, OPEN, True)]) == [None]
        tamper(path, f"UPDATE sessions SET {change} WHERE id = 's'")
        before = path.read_bytes()
        for use in (lambda: backend.read("s"), lambda: backend.read_from("s", 0)):
            with pytest.raises(CorruptError, match=r"session 's': ") as caught:
                use()
            assert HEADERS[change] in str(caught.value)
        assert [one.id for one in backend.sessions()] == ["r", "s", "t"]
        bad = backend.sessions()[1]
        assert bad.header is None
        assert HEADERS[change] in bad.problem
        assert [one.id for one in backend.children("p")] == ["r", "t"]
        assert len(held(backend, "t").events) == len(OPEN)
        assert path.read_bytes() == before
        if HEADERS[change] in ("incarnation", "revision"):
            [error] = backend.write([Write(header(), notes([len(OPEN)]), False)])
            assert type(error) is CorruptError
            with pytest.raises(CorruptError):
                backend.revision("s")


def test_a_name_that_is_no_text_is_listed(path: Path) -> None:
    with opened(path) as backend:
        put(backend, "s", OPEN)
        tamper(path, *LAX, "UPDATE sessions SET id = CAST(x'61ff' AS TEXT)")
        [listed] = backend.sessions()
        assert (listed.id, listed.header) == ("a\\xff", None)
        assert "id: byte 1 is no UTF-8" in listed.problem


def test_refusals_are_store_errors(path: Path) -> None:
    """What a caller must catch is one class."""
    with opened(path) as backend:
        put(backend, "s", OPEN)
        tamper(path, "UPDATE events SET data = '!' WHERE seq = 0")
        with pytest.raises(StoreError, match=f"sqlite:{path} session 's': event row 0"):
            backend.read("s")
