"""The contract of stores: creating and appending (C and O: the format's numbers)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from nestling.session.errors import (
    AppendError,
    SessionExistsError,
    SessionNotFoundError,
    StoreError,
    UnsupportedError,
)
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.store_io import Batch
from support.session_logs import LogWriter, delta
from support.stores import Place, exact, header, written


def _answered(turns: int = 1) -> list[Event]:
    log = LogWriter()
    for turn in range(turns):
        log.answered_turn(f"question {turn}", f"answer {turn}")
    return log.events


def _full_header(**more: Any) -> Header:
    spawned: dict[str, Any] = {"turn": 1, "step": 2, "block": 0, "n": 0, "callId": "c1"}
    return header(
        "child",
        cwd="/somewhere",
        parentSession="parent",
        origin="subagent",
        delegationDepth=1,
        agentPreset="helper",
        spawnedBy={**spawned, "context": "spawn"},
        **more,
    )


# --- create and append -------------------------------------------------------------


def test_what_was_stored_comes_back(place: Place) -> None:
    """C1: the same header and the same events, to the byte."""
    events, head = _answered(2), _full_header()
    written(place, events, head)
    with place.open() as store:
        for stored in (store.load("child"), store.inspect("child")):
            assert stored.header.row() == head.row()
            assert exact(stored.events) == exact(events)
            assert (stored.closers, stored.tail, stored.is_live) == (0, "", False)


@pytest.mark.parametrize("created_at", [0.5, 1.0, -1, True, 2**53, None, math.nan])
def test_a_time_of_creation_is_whole_milliseconds(
    place: Place, created_at: Any
) -> None:
    """C2: and the id stays free."""
    with place.open() as store:
        with pytest.raises(AppendError, match="createdAt"):
            store.create(Header("s", created_at, {}))
        store.create(header())
        store.append("s", _answered())


@pytest.mark.parametrize("session_id", ["", "x" * 513, "\ud800", None, 7])
def test_an_id_is_short_whole_text(place: Place, session_id: Any) -> None:
    """H: what names a session must be a name everywhere."""
    with place.open() as store, pytest.raises(AppendError):
        store.create(Header(session_id, 1, {}))


@pytest.mark.parametrize(
    "session_id",
    [
        "../up",
        "a/b",
        "/abs",
        ".",
        "..",
        "~",
        "A",
        "é",
        "x" * 512,
        "é" * 512,
        "a\0b",
        "%",
    ],
)
def test_any_id_of_whole_text_names_a_session(place: Place, session_id: str) -> None:
    """C1: traversal, separators, length, bytes that end strings."""
    written(place, _answered(), header(session_id))
    with place.open() as store:
        assert store.load(session_id).header.id == session_id
        assert [listed.id for listed in store.sessions()] == [session_id]


def test_ids_that_differ_in_case_only_are_two_sessions(place: Place) -> None:
    """H1 within one store."""
    written(place, _answered(1), header("a"))
    written(place, _answered(2), header("A"))
    with place.open() as store:
        assert exact(store.load("a").events) == exact(_answered(1))
        assert exact(store.load("A").events) == exact(_answered(2))


def test_what_a_header_says_of_the_tree_comes_back(place: Place) -> None:
    """O5, O6, O38: seedLength, delegationDepth and parentSession."""
    log = LogWriter()
    log.answered_turn("q", "a")
    length = len(log.events)
    log.add("session/end-seed", {})
    head = _full_header(seedLength=length)
    written(place, log.events, head)
    with place.open() as store:
        found = store.load("child").header
        assert (found.seed_length, found.delegation_depth) == (length, 1)
        assert found.parent_session == "parent"
        assert found.spawned_by == head.spawned_by
        assert [listed.header and listed.header.row() for listed in store.sessions()]
        assert [child.row() for child in store.children("parent")] == [head.row()]


@pytest.mark.parametrize("depth", [None, 0, 1])
def test_a_depth_that_is_not_stated_is_not_made_up(
    place: Place, depth: int | None
) -> None:
    """O6: absent and 0 are two things."""
    head = header() if depth is None else header(delegationDepth=depth)
    written(place, _answered(), head)
    with place.open() as store:
        assert store.load("s").header.delegation_depth == depth


def test_a_header_keeps_the_keys_that_nobody_here_knows(place: Place) -> None:
    """C1: a recording that is imported is stored as it stands."""
    head = header(vendor={"a": [1, 1.5, None, "\u2028"]}, title="x")
    written(place, _answered(), head)
    with place.open() as store:
        assert store.load("s").header.row() == head.row()


def test_a_header_is_taken_as_it_was_when_it_was_given(place: Place) -> None:
    """J64 for every store: what its maker changes later is not stored."""
    head = _full_header()
    row = _full_header().row()
    with place.open() as store:
        store.create(head)
        head.fields["spawnedBy"]["turn"] = 99
        head.fields["cwd"] = "/elsewhere"
        store.append("child", _answered())
        assert store.load("child").header.row() == row


def test_a_batch_is_taken_as_it_was_when_it_was_given(place: Place) -> None:
    """O7, O12: neither the list nor what is in it is the store's once it returns."""
    events = _answered()
    before = exact(events)
    with place.open() as store:
        store.create(header())
        store.append("s", events)
        events[2].data["content"][0]["text"] = "changed"
        events.clear()
        assert exact(store.load("s").events) == before


