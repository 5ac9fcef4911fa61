"""Faults that people have met: damaged logs, full disks, odd texts, sizes (F and G)."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nestling.session.errors import (
    AppendError,
    CorruptError,
    StoreError,
    UnsupportedError,
)
from nestling.session.event import Event
from nestling.session.jsontext import dumps
from nestling.session.lease_io import Leases
from nestling.session.repair import closers
from nestling.session.store_io import Batch, SessionStore
from support.damage import add_rows, database, log_file, spoil, tear
from support.families import log_of, messages
from support.full_disk import log as full_log
from support.processes import environment_with_tests
from support.session_logs import LogWriter, delta, finish, text_block
from support.stores import Place, exact, header, written

READS: list[Callable[[SessionStore], object]] = [
    lambda store: store.load("s"),
    lambda store: store.inspect("s"),
    lambda store: store.resume("s"),
    lambda store: store.append("s", [Event(99, "session/title", 1, {})]),
]


def _open_turn() -> LogWriter:
    """A turn that was closed, and one that is open; it ends with an emoji."""
    log = LogWriter()
    log.answered_turn("q", "a")
    log.start_turn()
    log.start_step()
    log.user("é and \U0001f600")
    return log


def _refused(place: Place, error: type[StoreError], match: str) -> None:
    """Nothing loads the session, and nothing is changed by the attempt."""
    before = place.files()
    for read in READS:
        with place.open() as store, pytest.raises(error, match=match):
            read(store)
        assert place.files() == before
    with place.open() as store:
        assert not store.is_live("s")


# --- F: what a log's end, and its middle, may be like -------------------------------


def test_f1_f3_a_file_cut_at_any_byte_of_its_last_record(tmp_path: Path) -> None:
    """F1, F3: the same state without that record, also if a newline follows the cut."""
    place = Place("jsonl", tmp_path)
    log = _open_turn()
    written(place, log.events)
    path = log_file(place)
    whole = path.read_bytes()
    last = dumps(log.events[-1].row())
    start = len(whole) - len(last) - 1
    without = exact([*log.events[:-1], *closers(log.events[:-1])])
    for cut in range(1, len(last) + 1):
        for end in (b"", b"\n"):
            is_whole = cut == len(last) and end == b"\n"
            path.write_bytes(whole[: start + cut] + end)
            with place.open() as store:
                seen = store.inspect("s")
                if is_whole:
                    assert (seen.tail, len(seen.events)) == ("", 13)
                    continue
                assert exact(seen.events) == without
                assert f"byte {start}" in seen.tail
                if cut % 16 == 0:
                    assert exact(store.load("s").events) == without
                    assert store.load("s").tail == ""
                    assert path.read_bytes().startswith(whole[:start])


def test_f2_an_append_behind_a_torn_record(durable: Place) -> None:
    """F2: the record is removed before anything stands behind it."""
    log = _open_turn()
    written(durable, log.events[:-1])
    tear(durable, log.events[-1])
    closed = [*log.events[:-1], *closers(log.events[:-1])]
    with durable.open() as store:
        assert store.inspect("s").tail
        stored = store.resume("s")
        assert stored.tail
        assert exact(stored.events) == exact(closed)
        title = Event(len(closed), "session/title", 1, {})
        store.append("s", [title])
    with durable.open() as store:
        assert exact(store.load("s").events) == exact([*closed, title])
        assert store.load("s").tail == ""


def test_f2_a_record_glued_to_a_torn_one(tmp_path: Path) -> None:
    """F2: as another program leaves it: one bad line, which is the tail."""
    place = Place("jsonl", tmp_path)
    log = _open_turn()
    written(place, log.events[:-1])
    tear(place, log.events[-1])
    add_rows(place, log.events[-1:])
    with place.open() as store:
        assert exact(store.load("s").events[:10]) == exact(log.events[:-1])
        assert store.load("s").tail == ""


def test_f1_a_torn_tail_is_cut_once(durable: Place) -> None:
    """O40: cut and closed in one repair; what is committed keeps its bytes."""
    log = _open_turn()
    written(durable, log.events[:-1])
    tear(durable, log.events[-1])
    with durable.open() as store:
        before, files = store.revision("s"), durable.files()
        seen = store.inspect("s")
        assert durable.files() == files
        assert store.revision("s") == before
        loaded = store.load("s")
        assert loaded.tail == seen.tail != ""
        assert exact(loaded.events) == exact(seen.events)
        again = store.load("s")
        assert (again.tail, again.closers) == ("", 0)
        assert exact(again.events) == exact(loaded.events)
        assert store.revision("s") != before


def test_f1_a_tail_behind_a_closed_turn_is_cut_without_a_closer(
    durable: Place,
) -> None:
    """F1: nothing is open, so nothing is closed; the tail goes all the same."""
    log = _open_turn()
    written(durable, log.events[:8])
    tear(durable, log.events[8])
    with durable.open() as store:
        loaded = store.load("s")
        assert loaded.tail
        assert loaded.closers == 0
        assert exact(store.load("s").events) == exact(log.events[:8])
        assert store.load("s").tail == ""


@pytest.mark.parametrize("seq", [0, 3, 7])
def test_f1_a_bad_row_before_a_later_end_of_turn_is_damage(
    durable: Place, seq: int
) -> None:
    """F1, J52, K16: committed rows are damaged: an error, and nothing is rewritten."""
    log = LogWriter()
    log.answered_turn("q", "a")
    log.answered_turn("q", "a")
    written(durable, log.events)
    written(durable, log.events, header("sound"))
    spoil(durable, seq)
    _refused(durable, CorruptError, "damage")
    with durable.open() as store:
        assert exact(store.load("sound").events) == exact(log.events)
        assert [listed.id for listed in store.sessions()] == ["s", "sound"]
        store.delete("s")


def test_f1_a_damaged_end_of_turn_is_damage_too(durable: Place) -> None:
    """F1: what can be read of it says that a turn was committed there."""
    log = LogWriter()
    log.answered_turn("q", "a")
    written(durable, log.events)
    ends = Event(9, "turn/end", 1, {"turn": 1, "reason": {"kind": "completed"}})
    add_rows(durable, [ends])
    _refused(durable, CorruptError, "seq|damage")


def test_f5_two_forced_writers(durable: Place) -> None:
    """F5: with the locks out of the way, the second is told that the log has changed."""
    log = LogWriter()
    log.answered_turn("q", "a")
    written(durable, log.events)
    turns = [Event(8, "turn/start", 1, {"turn": 2, "by": by}) for by in (1, 2)]
    with durable.open() as first, durable.open() as second:
        for store in (first, second):
            store._leases = Leases(None)
            store.resume("s")
        first.append("s", turns[:1])
        (problem,) = second.append_logged([Batch("s", turns[1:])])
        assert type(problem) is StoreError
        with pytest.raises((StoreError, AppendError)):
            second.append("s", turns[1:])
        first.append("s", [Event(9, "session/title", 1, {})])
    with durable.open() as store:
        found = store.read_from("s", 0)
        assert exact(found[:9]) == exact([*log.events, turns[0]])
        assert len(found) == 10


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("offset", [-1, 1])
def test_f5_what_two_writers_without_rules_have_left(
    durable: Place, offset: int, is_closed: bool
) -> None:
    """F5: a seq twice or one left out: bounded there, or refused if a turn ends later.

    What stands before it, a turn that was closed, keeps its bytes in either case. A
    database does not even take a seq twice.
    """
    log = LogWriter()
    log.answered_turn("q", "a")
    written(durable, log.events)
    kind, data = "turn/start", {"turn": 2}
    rows = [Event(8 + offset, kind, 1, data), Event(9 + offset, "session/title", 1, {})]
    if is_closed:
        reason = {"kind": "completed"}
        rows.append(Event(10 + offset, "turn/end", 1, {"turn": 2, "reason": reason}))
    if durable.scheme == "sqlite" and offset < 0:
        with pytest.raises(sqlite3.IntegrityError):
            add_rows(durable, rows)
        return
    add_rows(durable, rows)
    if is_closed:
        _refused(durable, CorruptError, f"found seq {8 + offset}, expected 8")
        return
    with durable.open() as store:
        loaded = store.load("s")
        assert f"found seq {8 + offset}, expected 8" in loaded.tail
        assert exact(loaded.events) == exact(log.events)
        assert exact(store.load("s").events) == exact(log.events)


def test_f6_the_disk_is_full_for_a_while(durable: Place) -> None:
    """F6, J30, J90: no half batch stays; with room again the same batch is taken."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "support.full_disk",
            durable.scheme,
            durable.path.parent,
        ],
        env=environment_with_tests(),
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    full, last = done.stdout.decode().splitlines()
    assert last == "done"
    assert re.match(f"full: .*{durable.path}", full)
    events = full_log().events
    with durable.open() as store:
        for name in ("s", "other"):
            stored = store.load(name)
            assert (stored.tail, stored.closers) == ("", 0)
            assert exact(stored.events) == exact(events)


