"""The contract of stores: what a crash leaves is closed, once, and never rewritten."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nestling.session.errors import CorruptError, LeaseError
from nestling.session.event import Event
from nestling.session.memory_backend import MemoryBackend
from nestling.session.repair import NOT_STARTED, OUTCOME_UNKNOWN, closers
from nestling.session.store_backend import Held
from nestling.session.store_io import SessionStore
from support.damage import spoil
from support.families import forked
from support.session_logs import LogWriter, call_block, delta, text_block, types
from support.stores import Place, exact, header, written


def _cut_off() -> LogWriter:
    """A log whose second turn was cut off; one of its calls ran, one had not begun."""
    log = LogWriter()
    log.answered_turn("q", "a")
    log.start_turn()
    log.start_step()
    log.user("next")
    log.chunks(*[delta(text) for text in "abc"])
    log.assistant(text_block("abc"), call_block("c1"), call_block("c2"))
    log.tool_call("c1")
    return log


def test_an_interrupted_turn_is_kept_and_closed(place: Place) -> None:
    """C3: by load; inspect shows it and changes nothing; then the session goes on."""
    log = _cut_off()
    written(place, log.events)
    with place.open() as store:
        before, files = store.revision("s"), place.files()
        seen = store.inspect("s")
        assert seen.closers == 4
        assert store.revision("s") == before == seen.revision
        assert place.files() == files
        assert exact(store.read_from("s", 0)) == exact(log.events)
        loaded = store.load("s")
        assert exact(loaded.events) == exact(seen.events)
        assert exact(loaded.events[: len(log.events)]) == exact(log.events)
        assert loaded.closers == 4
        after = store.revision("s")
        assert after != before
        assert loaded.revision == after
        again = store.load("s")
        assert (again.closers, again.revision) == (0, after)
        assert exact(again.events) == exact(loaded.events)
        seq = len(loaded.events)
        store.append("s", [Event(seq, "turn/start", 1, {"turn": 3})])
        assert len(store.read_from("s", seq)) == 1


def test_what_closes_a_turn_says_what_is_known(place: Place) -> None:
    """C4, C5, A1: unknown for the call that ran, citing it; a retry for the other."""
    log = _cut_off()
    written(place, log.events)
    with place.open() as store:
        first, second, step, turn = store.load("s").events[len(log.events) :]
        unknown, not_started = first.data, second.data
        assert unknown["error"]["code"] == OUTCOME_UNKNOWN
        assert first.source_event_seqs == [log.events[-1].seq]
        assert "verify" in str(unknown["message"])
        assert not_started["error"]["code"] == NOT_STARTED
        assert second.source_event_seqs is None
        assert "calling again is safe" in str(not_started["message"])
        assert (step.type, turn.type) == ("step/end", "turn/end")
        assert turn.data == {"turn": 2, "reason": {"kind": "interrupted"}}
        assert {event.time for event in (first, second, step, turn)} == {
            log.events[-1].time
        }


def test_a_balanced_session_is_not_touched(place: Place) -> None:
    """P24, S24: nothing to repair is nothing to write."""
    log = LogWriter()
    log.answered_turn("q", "a")
    written(place, log.events)
    with place.open() as store:
        before, files = store.revision("s"), place.files()
        store.load("s")
        store.inspect("s")
        assert store.revision("s") == before
        assert place.files() == files
        assert store.resume("s").closers == 0
        assert store.revision("s") == before


@pytest.mark.parametrize("length", range(1, 18))
def test_a_log_that_ends_anywhere_is_closed_once(place: Place, length: int) -> None:
    """O40, J28, J88: also one that is nothing but an open turn."""
    log = _cut_off()
    log.tool_result("c1", log.events[-1].seq)
    events = [*log.events[8:], *log.events[:0]]
    events = [
        Event(seq, e.type, e.time, e.data, e.surface_op)
        for seq, e in enumerate(events[:length])
    ]
    written(place, events)
    with place.open() as store:
        whole = exact([*events, *closers(events)])
        assert exact(store.load("s").events) == whole
        assert types(store.load("s").events)[-1] == "turn/end"
    with place.open() as store:
        assert exact(store.resume("s").events) == whole
        assert store.read_from("s", 0) != []


def _load(store: SessionStore) -> None:
    store.load("s")


def _resume(store: SessionStore) -> None:
    store.resume("s")
    store.release("s")


@pytest.mark.parametrize("first", [_load, _resume])
@pytest.mark.parametrize("second", [_load, _resume])
def test_no_closer_is_written_twice(
    place: Place,
    first: Callable[[SessionStore], None],
    second: Callable[[SessionStore], None],
) -> None:
    """A2: whichever way the session is taken up, in one store object or in two."""
    log = _cut_off()
    written(place, log.events)
    whole = exact([*log.events, *closers(log.events)])
    for take in (first, second, first):
        with place.open() as store:
            take(store)
            second(store)
            assert exact(store.read_from("s", 0)) == whole


def test_what_is_being_written_is_not_closed(place: Place) -> None:
    """O2, O19, P23: load refuses while the turn is open; inspect shows it open."""
    log = _cut_off()
    with place.open() as store:
        store.create(header())
        store.append("s", log.events)
        before = store.revision("s")
        with pytest.raises(LeaseError, match="its turn is open"):
            store.load("s")
        seen = store.inspect("s")
        assert (seen.is_live, seen.closers) == (True, 0)
        assert exact(seen.events) == exact(log.events)
        assert store.revision("s") == before
        seq = len(log.events)
        ends = closers(log.events)
        store.append("s", ends)
        stored = store.load("s")
        assert (stored.is_live, stored.closers) == (True, 0)
        assert len(stored.events) == seq + len(ends)
        store.release("s")
        assert not store.load("s").is_live


def test_a_session_let_go_with_an_open_turn_is_one_that_was_cut_off(
    place: Place,
) -> None:
    """O22: whoever lets it go has nothing more to say of it."""
    log = _cut_off()
    with place.open() as store:
        store.create(header())
        store.append("s", log.events)
        store.release("s")
        assert store.inspect("s").closers == 4
        assert store.resume("s").closers == 4
        with pytest.raises(LeaseError):
            store.resume("s")


class _Meddled(MemoryBackend):
    """Something happens right after a session was read."""

    def __init__(self) -> None:
        super().__init__()
        self.then: list[Callable[[], object]] = []

    def read(self, session_id: str) -> Held | None:
        held = super().read(session_id)
        while self.then:
            self.then.pop()()
        return held


def test_a_turn_that_ends_while_it_is_looked_at_was_not_cut_off() -> None:
    """O3: whether it is live is asked after it was read; so it may have ended since."""
    backend = _Meddled()
    log = _cut_off()
    writer, reader = SessionStore(backend), SessionStore(backend)
    writer.create(header())
    writer.append("s", log.events)
    ends = [
        Event(e.seq, e.type, e.time, {**e.data, "reason": {"kind": "completed"}})
        if e.type == "turn/end"
        else e
        for e in closers(log.events)
    ]
    backend.then.append(lambda: writer.append("s", ends))
    seen = reader.inspect("s")
    assert seen.closers == 0
    assert exact(seen.events) == exact([*log.events, *ends])
    assert seen.revision == reader.revision("s")


def test_a_repair_of_what_has_changed_is_not_written() -> None:
    """P25, S8: another writer's events are never closed with what was read before."""
    backend = _Meddled()
    log = _cut_off()
    writer, reader = SessionStore(backend), SessionStore(backend)
    writer.create(header())
    writer.append("s", log.events)
    late = Event(len(log.events), "session/title", 1, {})
    backend.then.append(lambda: None)
    reader.inspect("s")
    backend.then.append(lambda: writer.append("s", [late]))
    stored = reader.load("s")
    assert exact(stored.events[: len(log.events) + 1]) == exact([*log.events, late])
    assert exact(reader.load("s").events) == exact(stored.events)