def test_what_is_loaded_is_the_callers_own(place: Place) -> None:
    """O8: nobody can change what is stored through what was loaded."""
    log = LogWriter()
    log.start_turn()
    log.user("q")
    written(place, log.events, _full_header())
    with place.open() as store:
        for read in (store.inspect, store.load, store.load, store.resume):
            stored = read("child")
            before, row = exact(stored.events), stored.header.row()
            stored.events[1].data["content"].clear()
            stored.events.clear()
            stored.header.fields.clear()
            assert exact(store.inspect("child").events) == before
            assert store.inspect("child").header.row()["id"] == row["id"]
        assert store.inspect("child").header.row() == _full_header().row()


def test_an_empty_append_does_nothing(place: Place) -> None:
    """O32: it stays lazy, and nobody is asked whether the session exists."""
    with place.open() as store:
        store.create(header())
        store.append("s", [])
        store.append("nobody", [])
        assert store.sessions() == []
        store.append("s", _answered())
        revision = store.revision("s")
        store.append("s", [])
        assert store.revision("s") == revision


def test_a_session_that_was_only_reserved_is_nowhere(place: Place) -> None:
    """C6, O4, O21: it is not stored, and its id is free once it is let go."""
    with place.open() as store:
        store.create(header())
        assert store.is_live("s")
        assert store.sessions() == []
        for read in (store.load, store.inspect, store.revision):
            with pytest.raises(SessionNotFoundError):
                read("s")
        store.release("s")
        assert not store.is_live("s")
        store.create(header(created_at=2))
        store.append("s", _answered())
    with place.open() as store:
        assert store.load("s").header.created_at == 2


def test_no_id_is_given_twice(place: Place) -> None:
    """O34, O20: while it is reserved, while it is written, once it is stored."""
    with place.open() as store:
        store.create(header(cwd="/one"))
        with pytest.raises(SessionExistsError, match='session "s" exists already'):
            store.create(header(cwd="/two"))
        store.append("s", _answered())
        with pytest.raises(SessionExistsError):
            store.create(header(cwd="/two"))
        store.release("s")
        with pytest.raises(SessionExistsError):
            store.create(header(cwd="/two"))
    with place.open() as store:
        with pytest.raises(SessionExistsError):
            store.create(header())
        assert not store.is_live("s")
        assert exact(store.load("s").events) == exact(_answered())


@pytest.mark.parametrize("offset", [-8, -1, 1, 100])
def test_a_batch_begins_where_the_log_ends(place: Place, offset: int) -> None:
    """C10, J34, S7: and what is refused leaves nothing, and harms nothing."""
    events = _answered(2)
    with place.open() as store:
        store.create(header())
        store.append("s", events[:8])
        wrong = events[8]
        with pytest.raises(AppendError, match="continues at 8"):
            store.append("s", [Event(8 + offset, wrong.type, 1, wrong.data)])
        with pytest.raises(AppendError):
            store.append("s", events[:8])
        store.append("s", events[8:])
    with place.open() as store:
        assert exact(store.load("s").events) == exact(events)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_gap_inside_a_batch_is_refused_whole(place: Place, is_first: bool) -> None:
    """C11: writing nothing."""
    events = _answered(2)
    done = 0 if is_first else 4
    with place.open() as store:
        store.create(header())
        store.append("s", events[:done])
        with pytest.raises(AppendError):
            store.append("s", [*events[done : done + 2], *events[done + 3 :]])
        assert store.is_live("s")
        if is_first:
            assert store.sessions() == []
        else:
            assert exact(store.read_from("s", 0)) == exact(events[:done])
        store.append("s", events[done:])
        assert exact(store.load("s").events) == exact(events)


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def _too_deep() -> Any:
    value: Any = None
    for _ in range(201):
        value = [value]
    return value


