"""What a parent is told of the children that it was waiting for, as a pure function."""

from __future__ import annotations

from typing import Any

import pytest

from nestling.session.recovery import (
    SUBAGENT_INTERRUPTED,
    answered,
    made_by,
    open_delegations,
    told,
)
from nestling.session.repair import closers
from support.families import born, cut_off, done, waiting
from support.session_logs import LogWriter, text_block


def _pairs(log: LogWriter, *children: Any) -> list[tuple[str, str]]:
    found = made_by(open_delegations(log.events), children)
    return [(call.call_id, child.id) for call, child in found]


@pytest.mark.parametrize("name", ["subagent", "subagent_fork"])
def test_a_child_belongs_to_the_call_that_it_names(name: str) -> None:
    log = waiting("c1", "c2", name=name)
    children = born("x", "c2", block=2), born("y", "c1")
    assert _pairs(log, *children) == [("c2", "x"), ("c1", "y")]


@pytest.mark.parametrize(
    "by",
    [
        {"call_id": "c9"},
        {"turn": 1},
        {"step": 2},
        {"n": 1},
        {"block": None},
        {"callId": None},
        {"block": None, "key": "k", "callId": None},
    ],
)
def test_a_child_of_another_place_belongs_to_no_call(by: dict[str, Any]) -> None:
    """By code, by a tool's second delegation, by a call of another turn or step."""
    call_id = by.pop("call_id", "c1")
    assert _pairs(waiting("c1"), born("x", call_id, **by)) == []


def test_a_root_belongs_to_no_call() -> None:
    stranger = born("x", "c1").with_fields(spawnedBy=None)
    assert _pairs(waiting("c1"), stranger) == []


def test_what_a_plain_tools_body_delegated_is_not_the_calls_result() -> None:
    """The tool has its own result, which nobody knows; the child is no answer to it."""
    log = waiting("c1", name="research")
    assert open_delegations(log.events) == []
    assert _pairs(log, born("x", "c1")) == []


def test_a_call_that_has_its_result_waits_for_nothing() -> None:
    log = waiting("c1", "c2")
    log.tool_result("c1", 0)
    assert [call.call_id for call in open_delegations(log.events)] == ["c2"]
    log.end_step()
    assert open_delegations(log.events) == []


def test_a_call_that_had_not_started_has_a_place_all_the_same() -> None:
    """Its child may be stored before its ``tool/call`` is: two logs, two commits."""
    log = waiting("c1", "c2")
    del log.events[-2:]
    assert [call.call_seq for call in open_delegations(log.events)] == [None, None]
    assert _pairs(log, born("x", "c1")) == [("c1", "x")]


def test_a_settled_child_is_delivered_as_it_would_have_been() -> None:
    log, child = waiting("c1"), born("x", "c1")
    (call,) = open_delegations(log.events)
    assert answered(done()) is not None
    block = {
        "type": "tool-result",
        "toolCallId": "c1",
        "content": [text_block("found it")],
        "isError": False,
    }
    assert told(call, child, done()) == {"block": block}


@pytest.mark.parametrize(
    "kind", ["completed", "aborted", "error", "max-tokens", "blocked"]
)
def test_a_child_is_settled_by_any_end_of_its_own(kind: str) -> None:
    log, child = LogWriter(), born("x", "c1")
    log.start_turn()
    log.end_turn(kind)
    assert answered(log.events) is not None
    (call,) = open_delegations(waiting("c1").events)
    known = told(call, child, log.events)
    assert known["block"]["isError"] == (kind != "completed")


def test_a_cut_off_child_is_reported_with_its_id_and_what_it_said() -> None:
    child = born("x", "c1")
    (call,) = open_delegations(waiting("c1").events)
    events = cut_off()
    open_or_closed = events, [*events, *closers(events)]
    assert told(call, child, open_or_closed[0]) == told(call, child, open_or_closed[1])
    for log in open_or_closed:
        assert answered(log) is None
        known = told(call, child, log)
        assert known["error"]["code"] == SUBAGENT_INTERRUPTED
        assert known["block"]["isError"]
        first, second = (part["text"] for part in known["block"]["content"])
        assert '"x"' in first
        assert "after 1 model call." in first
        assert second == "looking"


def test_a_child_that_never_began_is_reported_as_interrupted() -> None:
    """Header, seed and marker are there, and nothing of its own."""
    seed = LogWriter()
    seed.answered_turn("q", "the parent's")
    length = len(seed.events)
    seed.add("session/end-seed", {})
    child = born("x", "c1", context="fork").with_fields(seedLength=length)
    (call,) = open_delegations(waiting("c1").events)
    assert answered(seed.events[length:]) is None
    known = told(call, child, seed.events)
    (text,) = (part["text"] for part in known["block"]["content"])
    assert "after 0 model calls." in text


def test_what_a_child_inherited_is_not_what_it_came_to() -> None:
    """A fork's seed ends with a turn that ended by itself: the parent's."""
    log = LogWriter()
    log.answered_turn("q", "the parent's")
    length = len(log.events)
    log.add("session/end-seed", {})
    log.start_turn()
    child = born("x", "c1").with_fields(seedLength=length)
    assert answered(log.events[length:]) is None
    (call,) = open_delegations(waiting("c1").events)
    assert "the parent's" not in str(told(call, child, log.events))


@pytest.mark.parametrize("later", ["answered", "cut"])
def test_what_a_child_was_asked_later_is_not_its_answer(later: str) -> None:
    """Somebody has resumed it by itself, before or after its driver died."""
    log, child = LogWriter(), born("x", "c1")
    log.answered_turn("price tea", "2.5")
    if later == "answered":
        log.answered_turn("price rum", "9.0")
    else:
        log.start_turn()
        log.start_step()
        log.user("price rum")
        log.add("step/end", {"turn": 2, "step": 1})
        log.end_turn("interrupted")
    (call,) = open_delegations(waiting("c1").events)
    known = told(call, child, log.events)
    assert known["block"]["content"] == [text_block("2.5")]
    assert known["block"]["isError"] is False
    assert "error" not in known


@pytest.mark.parametrize(("again", "is_done"), [("slow", True), ("price tea", False)])
def test_an_interrupted_child_that_went_on(again: str, is_done: bool) -> None:
    """Its task is done by a turn that was told the same, and by no other."""
    log, child = LogWriter(), born("x", "c1")
    log.start_turn()
    log.start_step()
    log.user("slow")
    log.end_step()
    log.end_turn("interrupted")
    log.answered_turn(again, "2.5")
    (call,) = open_delegations(waiting("c1").events)
    known = told(call, child, log.events)
    assert known["block"]["isError"] is not is_done
    assert ("2.5" in str(known)) is is_done
