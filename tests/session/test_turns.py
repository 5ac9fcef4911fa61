"""Turns, the balanced prefix, and the seed boundary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nestling.session.boundary import check_boundary, check_seed, own_events
from nestling.session.errors import SeedError
from nestling.session.event import Event
from nestling.session.turns import TurnOutcome, balanced_prefix_length, tracked
from support.session_logs import LogWriter, chunk_event, delta, finish, types


def _two_turns() -> LogWriter:
    log = LogWriter()
    log.answered_turn("q1", "a1")
    log.answered_turn("q2", "a2")
    return log


def test_the_tracker_follows_turns_and_steps() -> None:
    log = LogWriter()
    seen = []
    moves: list[Callable[[], Any]] = [
        log.start_turn, log.start_step, log.end_step, log.start_step, log.end_step,
        log.end_turn, log.start_turn, log.start_step, log.end_turn,
    ]  # fmt: skip
    for move in moves:
        move()
        turns = tracked(log.events)
        seen.append((turns.turn, turns.step, turns.last_turn, turns.balanced_length))
    assert seen == [
        (1, None, 1, 0), (1, 1, 1, 0), (1, None, 1, 0), (1, 2, 1, 0), (1, None, 1, 0),
        (None, None, 1, 6), (2, None, 2, 6), (2, 1, 2, 6), (None, None, 2, 9),
    ]  # fmt: skip


def test_no_turn_has_ended_yet() -> None:
    log = LogWriter()
    assert tracked(log.events).last_turn == 0
    assert balanced_prefix_length(log.events) == 0
    log.add("session/title", {})
    assert balanced_prefix_length(log.events) == 0
    log.start_turn()
    assert balanced_prefix_length(log.events) == 0


def test_what_follows_the_last_turn_end_is_not_inherited() -> None:
    log = _two_turns()
    length = len(log.events)
    assert balanced_prefix_length(log.events) == length
    log.add("agent/inbox/spliced", {"target": "next-turn"})
    assert balanced_prefix_length(log.events) == length
    log.start_turn()
    log.start_step()
    assert balanced_prefix_length(log.events) == length
    assert types(log.events)[length - 1] == "turn/end"


_STOP, _CUT = {"kind": "stop"}, {"kind": "max-tokens"}
_FAILURE = {"message": "m", "code": "SERVER"}
_ERROR = {"kind": "error", "failure": _FAILURE}
_ABORTED = {"kind": "aborted", "failure": _FAILURE}


@pytest.mark.parametrize(
    ("finishes", "reason"),
    [
        ([], {"kind": "completed"}),
        ([_STOP], {"kind": "completed"}),
        ([{"kind": "tool-calls"}, _STOP], {"kind": "completed"}),
        ([_CUT], {"kind": "max-tokens"}),
        ([_CUT, _STOP], {"kind": "max-tokens"}),
        ([_CUT, _ERROR], {"kind": "max-tokens"}),
        ([_ERROR], {"kind": "error", "error": _FAILURE}),
        ([_ABORTED], {"kind": "error", "error": _FAILURE}),
        ([_ERROR, _STOP], {"kind": "completed"}),
        ([_ERROR, _CUT], {"kind": "max-tokens"}),
        ([_STOP, _ERROR], {"kind": "error", "error": _FAILURE}),
    ],
)
def test_why_a_turn_ends(finishes: list[Any], reason: Any) -> None:
    outcome = TurnOutcome()
    for one in finishes:
        outcome.call_finished(one)
    assert outcome.reason() == reason
    # A cancel comes before everything else.
    outcome.cancelled_by = {"kind": "user"}
    assert outcome.reason() == {"kind": "aborted", "reason": {"kind": "user"}}


def test_own_events_are_those_after_the_boundary() -> None:
    log = _two_turns()
    assert own_events(log.events, 0) == log.events
    assert own_events(log.events, 8) == log.events[8:]
    assert own_events(log.events, len(log.events)) == []


def test_every_end_of_a_turn_is_a_boundary_and_nothing_inside_one() -> None:
    log = _two_turns()
    log.add("session/title", {})
    ends = {0, 8, 16, 17}
    for length in range(len(log.events) + 1):
        if length in ends:
            check_boundary(log.events, length)
            check_seed(log.events[:length])
            continue
        with pytest.raises(SeedError, match=r"leave turn|inside the model call"):
            check_boundary(log.events, length)
        with pytest.raises(SeedError, match="leave turn"):
            check_seed(log.events[:length])


def test_a_boundary_beyond_the_log_is_refused() -> None:
    with pytest.raises(
        SeedError, match="17 is beyond the log, expected at most its 16"
    ):
        check_boundary(_two_turns().events, 17)
    with pytest.raises(SeedError, match="1 is beyond the log, expected at most its 0"):
        check_boundary([], 1)
    check_boundary([], 0)


def test_an_open_turn_is_named() -> None:
    log = _two_turns()
    log.start_turn()
    with pytest.raises(SeedError, match="17 inherited events leave turn 3 open"):
        check_boundary(log.events, 17)


def _chunks(*places: tuple[int, int, Any]) -> list[Event]:
    """Chunks without turn events, as the oldest recordings have them."""
    return [
        chunk_event(seq, chunk, turn=turn, step=step)
        for seq, (turn, step, chunk) in enumerate(places)
    ]


def test_a_boundary_inside_of_a_call_is_refused() -> None:
    events = _chunks((1, 2, delta("a")), (1, 2, delta("b")), (1, 2, finish()))
    for length in (1, 2):
        with pytest.raises(
            SeedError, match=f"seedLength {length} lies inside the model call of "
            "turn 1, step 2",
        ):  # fmt: skip
            check_boundary(events, length)
    check_boundary(events, 0)
    check_boundary(events, 3)
    # Nothing is before the first chunk, though the last is of the same step.
    check_boundary(events[:2], 0)


@pytest.mark.parametrize("place", [(1, 1), (1, 2), (2, 1)])
def test_a_boundary_between_two_calls_is_legal(place: tuple[int, int]) -> None:
    """Two calls of one step (a retry) as well as calls of two steps."""
    check_boundary(_chunks((1, 1, finish()), (*place, delta("b"))), 1)


@pytest.mark.parametrize("place", [(1, 2), (2, 1)])
def test_a_call_without_a_finish_ends_with_its_step(place: tuple[int, int]) -> None:
    check_boundary(_chunks((1, 1, delta("a")), (*place, delta("b"))), 1)


def test_a_boundary_beside_another_event_is_in_no_call() -> None:
    events = _chunks((1, 1, delta("a")), (1, 1, delta("b")), (1, 1, delta("c")))
    events[1] = Event(1, "x/note", 0, {})
    check_boundary(events, 1)
    check_boundary(events, 2)


@pytest.mark.parametrize("seqs", [[1], [0, 2], [0, 0], [0, 1, 1]])
def test_a_seed_has_no_gaps(seqs: list[int]) -> None:
    seed = [Event(seq, "x", 0, {}) for seq in seqs]
    with pytest.raises(SeedError, match="has seq"):
        check_seed(seed)


@pytest.mark.parametrize("data", [None, {}, [], {"turn": "1"}])
@pytest.mark.parametrize("kind", ["turn/start", "step/start"])
def test_a_seed_whose_turns_cannot_be_told_is_refused(kind: str, data: Any) -> None:
    events = [Event(0, kind, 0, data), Event(1, "turn/end", 0, {})]
    with pytest.raises(SeedError, match=f"seed event 0: .*{kind}"):
        check_boundary(events, 2)


@pytest.mark.parametrize("data", [None, {}, {"turn": 1, "step": 1}, "x"])
def test_malformed_chunks_at_the_boundary_are_in_no_call(data: Any) -> None:
    check_boundary([Event(seq, "assistant/chunk", 0, data) for seq in (0, 1)], 1)


def test_a_fork_inside_the_open_turn_gets_the_last_closed_turn() -> None:
    """Fault A5: the child must not inherit the call that it answers."""
    log = _two_turns()
    log.start_turn()
    log.start_step()
    log.user("fork, please")
    log.assistant({"type": "tool-call", "id": "c", "name": "fork", "arguments": "{}"})
    log.tool_call("c")
    seed = log.events[: balanced_prefix_length(log.events)]
    check_boundary(log.events, len(seed))
    assert "tool/call" not in types(seed)
    assert len(seed) == 16