NO_JSON: dict[str, Callable[[], Any]] = {
    "NaN": lambda: math.nan,
    "infinity": lambda: math.inf,
    "minus zero": lambda: -0.0,
    "big integer": lambda: 2**53,
    "bytes": lambda: b"x",
    "tuple": lambda: (1,),
    "set": lambda: {1},
    "key that is no text": lambda: {1: "x"},
    "function": lambda: len,
    "object": lambda: object(),
    "cycle": _cycle,
    "too deep": _too_deep,
}


@pytest.mark.parametrize("what", NO_JSON)
def test_what_is_no_lossless_json_is_refused(place: Place, what: str) -> None:
    """C12, J91: with a diagnostic that says so, and nothing of its batch is stored."""
    good = _answered()
    bad = Event(len(good), "session/title", 1, {"title": ["fine", NO_JSON[what]()]})
    with place.open() as store:
        store.create(header())
        with pytest.raises(
            AppendError, match=r"event 8: session/title .*lossless JSON"
        ):
            store.append("s", [*good, bad])
        assert store.sessions() == []
        store.append("s", good)
        with pytest.raises(AppendError, match="lossless JSON"):
            store.append("s", [bad])
        store.append("s", [Event(8, "session/title", 1, {"title": "fine"})])
        assert len(store.load("s").events) == 9


def test_deep_data_that_was_taken_can_be_read(place: Place) -> None:
    """F7: the same bound on the way in and on the way out."""
    value: Any = None
    for _ in range(199):
        value = [value]
    events = [Event(0, "session/title", 1, {"v": value})]
    written(place, events)
    with place.open() as store:
        assert exact(store.load("s").events) == exact(events)


@pytest.mark.parametrize(
    ("kind", "is_ignorable", "is_taken"),
    [
        ("x/new", False, False),
        ("x/new", True, True),
        ("mode/set", True, False),
        ("request/header-delta", True, False),
        ("text-chunks", True, False),
        ("reasoning-chunks", False, False),
        ("tool-call-chunks", True, False),
    ],
)
def test_what_could_not_be_loaded_is_not_taken(
    place: Place, kind: str, is_ignorable: bool, is_taken: bool
) -> None:
    """F8, D1, J25, P48: one check for both directions."""
    event = Event(8, kind, 1, {"turn": 1}, ignorable=is_ignorable)
    events = [*_answered(), event]
    with place.open() as store:
        store.create(header())
        if is_taken:
            store.append("s", events)
        else:
            with pytest.raises((UnsupportedError, AppendError), match=kind):
                store.append("s", events)
            store.append("s", events := events[:8])
        assert exact(store.load("s").events) == exact(events)


def test_a_retired_fallback_header_is_not_taken(place: Place) -> None:
    """J26, P49."""
    config = {"provider": "p", "model": "m"}
    data = {"header": {"config": config}, "reason": "fallback"}
    with place.open() as store:
        store.create(header())
        with pytest.raises(UnsupportedError, match="fallback"):
            store.append("s", [Event(0, "request/header", 1, data)])


def test_append_takes_up_what_is_only_stored(place: Place) -> None:
    """O31, J87: its seq goes on, and an open turn is closed first."""
    log = LogWriter()
    log.answered_turn("q", "a")
    log.start_turn()
    written(place, log.events)
    with place.open() as store:
        title = Event(10, "session/title", 1, {"title": "x"})
        store.append("s", [title])
        events = store.read_from("s", 8)
        assert [event.type for event in events] == [
            "turn/start",
            "turn/end",
            "session/title",
        ]
        assert store.is_live("s")
    with place.open() as store, pytest.raises(SessionNotFoundError):
        store.append("nobody", _answered())


