"""A parent that waited for children when all of it was cut off, over every store."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from nestling.session.errors import CorruptError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.recovery import SUBAGENT_INTERRUPTED
from nestling.session.repair import NOT_STARTED, OUTCOME_UNKNOWN
from nestling.session.store_io import SessionStore
from support.families import born, cut_off, delegate, done, result_of, waiting
from support.session_logs import LogWriter, call_block, text_block
from support.stores import Place, exact, header, written

P = header("p")


def _family(place: Place, parent: LogWriter, *children: tuple[Header, Any]) -> None:
    written(place, parent.events, P)
    for head, events in children:
        written(place, events, head)


def _load(store: SessionStore) -> list[Event]:
    return store.load("p").events


def _resume(store: SessionStore) -> list[Event]:
    return store.resume("p").events


def _append(store: SessionStore) -> list[Event]:
    seq = len(store.inspect("p").events)
    store.append("p", [Event(seq, "session/title", 1, {})])
    return store.read_from("p", 0)[:-1]


REPAIRS: list[Callable[[SessionStore], list[Event]]] = [_load, _resume, _append]


@pytest.mark.parametrize("repair", REPAIRS)
def test_a_settled_child_is_delivered_once(
    place: Place, repair: Callable[[SessionStore], list[Event]]
) -> None:
    """Whichever way the parent is taken up, and however often."""
    _family(place, waiting("c1"), (born("x", "c1"), done()))
    with place.open() as store:
        seen = store.inspect("p")
        assert result_of(seen.events, "c1") == ("", ["found it"])
        assert seen.closers == 3
        assert exact(repair(store)) == exact(seen.events)
        for again in (store.inspect, store.load):
            assert exact(again("p").events[: len(seen.events)]) == exact(seen.events)
    with place.open() as store:
        for take in (store.load, store.inspect, store.load, store.resume):
            stored = take("p")
            assert stored.closers == 0
            assert exact(stored.events[: len(seen.events)]) == exact(seen.events)
            assert result_of(stored.events, "c1") == ("", ["found it"])


@pytest.mark.parametrize("is_child_first", [True, False])
def test_an_interrupted_child_is_reported_once(
    place: Place, is_child_first: bool
) -> None:
    """With its id and what it had said; whether it was repaired before is all one."""
    _family(place, waiting("c1"), (born("x", "c1"), cut_off()))
    with place.open() as store:
        if is_child_first:
            store.load("x")
        seen = store.inspect("p").events
        for _ in range(2):
            assert exact(store.load("p").events) == exact(seen)
        code, texts = result_of(seen, "c1")
        assert code == SUBAGENT_INTERRUPTED
        assert '"x"' in texts[0]
        assert texts[1:] == ["looking"]
        assert store.inspect("x").closers == (0 if is_child_first else 3)


def test_a_child_that_never_was_leaves_the_outcome_unknown(place: Place) -> None:
    """Nothing says what the call did before all was cut off."""
    _family(place, waiting("c1"), (born("x", "c9"), done()))
    with place.open() as store:
        assert result_of(store.load("p").events, "c1")[0] == OUTCOME_UNKNOWN


def test_a_call_that_had_not_started_made_no_child(place: Place) -> None:
    parent = waiting("c1")
    del parent.events[-1]
    _family(place, parent)
    with place.open() as store:
        assert result_of(store.load("p").events, "c1")[0] == NOT_STARTED


def test_of_two_children_one_had_settled(place: Place) -> None:
    """Results in the order of the calls, each its own child's."""
    _family(
        place,
        waiting("c1", "c2", "c3"),
        (born("a", "c3", block=3), done("third")),
        (born("b", "c1", block=1), cut_off()),
    )
    with place.open() as store:
        seen = store.inspect("p").events
        assert exact(store.load("p").events) == exact(seen)
        ids = [
            event.data["message"]["source"]["callId"]
            for event in seen
            if event.type == "tool/result"
        ]
        assert ids == ["c1", "c2", "c3"]
        assert result_of(seen, "c1")[0] == SUBAGENT_INTERRUPTED
        assert result_of(seen, "c2")[0] == OUTCOME_UNKNOWN
        assert result_of(seen, "c3") == ("", ["third"])


