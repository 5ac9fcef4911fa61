"""The contract of stores: reading, listing, revisions, deleting."""

from __future__ import annotations

from typing import Any

import pytest

from nestling.session.errors import SessionNotFoundError, StoreError
from nestling.session.event import Event
from nestling.session.store_io import SessionStore, open_store
from support.session_logs import LogWriter
from support.stores import Place, exact, header, written


def _events(turns: int = 1) -> list[Event]:
    log = LogWriter()
    for turn in range(turns):
        log.answered_turn(f"q{turn}", "a")
    return log.events


def _revisions(store: SessionStore) -> dict[str, str]:
    return {listed.id: listed.revision for listed in store.sessions()}


def test_a_suffix_is_read_as_it_is_stored(place: Place) -> None:
    """C8: exact, empty past the end, and an open turn stays open."""
    log = LogWriter()
    log.answered_turn("q", "a")
    log.start_turn()
    log.user("next")
    written(place, log.events)
    with place.open() as store:
        before, files = store.revision("s"), place.files()
        for seq in range(len(log.events) + 1):
            assert exact(store.read_from("s", seq)) == exact(log.events[seq:])
        assert store.read_from("s", 10_000) == []
        assert store.read_from("s", 2**53 - 1) == []
        assert store.revision("s") == before
        assert place.files() == files


@pytest.mark.parametrize("seq", [-1, 1.0, 0.5, True, None, "1", 2**53])
def test_a_seq_that_is_none_is_refused(place: Place, seq: Any) -> None:
    """C8."""
    written(place, _events())
    with place.open() as store, pytest.raises(StoreError, match="integer >= 0"):
        store.read_from("s", seq)


def test_what_is_not_stored_is_not_found(place: Place) -> None:
    """C8, O33: by any way of reading, before the store exists and after."""
    for is_there in (False, True):
        with place.open() as store:
            for read in (store.load, store.inspect, store.resume, store.revision):
                with pytest.raises(SessionNotFoundError, match="nobody"):
                    read("nobody")
            with pytest.raises(SessionNotFoundError, match="nobody"):
                store.read_from("nobody", 0)
            with pytest.raises(SessionNotFoundError, match="nobody"):
                store.delete("nobody")
            assert not store.is_live("nobody")
            assert store.children("nobody") == []
            if not is_there:
                assert store.sessions() == []
                written(place, _events())


def test_reading_a_store_that_is_not_there_makes_none(durable: Place) -> None:
    """J67, J82, S21."""
    with durable.open() as store:
        assert store.sessions() == []
        with pytest.raises(SessionNotFoundError):
            store.load("s")
    assert durable.files() == {}


def test_a_revision_changes_with_the_log_and_only_then(place: Place) -> None:
    """C9, J18, P17: every way to ask says the same."""
    events = _events(3)
    seen: set[str] = set()
    with place.open() as store:
        store.create(header())
        for first in range(0, 24, 6):
            store.append("s", events[first : first + 6])
            revision = store.revision("s")
            assert revision not in seen
            seen.add(revision)
            store.read_from("s", 0)
            assert _revisions(store) == {"s": revision}
            assert store.inspect("s").revision == revision
        assert store.load("s").revision == revision
    with place.open() as store:
        assert store.revision("s") == revision
        assert store.load("s").revision == revision


def test_a_revision_is_one_sessions(place: Place) -> None:
    """C9: what happens to others does not show in it."""
    written(place, _events(), header("a"))
    with place.open() as store:
        before = store.revision("a")
    written(place, _events(), header("b"))
    with place.open() as store:
        assert store.revision("a") == before != store.revision("b")
        store.delete("b")
        assert store.revision("a") == before


def test_a_session_that_takes_anothers_place_has_another_revision(
    place: Place,
) -> None:
    """C9: deleted and made again with the same events it is not the same."""
    written(place, _events())
    with place.open() as store:
        before = store.revision("s")
        store.delete("s")
    written(place, _events(), header(created_at=2))
    with place.open() as store:
        assert store.revision("s") != before


def test_lists_are_ordered_by_id(place: Place) -> None:
    """J65: across directories, as text and not as numbers."""
    names = ["b", "a", "10", "9", "é", "A", "a/b", "a-b"]
    for name in names:
        written(place, _events(), header(name, cwd=f"/{name}"))
    with place.open() as store:
        assert [listed.id for listed in store.sessions()] == sorted(names)
        assert all(listed.problem == "" for listed in store.sessions())
        heads = [listed.header and listed.header.fields for listed in store.sessions()]
        assert heads == [{"cwd": f"/{name}"} for name in sorted(names)]


def test_children_are_those_that_name_their_parent(place: Place) -> None:
    """O38: by id; a grandchild is none, and a parent need not be stored."""
    for name, parent in {"z": "p", "b": "p", "g": "b", "o": "other"}.items():
        written(place, _events(), header(name, parentSession=parent))
    written(place, _events(), header("p"))
    with place.open() as store:
        assert [child.id for child in store.children("p")] == ["b", "z"]
        assert [child.id for child in store.children("b")] == ["g"]
        assert [child.id for child in store.children("other")] == ["o"]
        assert store.children("z") == []


def test_a_deleted_session_is_gone_and_its_children_are_not(place: Place) -> None:
    """B: what they inherited is in their own logs."""
    log = LogWriter()
    log.answered_turn("q", "a")
    written(place, log.events, header("p"))
    log.add("session/end-seed", {})
    written(place, log.events, header("c", parentSession="p", seedLength=8))
    with place.open() as store:
        store.delete("p")
        with pytest.raises(SessionNotFoundError):
            store.load("p")
        assert exact(store.load("c").events) == exact(log.events)
        assert [child.id for child in store.children("p")] == ["c"]
        with pytest.raises(SessionNotFoundError):
            store.delete("p")
        store.create(header("p"))
        store.append("p", _events(2))
    with place.open() as store:
        assert exact(store.load("p").events) == exact(_events(2))


def test_two_objects_see_one_store(place: Place) -> None:
    """O31: what one has appended the other reads, at once."""
    events = _events(2)
    with place.open() as writer, place.open() as reader:
        writer.create(header())
        assert reader.sessions() == []
        writer.append("s", events[:8])
        assert exact(reader.read_from("s", 0)) == exact(events[:8])
        before = reader.revision("s")
        writer.append("s", events[8:])
        assert exact(reader.inspect("s").events) == exact(events)
        assert reader.revision("s") == writer.revision("s") != before


@pytest.mark.parametrize(
    "address", ["", "jsonl", "jsonl:", "sqlite:", "memory:x", "s3:bucket", "memory"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    """S27: with what was expected."""
    with pytest.raises(StoreError, match="expected jsonl:DIR, sqlite:FILE or memory:"):
        open_store(address)


def test_a_stores_name_is_its_address(place: Place) -> None:
    """J9: errors name what was opened, and it can be opened by that name."""
    with place.open() as store:
        assert store.name == place.address
        with pytest.raises(SessionNotFoundError, match=r"session \"s\" is not stored"):
            store.load("s")