def test_a_resumed_session_goes_on_and_its_seed_is_not_written_again(
    place: Place,
) -> None:
    """O13, O14, O26, O27: one marker, its own header, new events behind the old."""
    log = LogWriter()
    log.answered_turn("q", "inherited")
    length = len(log.events)
    log.add("session/end-seed", {})
    head = _full_header(seedLength=length)
    written(place, log.events, head)
    for turn in range(3):
        log.answered_turn(f"q{turn}", f"a{turn}")
        with place.open() as store:
            stored = store.resume("child")
            assert stored.header.row() == head.row()
            store.append("child", log.events[len(stored.events) :])
    with place.open() as store:
        stored = store.load("child")
        assert exact(stored.events) == exact(log.events)
        marks = [event.seq for event in stored.events if event.type.endswith("-seed")]
        assert marks == [length]
        assert stored.header.created_at == head.created_at


def test_batches_of_many_sessions_do_not_hinder_each_other(place: Place) -> None:
    """J36: one that cannot be stored is said so; the others are durable."""
    with place.open() as store:
        for name in "abc":
            store.create(header(name))
        late = _answered(2)[8:]
        batches = [Batch("a", _answered()), Batch("b", late), Batch("c", _answered(3))]
        outcomes = store.append_logged([*batches, Batch("nobody", _answered())])
        assert [type(outcome) for outcome in outcomes] == [
            type(None),
            StoreError,
            type(None),
            StoreError,
        ]
        assert "0 events" in str(outcomes[1])
        assert store.append_logged([]) == []
        again = store.append_logged([Batch("b", _answered()), Batch("a", late)])
        assert again == [None, None]
    with place.open() as store:
        lengths = {name: len(store.load(name).events) for name in "abc"}
        assert lengths == {"a": 16, "b": 8, "c": 24}


def test_appending_both_ways_is_one_log(place: Place) -> None:
    """C10: what was appended unchecked is known to the checks of what follows."""
    events = _answered(3)
    with place.open() as store:
        store.create(header())
        store.append("s", events[:5])
        assert store.append_logged([Batch("s", events[5:12])]) == [None]
        with pytest.raises(AppendError):
            store.append("s", events[5:])
        store.append("s", events[12:])
        assert exact(store.load("s").events) == exact(events)


def test_a_run_of_chunks_is_split_by_batches_and_read_as_one(place: Place) -> None:
    """J56, J58, J59: how deltas are packed shows nowhere."""
    log = LogWriter()
    log.start_turn()
    log.start_step()
    for number in range(20):
        log.chunks(delta(str(number)))
    log.end_turn()
    with place.open() as store:
        store.create(header())
        for first in range(0, len(log.events), 7):
            store.append("s", log.events[first : first + 7])
        for seq in range(len(log.events) + 1):
            assert exact(store.read_from("s", seq)) == exact(log.events[seq:])


def test_a_closed_store_does_nothing_more(place: Place) -> None:
    """O16: what was appended is durable already; closing twice is one closing."""
    store = place.open()
    store.create(header())
    store.append("s", _answered())
    store.close()
    store.close()
    store.release("s")
    calls: list[Callable[[], Any]] = [
        lambda: store.create(header("t")),
        lambda: store.append("s", _answered()),
        lambda: store.append_logged([]),
        lambda: store.resume("s"),
        lambda: store.load("s"),
        lambda: store.inspect("s"),
        lambda: store.read_from("s", 0),
        lambda: store.revision("s"),
        lambda: store.delete("s"),
        lambda: store.children("s"),
        lambda: store.is_live("s"),
        store.sessions,
    ]
    for call in calls:
        with pytest.raises(StoreError, match="is closed"):
            call()
    with place.open() as again:
        assert exact(again.load("s").events) == exact(_answered())


def test_an_append_that_is_interrupted_after_it_was_stored(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C, say: the store looks again before it goes on."""
    with place.open() as store:
        store.create(header())
        backend, write = store._backend, store._backend.write

        def interrupted(writes: Any) -> Any:
            write(writes)
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(backend, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.append("s", _answered())
        length = len(store.read_from("s", 0))
        assert length == len(_answered())
        more = Event(length, "session/title", 1, {"title": "t"})
        store.append("s", [more])
        assert store.read_from("s", length)[0].data == {"title": "t"}
