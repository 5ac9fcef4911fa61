"""The log of a live session: what enters it, and that a refusal changes nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nestling.session.errors import AppendError, SeedError
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject
from nestling.session.log import END_SEED, SessionLog
from nestling.session.reading import read_events
from nestling.session.writing import encode_rows
from support.session_logs import LogWriter, rows

_USER: JsonObject = {"id": "u", "role": "user", "content": []}


def _seed() -> list[Event]:
    log = LogWriter()
    log.answered_turn("q", "a")
    return log.events


def _state(log: SessionLog) -> tuple[Any, ...]:
    turns = log.turns
    return (
        rows(log.events), list(log.surface.nodes), log.surface.request_digest(),
        turns.turn, turns.step, turns.last_turn, turns.balanced_length,
        log.prefix_digest(len(log)),
    )  # fmt: skip


def test_a_log_grows_by_what_is_appended() -> None:
    log = SessionLog()
    assert len(log) == 0
    for event in _seed():
        assert log.append(event) is event
    assert rows(log.events) == rows(_seed())
    assert log.surface.nodes == [2, 5]
    assert log.turns.balanced_length == 8


def test_content_is_appended_at_the_end() -> None:
    log = SessionLog(_seed())
    event = log.add(END_SEED, 77)
    assert event.row() == {
        "type": "session/end-seed", "seq": 8, "time": 77, "data": {},
    }  # fmt: skip
    assert log.events[-1] is event
    added = log.add({"type": "user/message", "data": _USER, "surfaceOp": "append"}, 78)
    assert log.surface.nodes == [2, 5, added.seq]


def test_a_seeded_log_stands_where_an_appended_one_does() -> None:
    appended = SessionLog()
    for event in _seed():
        appended.append(event)
    assert _state(SessionLog(_seed())) == _state(appended)


def test_the_seed_is_not_shared() -> None:
    seed = _seed()
    SessionLog(seed).add({"type": "x", "data": None}, 0)
    assert len(seed) == 8


_REFUSED: list[tuple[Event, str]] = [
    (Event(9, "x", 0, {}), "event has seq 9, the log continues at 8"),
    (Event(7, "x", 0, {}), "event has seq 7, the log continues at 8"),
    (Event(8, "x", 0, {"a": [math.nan]}), r"x data a\[0\]: nan is not"),
    (Event(8, "x", 0, -0.0), "x data value: negative zero"),
    (Event(8, "x", 0, b""), "bytes is not a JSON value"),
    (Event(8, "x", 0, 2**53), "beyond"),
    (Event(8, "x", 0, {1: 2}), "object key 1 is not a string"),
    (Event(8, "turn/start", 0, {"turn": "2"}), "turn/start: turn must be an integer"),
    (
        Event(8, "assistant/chunk", 0, {"turn": 1, "step": 1}),
        "assistant/chunk: a chunk",
    ),
    (Event(8, "user/message", 0, {}, "append"), "user/message: message id"),
    (Event(8, "user/message", 0, _USER), "user/message must have a surfaceOp"),
    (Event(8, "x", 0, {}, "append"), "x must not have surface fields"),
    (Event(8, "x", 0, {}, None, [1]), "x must not have surface fields"),
    (Event(8, "user/message", 0, _USER, "append", [8]), "earlier events than 8"),
    (
        Event(
            8, "user/message", 0, _USER, {"op": "replace", "start": 3, "end": 5}, [3]
        ),
        r"replaces 3\.\.5, not on the surface",
    ),
    # What no reader would take back.
    (Event(8, "x", 0.5, {}), "time must be a safe integer, found 0.5"),  # type: ignore[arg-type]
    (Event(8, "x", True, {}), "time must be a safe integer, found True"),
    (Event(8, "x", 2**53, {}), "x time must be a safe integer"),
    (Event(8, 7, 0, {}), "an event cannot have the type 7"),  # type: ignore[arg-type]
    (Event(8, "text-chunks", 0, {}), "an event cannot have the type 'text-chunks'"),
]


@pytest.mark.parametrize(("event", "words"), _REFUSED)
def test_a_refused_event_changes_nothing(event: Event, words: str) -> None:
    log = SessionLog(_seed())
    before = _state(log)
    with pytest.raises(AppendError, match=words):
        log.append(event)
    assert _state(log) == before
    log.add({"type": "x", "data": None}, 0)
    assert len(log) == 9


@pytest.mark.parametrize("event", [event for event, _ in _REFUSED[7:]])
def test_trust_covers_seq_and_json_only(event: Event) -> None:
    log = SessionLog(_seed())
    before = _state(log)
    with pytest.raises(AppendError):
        log.append_trusted(event)
    assert _state(log) == before


def test_what_was_accepted_reads_back() -> None:
    """Fault F7: the writer's rules are no laxer than the reader's."""
    log = SessionLog(_seed())
    log.append(Event(8, "", -5, {"\ud800": ["\udfff", 2**53 - 1]}, ignorable=True))
    log.append(Event(9, "x/later", 0, None))
    read = read_events(b"header\n" + encode_rows(log.events), "f")
    assert rows(read) == rows(log.events)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Event(8, "turn/start", 0, {"turn": 2}), "leave turn 2 open"),
        (Event(9, "x", 0, {}), "seed event 8 has seq 9"),
        (Event(8, "turn/start", 0, None), "seed event 8: data of turn/start"),
        (
            Event(8, "user/message", 0, _USER, {"op": "replace", "start": 1, "end": 2}),
            r"seed event 8: surfaceOp replaces 1\.\.2, not on the surface",
        ),
        (Event(8, "user/message", 0, _USER, "prepend"), "seed event 8: surfaceOp must"),
    ],
)
def test_a_bad_seed_is_refused(event: Event, words: str) -> None:
    with pytest.raises(SeedError, match=words):
        SessionLog([*_seed(), event])


def test_data_may_be_nested_as_deep_as_a_row_can_carry() -> None:
    deepest: Any = []
    for _ in range(199):
        deepest = {"in": deepest}
    log = SessionLog()
    log.append(Event(0, "x", 0, deepest))
    before = _state(log)
    with pytest.raises(AppendError, match="nested deeper than 200 levels"):
        log.append(Event(1, "x", 0, [deepest]))
    assert _state(log) == before
    assert rows(read_events(b"header\n" + encode_rows(log.events), "f")) == before[0]