@pytest.mark.parametrize(
    "kind", ["x/new", "mode/set", "request/header-delta", "turn/ended"]
)
def test_f8_a_type_that_nobody_here_knows(durable: Place, kind: str) -> None:
    """F8, O37, J25: refused by its name; the log is intact and stays as it is."""
    log = LogWriter()
    log.answered_turn("q", "a")
    written(durable, log.events)
    add_rows(durable, [Event(8, kind, 1, {"x": 1})])
    _refused(durable, UnsupportedError, kind)
    with durable.open() as store:
        assert store.read_from("s", 8)[0].type == kind
        assert store.sessions()[0].problem == ""


def test_f8_a_type_that_may_be_skipped(durable: Place) -> None:
    """F8, O11: kept as it stands, whoever wrote it."""
    log = LogWriter()
    log.answered_turn("q", "a")
    written(durable, log.events)
    foreign = Event(8, "x/new", 1, {"x": [1.0, "\ud800"]}, ignorable=True)
    add_rows(durable, [foreign])
    with durable.open() as store:
        assert exact(store.load("s").events) == exact([*log.events, foreign])


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("user/message", {"id": "u", "role": "user"}),
        ("assistant/chunk", {"turn": 1, "step": 1, "chunk": {"type": "new"}}),
        ("tool/result", {"turn": 1, "step": 1, "message": {}}),
    ],
)
def test_o11_a_stored_event_of_a_wrong_shape(
    durable: Place, kind: str, data: dict[str, object]
) -> None:
    """O11, S18: refused before anything is returned, by every way to load it."""
    log = LogWriter()
    log.answered_turn("q", "a")
    written(durable, log.events)
    operation = None if kind == "assistant/chunk" else "append"
    add_rows(durable, [Event(8, kind, 1, data, operation)])
    _refused(durable, CorruptError, f"{kind}")