def test_a_result_that_was_logged_is_not_told_again(place: Place) -> None:
    """One of two was delivered before the crash; a crash does not deliver it twice."""
    parent = waiting("c1", "c2")
    parent.tool_result("c1", parent.events[-2].seq)
    _family(
        place,
        parent,
        (born("a", "c1", block=1), done("already told")),
        (born("b", "c2", block=2), done("now told")),
    )
    with place.open() as store:
        events = store.load("p").events
        assert result_of(events, "c1") == ("", [])
        assert result_of(events, "c2") == ("", ["now told"])


def test_grandchildren_first(place: Place) -> None:
    """A child that waited for its own child comes to what that will have come to."""
    child = LogWriter()
    delegate(child, "g1")
    _family(
        place,
        waiting("c1"),
        (born("x", "c1"), child.events),
        (born("y", "g1", parent="x", turn=1), done("deep")),
    )
    with place.open() as store:
        seen = store.inspect("p").events
        code, texts = result_of(seen, "c1")
        assert code == SUBAGENT_INTERRUPTED
        assert texts[1:] == ["on it"]
        assert result_of(store.inspect("x").events, "g1") == ("", ["deep"])
        assert store.inspect("x").closers == 3, "telling the parent repairs nobody else"
        assert exact(store.load("p").events) == exact(seen)
        assert result_of(store.load("x").events, "g1") == ("", ["deep"])
        assert exact(store.load("p").events) == exact(seen)


def test_order_of_repair_is_all_one(place: Place) -> None:
    """Children repaired before or after their parent: it is told the same."""
    family = (
        waiting("c1", "c2"),
        (born("a", "c1", block=1), cut_off("a was here")),
        (born("b", "c2", block=2), done()),
    )
    _family(place, *family)
    with place.open() as store:
        before = exact(store.inspect("p").events)
        for child in ("a", "b"):
            store.load(child)
        assert exact(store.inspect("p").events) == before
        assert exact(store.load("p").events) == before


@pytest.mark.parametrize(
    "by", [{"n": 1}, {"block": None, "callId": None}, {"turn": 1}, {"callId": "c2"}]
)
def test_a_child_of_another_place_is_not_the_calls(
    place: Place, by: dict[str, Any]
) -> None:
    """By code in the same step, a second delegation, an earlier turn, a twin call."""
    _family(place, waiting("c1"), (born("x", "c1", **by), done("not mine")))
    with place.open() as store:
        assert result_of(store.load("p").events, "c1")[0] == OUTCOME_UNKNOWN


def test_a_plain_tools_child_is_not_its_result(place: Place) -> None:
    """The body of a tool delegated; what the tool returned nobody knows."""
    _family(place, waiting("c1", name="research"), (born("x", "c1"), done("inner")))
    with place.open() as store:
        assert result_of(store.load("p").events, "c1")[0] == OUTCOME_UNKNOWN


def test_headers_that_lie_about_parents_end(place: Place) -> None:
    """Cycles of parentSession, each of whose members waits for the next."""
    for name, parent in {"p": "z", "y": "p", "z": "y"}.items():
        written(place, waiting("c1").events, born(name, "c1", parent=parent))
    written(place, waiting("c1").events, born("own", "c1", parent="own"))
    with place.open() as store:
        for name in ("p", "y", "z", "own"):
            seen = store.inspect(name).events
            assert exact(store.load(name).events) == exact(seen)
            assert store.load(name).closers == 0


