"""Closing a turn that was cut off (faults A1, A2, A3, A10)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.session.boundary import check_seed
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject
from nestling.session.log import SessionLog
from nestling.session.repair import (
    NOT_STARTED,
    OUTCOME_UNKNOWN,
    closers,
    open_calls,
)
from support.session_logs import (
    LogWriter,
    call_block,
    delta,
    finish,
    rows,
    text_block,
    types,
)


def _asked(*call_ids: str) -> LogWriter:
    """A log whose second step asks for tools."""
    log = LogWriter()
    log.answered_turn("q", "a")
    log.start_turn()
    log.start_step()
    log.end_step()
    log.start_step()
    log.user("go")
    log.chunks(*[delta(text) for text in "abc"], finish("tool-calls"))
    log.assistant(text_block("abc"), *[call_block(call_id) for call_id in call_ids])
    return log


def _kinds(events: list[Event]) -> list[tuple[str, ...]]:
    """What each closer is about."""
    return [
        (event.type, event.data["message"]["source"]["callId"], _code(event))
        if event.type == "tool/result"
        else (event.type,)
        for event in events
    ]


def _code(event: Event) -> str:
    code: str = event.data["error"]["code"]
    return code


_ENDS: list[tuple[str, ...]] = [("step/end",), ("turn/end",)]


def test_a_call_that_was_running_has_an_unknown_outcome() -> None:
    """Fault A1: interrupted between call and result."""
    log = _asked("c1")
    call_seq = log.tool_call("c1")
    first_seq, time = len(log.events), log.events[-1].time
    result, step_end, turn_end = closers(log.events)
    assert [e.seq for e in (result, step_end, turn_end)] == [
        first_seq, first_seq + 1, first_seq + 2,
    ]  # fmt: skip
    assert {e.time for e in (result, step_end, turn_end)} == {time}
    assert result.surface_op == "append"
    assert result.source_event_seqs == [call_seq]
    data = result.data
    assert (data["turn"], data["step"]) == (2, 2)
    assert data["error"] == {"name": "ToolOutcomeUnknownError", "code": OUTCOME_UNKNOWN}
    assert data["message"]["id"] == f"interrupted-tool-result-c1-{first_seq}"
    assert data["message"]["role"] == "user"
    assert data["message"]["source"] == {"kind": "tool", "callId": "c1"}
    (block,) = data["message"]["content"]
    assert (block["type"], block["toolCallId"]) == ("tool-result", "c1")
    assert block["isError"] is True
    assert "verify" in block["content"][0]["text"]
    assert step_end.content() == {"type": "step/end", "data": {"turn": 2, "step": 2}}
    assert turn_end.content() == {
        "type": "turn/end",
        "data": {"turn": 2, "reason": {"kind": "interrupted"}},
    }


def test_a_call_that_never_started_may_be_made_again() -> None:
    log = _asked("c1")
    result, *ends = closers(log.events)
    assert result.data["error"] == {"name": "ToolNotStartedError", "code": NOT_STARTED}
    assert result.source_event_seqs is None
    assert "again is safe" in result.data["message"]["content"][0]["content"][0]["text"]
    assert types(ends) == ["step/end", "turn/end"]


def test_a_crash_after_one_of_two_results() -> None:
    """Fault A2: one closer for c2, none for c1, and none when loaded again."""
    log = _asked("c1", "c2")
    c1 = log.tool_call("c1")
    log.tool_call("c2")
    log.tool_result("c1", c1)
    found = closers(log.events)
    assert _kinds(found) == [("tool/result", "c2", OUTCOME_UNKNOWN), *_ENDS]
    assert closers([*log.events, *found]) == []


def test_a_hole_in_a_batch_of_results() -> None:
    """Fault A3: results of c1 and c3, none of c2."""
    log = _asked("c1", "c2", "c3")
    seqs = {call_id: log.tool_call(call_id) for call_id in ("c1", "c2", "c3")}
    log.tool_result("c1", seqs["c1"])
    log.tool_result("c3", seqs["c3"])
    assert _kinds(closers(log.events)) == [
        ("tool/result", "c2", OUTCOME_UNKNOWN), *_ENDS,
    ]  # fmt: skip


def test_a_result_whose_call_was_lost() -> None:
    """Fault A3: the result of c3 has no call; it is kept and nothing crashes."""
    log = _asked("c1", "c2")
    for call_id in ("c1", "c2"):
        log.tool_result(call_id, log.tool_call(call_id))
    log.tool_result("c3", 1)
    assert _kinds(closers(log.events)) == _ENDS


def test_a_turn_that_stopped_on_a_result() -> None:
    """Fault A10: nothing is unanswered, and no answer is invented."""
    log = _asked("c1")
    log.tool_result("c1", log.tool_call("c1"))
    assert _kinds(closers(log.events)) == _ENDS
    log.end_step()
    assert _kinds(closers(log.events)) == [("turn/end",)]


def test_results_stand_in_the_order_of_the_message() -> None:
    log = _asked("c1", "c2", "c3")
    log.tool_call("c3")
    log.tool_call("c1")
    found = closers(log.events)
    assert _kinds(found) == [
        ("tool/result", "c1", OUTCOME_UNKNOWN),
        ("tool/result", "c2", NOT_STARTED),
        ("tool/result", "c3", OUTCOME_UNKNOWN),
        *_ENDS,
    ]
    ids = [event.data["message"]["id"] for event in found[:3]]
    assert ids == [
        f"interrupted-tool-result-c{i + 1}-{len(log.events) + i}" for i in range(3)
    ]


@pytest.mark.parametrize("length", [0, 8])
def test_a_balanced_log_is_left_alone(length: int) -> None:
    assert closers(_asked("c1").events[:length]) == []


def test_events_after_the_last_turn_are_left_alone() -> None:
    log = LogWriter()
    log.answered_turn("q", "a")
    log.add("agent/inbox/spliced", {})
    assert closers(log.events) == []


def test_calls_of_a_closed_step_or_turn_are_over() -> None:
    log = _asked("c1")
    log.end_step()
    log.start_step()
    assert _kinds(closers(log.events)) == _ENDS
    other = _asked("c1")
    other.start_turn()  # without an end: the log was written by something else
    assert _kinds(closers(other.events)) == [("turn/end",)]


def test_a_cut_before_any_step() -> None:
    log = LogWriter()
    log.start_turn()
    assert [event.content() for event in closers(log.events)] == [
        {"type": "turn/end", "data": {"turn": 1, "reason": {"kind": "interrupted"}}}
    ]


def _whole_log() -> list[Event]:
    log = _asked("c1", "c2")
    c1, c2 = log.tool_call("c1"), log.tool_call("c2")
    log.tool_result("c1", c1)
    log.tool_result("c2", c2)
    log.end_step()
    log.start_step()
    log.chunks(delta("done"), finish())
    log.assistant(text_block("done"))
    log.end_step()
    log.end_turn()
    return log.events


_WHOLE = _whole_log()


@pytest.mark.parametrize("cut", range(len(_WHOLE) + 1))
def test_cut_anywhere_a_log_closes_once_and_always_alike(cut: int) -> None:
    kept = _WHOLE[:cut]
    found = closers(kept)
    assert rows(closers(kept)) == rows(found)
    assert rows(kept) == rows(_WHOLE[:cut])
    closed = [*kept, *found]
    check_seed(closed)
    assert closers(closed) == []
    assert _unanswered(closed) == set()


def _unanswered(events: list[Event]) -> set[str]:
    """The calls before the model's eyes that have no result there."""
    asked: set[str] = set()
    for event in events:
        message: JsonObject = event.data.get("message", {})
        for block in message.get("content", []):
            if block["type"] == "tool-call":
                asked.add(block["id"])
            elif block["type"] == "tool-result":
                asked.discard(block["toolCallId"])
    return asked