def test_o11_a_replacement_of_what_is_not_there(durable: Place) -> None:
    """O11: surface fields are checked as they were on the way in."""
    log = LogWriter()
    log.answered_turn("q", "a")
    written(durable, log.events)
    log.user("x")
    data = log.events[-1].data
    operation = {"op": "replace", "start": 0, "end": 0}
    add_rows(durable, [Event(8, "user/message", 1, data, operation, [0])])
    _refused(durable, CorruptError, "not on the surface")


def _change_header(place: Place, key: str, value: str) -> None:
    """Set a column of a session's row, or its key in the header line."""
    if place.scheme == "jsonl":
        path = log_file(place)
        line, _, rest = path.read_bytes().partition(b"\n")
        line = re.sub(rf'"{key}":[^,}}]+'.encode(), f'"{key}":{value}'.encode(), line)
        path.write_bytes(line + b"\n" + rest)
    else:
        with database(place) as connection:
            connection.execute(f"UPDATE sessions SET {_COLUMNS[key]} = {value}")


_COLUMNS = {
    "version": "version",
    "createdAt": "created_at",
    "seedLength": "seed_length",
}


@pytest.mark.parametrize(("version", "is_newer"), [(1, True), (17, True), (-1, False)])
def test_o35_o36_another_version(durable: Place, version: int, is_newer: bool) -> None:
    """O35, O36: refused; only a newer one is said to be readable by a newer build."""
    log = LogWriter()
    log.answered_turn("q", "a")
    written(durable, log.events, header(seedLength=0))
    _change_header(durable, "version", str(version))
    _refused(durable, UnsupportedError, str(version))
    with durable.open() as store:
        with pytest.raises(UnsupportedError) as caught:
            store.load("s")
        assert ("newer" in str(caught.value)) == is_newer
        (listed,) = store.sessions()
        assert listed.header is None
        assert str(version) in listed.problem


@pytest.mark.parametrize("key", ["createdAt", "seedLength"])
def test_b14_a_damaged_header(durable: Place, key: str) -> None:
    """B14, S19: an error that names it; nothing is cut off or rewritten."""
    log = LogWriter()
    log.answered_turn("q", "a")
    written(durable, log.events, header(seedLength=0))
    _change_header(durable, key, "-5")
    _refused(durable, CorruptError, key)
    with durable.open() as store:
        (listed,) = store.sessions()
        assert listed.header is None
        assert key in listed.problem


def test_b14_a_header_that_is_no_json(tmp_path: Path) -> None:
    """B14: the error names the byte; the file is what it was."""
    place = Place("jsonl", tmp_path)
    written(place, _open_turn().events)
    path = log_file(place)
    path.write_bytes(path.read_bytes().replace(b"{", b"[", 1))
    _refused(place, CorruptError, "line 1")


# --- G: texts and sizes ---------------------------------------------------------------


def test_g1_halves_of_characters(place: Place) -> None:
    """G1: a pair that was split joins where it is folded; a lone half stays one."""
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.user("lone \ud83d, and \udc00\ud800")
    log.chunks(delta("\ud83d"), delta("\ude00"), delta("\ud83d"), finish())
    log.assistant(text_block("\U0001f600\ud83d"))
    log.end_step()
    log.end_turn()
    written(place, log.events)
    with place.open() as store:
        found = store.load("s").events
        assert exact(found) == exact(log.events)
        assert messages(found) == messages(log.events)
        assert log_of(found).prefix_digest(9) == log_of(log.events).prefix_digest(9)


def test_g4_b14_very_large_results(place: Place) -> None:
    """G4, B14: 15 MB in one event, lines of 1 MB: no bound but the memory's."""
    log = LogWriter()
    log.answered_turn("q", "a")
    sizes = [15_000_000, 1_000_000, 1_000_000, 1_000_000]
    for size in sizes:
        log.add("hook/result", {"text": "x" * size})
    log.start_turn()
    written(place, log.events)
    with place.open() as store:
        found = store.load("s").events
        assert [len(event.data["text"]) for event in found[8:12]] == sizes
        assert len(found) == 14
        assert len(store.read_from("s", 9)) == 5