def test_a_long_line_of_descendants_is_told(place: Place) -> None:
    """What waits for what is no matter of the stack."""
    depth = 400 if place.scheme == "memory" else 10
    names = ["p", *(f"d{number}" for number in range(depth))]
    written(place, waiting("c1").events, P)
    for parent, name in pairwise(names):
        turn = 2 if parent == "p" else 1
        header = born(name, "c1", parent=parent, turn=turn)
        written(place, delegate(LogWriter(), "c1").events, header)
    with place.open() as store:
        seen = store.inspect("p").events
        assert result_of(seen, "c1")[0] == SUBAGENT_INTERRUPTED
        assert exact(store.load("p").events) == exact(seen)


def test_a_child_that_is_written_elsewhere_is_told_as_it_stands(place: Place) -> None:
    """Somebody has taken it up by itself: what the parent waited for is over."""
    _family(
        place,
        waiting("c1", "c2"),
        (born("a", "c1", block=1), done()),
        (born("b", "c2", block=2), cut_off()),
    )
    with place.open() as other, place.open() as store:
        other.resume("a")
        other.resume("b")
        more = delegate(LogWriter(), "later").events[0]
        length = len(other.inspect("b").events)
        again = Event(length, more.type, 1, {"turn": 2})
        other.append("b", [again])
        seen = store.inspect("p").events
        assert result_of(seen, "c1") == ("", ["found it"])
        assert result_of(seen, "c2")[0] == SUBAGENT_INTERRUPTED
        assert exact(store.load("p").events) == exact(seen)
        assert len(other.inspect("b").events) == length + 1


@pytest.mark.parametrize("problem", ["digest", "boundary"])
def test_a_child_that_cannot_be_read_leaves_the_outcome_unknown(
    place: Place, problem: str
) -> None:
    """The parent can be loaded all the same, and so can its other children."""
    wrong = {"seedLength": 1, "seedDigest": "0" * 64}
    if problem == "boundary":
        wrong = {"seedLength": 10_000}
    _family(
        place,
        waiting("c1", "c2"),
        (born("a", "c1", block=1).with_fields(**wrong), done()),
        (born("b", "c2", block=2), done("sound")),
    )
    with place.open() as store:
        with pytest.raises(CorruptError):
            store.load("a")
        events = store.load("p").events
        assert result_of(events, "c1")[0] == OUTCOME_UNKNOWN
        assert result_of(events, "c2") == ("", ["sound"])


def test_a_fork_is_told_by_its_own_events(place: Place) -> None:
    """Its seed is the parent's completed turn, which is no answer of its own."""
    parent = waiting("c1", "c2", name="subagent_fork")
    seed = LogWriter()
    seed.answered_turn("q", "a")
    length = len(seed.events)
    seed.add("session/end-seed", {})
    unborn = list(seed.events)
    seed.answered_turn("task", "forked")
    fork: dict[str, Any] = {"context": "fork"}
    _family(
        place,
        parent,
        (born("a", "c1", **fork).with_fields(seedLength=length), seed.events),
        (born("b", "c2", block=2, **fork).with_fields(seedLength=length), unborn),
    )
    with place.open() as store:
        events = store.load("p").events
        assert result_of(events, "c1") == ("", ["forked"])
        code, texts = result_of(events, "c2")
        assert code == SUBAGENT_INTERRUPTED
        assert "after 0 model calls" in texts[0]


def test_a_child_whose_last_words_nobody_spoke_is_told_by_its_own(
    place: Place,
) -> None:
    """Fault A11: a stand-in is neither the result nor a model call."""
    child = LogWriter()
    child.start_turn()
    child.start_step()
    child.assistant(text_block("mine"), call_block("t"))
    stand_in = {
        "id": "x",
        "role": "assistant",
        "content": [text_block("dead")],
        "source": {"kind": "host"},
    }
    data = {"turn": 1, "step": 1, "message": stand_in}
    child.add("assistant/message", data, surfaceOp="append")
    _family(place, waiting("c1"), (born("x", "c1"), child.events))
    with place.open() as store:
        texts = result_of(store.load("p").events, "c1")[1]
        assert "after 1 model call." in texts[0]
        assert texts[1:] == ["mine"]