def test_a_live_log_accepts_every_closer() -> None:
    for cut in range(len(_WHOLE) + 1):
        log = SessionLog()
        for event in _WHOLE[:cut]:
            log.append(event)
        for closer in closers(_WHOLE[:cut]):
            log.append(closer)
        assert log.turns.turn is None


_MOVES = st.lists(
    st.tuples(
        st.sampled_from(["start", "step", "ask", "call", "result", "stepped", "end"]),
        st.sampled_from(["a", "b", ""]),
    ),
    max_size=25,
)


@given(_MOVES)
@settings(max_examples=150, deadline=None)
def test_even_a_log_in_disorder_closes_once(moves: list[tuple[str, str]]) -> None:
    log = LogWriter()
    acts: dict[str, Any] = {
        "start": lambda _: log.start_turn(),
        "step": lambda _: log.start_step(),
        "ask": lambda call_id: log.assistant(call_block(call_id)),
        "call": log.tool_call,
        "result": lambda call_id: log.tool_result(call_id, 0),
        "stepped": lambda _: log.end_step(),
        "end": lambda _: log.end_turn(),
    }
    for kind, call_id in moves:
        acts[kind](call_id)
    found = closers(log.events)
    assert closers([*log.events, *found]) == []
    answered = [event.data["message"]["source"]["callId"] for event in found
                if event.type == "tool/result"]  # fmt: skip
    assert answered == [call.call_id for call in open_calls(log.events)]
    assert open_calls([*log.events, *found]) == []


def test_an_id_that_a_model_used_twice() -> None:
    """Each call has a result of its own: the k-th start is the k-th block's."""
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.assistant(call_block("a"), call_block("b"), call_block("a"), call_block("a"))
    log.tool_call("a")
    second = log.tool_call("a")
    log.tool_result("a", 0)
    found = [event for event in closers(log.events) if event.type == "tool/result"]
    ids = [event.data["message"]["source"]["callId"] for event in found]
    assert ids == ["b", "a", "a"]
    assert [event.source_event_seqs for event in found] == [None, [second], None]
    calls = open_calls(log.events)
    assert [(call.call_id, call.block) for call in calls] == [
        ("b", 1),
        ("a", 2),
        ("a", 3),
    ]
    assert len({event.data["message"]["id"] for event in found}) == 3


def test_a_result_that_is_rewritten_answers_nothing() -> None:
    """A compaction changes what the model sees, not what was called."""
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.assistant(call_block("a"), call_block("a"))
    log.tool_call("a")
    result = log.tool_result("a", 0)
    log.tool_call("a")
    again = log.events[result]
    operation = {"op": "replace", "start": result, "end": result}
    log.events.append(
        Event(len(log.events), again.type, 0, again.data, operation, [result])
    )
    assert [call.block for call in open_calls(log.events)] == [1]


def test_a_long_log_is_read_once() -> None:
    """50,000 events, each looked at once and no more."""
    log = _asked("c1")
    log.chunks(*[delta("x")] * 50_000)
    events = _Counted(log.events)
    assert len(closers(events)) == 3
    assert events.looks <= len(log.events) + 10


class _Counted(list[Event]):
    """A log that counts how often an event is looked at."""

    looks = 0

    def __iter__(self) -> Any:
        for event in super().__iter__():
            self.looks += 1
            yield event

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1 if isinstance(index, int) else len(self)
        return super().__getitem__(index)