# --- what a session inherited -----------------------------------------------------------


def _fork_of(place: Place, parent: list[Event]) -> list[Event]:
    """A fork's events; parent and fork are stored."""
    head, events = forked(parent, "f")
    written(place, events, head)
    written(place, parent, header("s"))
    return events


def _parent(answer: str = "a", turns: int = 1) -> list[Event]:
    log = LogWriter()
    for _ in range(turns):
        log.answered_turn("q", answer)
    return log.events


def test_what_was_inherited_is_what_the_header_says(place: Place) -> None:
    """Another prefix than the one whose digest was recorded is damage."""
    head, _ = forked(_parent("a"), "f")
    _, events = forked(_parent("b"), "f")
    written(place, events, head)
    with place.open() as store:
        for read in (store.load, store.inspect, store.resume):
            with pytest.raises(CorruptError, match="digest"):
                read("f")
        assert exact(store.read_from("f", 0)) == exact(events)


@pytest.mark.parametrize("length", [-1, 1, 4, 10_000])
def test_a_boundary_lies_between_turns_of_the_log(place: Place, length: int) -> None:
    """B2, E: seedLength beyond the log, or inside a turn, is refused."""
    head, events = forked(_parent(), "f")
    whole = head.seed_length
    head = head.with_fields(seedLength=length if length > 0 else whole, seedDigest=None)
    written(place, events, head)
    with place.open() as store:
        if length < 0:
            assert exact(store.load("f").events) == exact(events)
        else:
            with pytest.raises(CorruptError, match=r"seedLength|inherited"):
                store.load("f")


def test_a_fork_and_its_parent_agree(place: Place) -> None:
    """Where both are at hand they are compared; the parent may have gone on."""
    events = _fork_of(place, _parent(turns=3))
    with place.open() as store:
        assert exact(store.load("f").events) == exact(events)
        title = Event(24, "session/title", 1, {})
        store.append("s", [title])
        assert exact(store.load("f").events) == exact(events)


def test_a_fork_of_what_its_parent_does_not_hold_is_refused(place: Place) -> None:
    """Somebody has put another session in its parent's place."""
    events = _fork_of(place, _parent("a"))
    with place.open() as store:
        assert exact(store.load("f").events) == exact(events)
        store.delete("s")
        written(place, _parent("b"), header("s", created_at=2))
        with pytest.raises(CorruptError, match="parent"):
            store.load("f")
        store.delete("s")
        assert exact(store.load("f").events) == exact(events)


def test_a_parent_that_cannot_be_read_is_not_the_childs_fault(durable: Place) -> None:
    """The child has all of what it inherited."""
    events = _fork_of(durable, _parent("a", turns=2))
    spoil(durable, 3, "s")
    with durable.open() as store:
        with pytest.raises(CorruptError):
            store.load("s")
        assert exact(store.load("f").events) == exact(events)
