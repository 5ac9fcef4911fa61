"""Packed rows: packing and unpacking are inverse, malformed rows are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.session.errors import UnreadableError
from nestling.session.event import Event
from nestling.session.jsontext import MAX_SAFE_INTEGER, JsonObject, dumps, loads
from nestling.session.packing import MIN_RUN, is_packed, pack, unpack
from nestling.session.reading import events_from_row
from support.session_logs import chunk_event, delta, finish, rows

# Values that are easily taken for each other: 1 == 1.0 == True in Python.
_NUMBERS = st.sampled_from([0, 1, 1, 1, 2, 1.0, 1.5, True])
_IDS = st.sampled_from(["a", "a", "b", ""])
_TEXTS = st.sampled_from(["", "x", "\ud83d", "\ude00", "é"])


def _tool_delta(**parts: Any) -> JsonObject:
    return {"type": "tool-call-delta", **parts}


_CHUNKS = st.one_of(
    st.builds(
        delta, _TEXTS, _NUMBERS, st.sampled_from(["text-delta", "reasoning-delta"])
    ),
    st.builds(_tool_delta, index=_NUMBERS, id=_IDS, argumentsDelta=_TEXTS),
    st.builds(_tool_delta, index=_NUMBERS, id=_IDS, name=_IDS, argumentsDelta=_TEXTS),
    st.builds(_tool_delta, index=_NUMBERS, id=st.none(), argumentsDelta=_TEXTS),
    st.just(finish()),
    st.just({"type": "text-delta", "index": 0, "text": "x", "extra": 1}),
    st.just({"type": "text-delta", "index": 0}),
    st.just({"type": ["text-delta"], "index": 0, "text": "x"}),
    st.just({"type": None}),
)
_RUNS = st.lists(st.tuples(_CHUNKS, _NUMBERS, _NUMBERS, st.integers(1, 5)), max_size=12)


@st.composite
def _logs(draw: st.DrawFn) -> list[Event]:
    """Logs full of runs, with times that also go backwards."""
    events: list[Event] = []
    for chunk, turn, step, length in draw(_RUNS):
        for _ in range(length):
            time = draw(st.integers(-1000, 1000))
            place = {"turn": turn, "step": step}
            events.append(chunk_event(len(events), chunk, time, **place))
    return events


def _read_back(packed: list[JsonObject]) -> list[Event]:
    events: list[Event] = []
    for row in packed:
        events.extend(events_from_row(loads(dumps(row)), len(events)))
    return events


def _exact(events: list[Event]) -> list[bytes]:
    return [dumps(dict(sorted(row.items()))) for row in map(_sorted, rows(events))]


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value


@given(_logs())
@settings(max_examples=150, deadline=None)
def test_packing_and_unpacking_are_inverse(events: list[Event]) -> None:
    assert _exact(_read_back(list(pack(events)))) == _exact(events)


@given(_logs(), st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_any_batches_read_back_the_same(events: list[Event], cut: int) -> None:
    packed = [*pack(events[:cut]), *pack(events[cut:])]
    assert _exact(_read_back(packed)) == _exact(events)


@given(_logs())
@settings(max_examples=100, deadline=None)
def test_rows_are_as_few_as_the_rules_allow(events: list[Event]) -> None:
    packed = list(pack(events))
    for row in packed:
        if is_packed(row):
            assert len(row["data"]["dt"]) >= MIN_RUN - 1
    # Packing what was unpacked finds nothing more to pack.
    assert list(pack(_read_back(packed))) == packed


def _run(*chunks: JsonObject, **place: Any) -> list[Event]:
    return [chunk_event(i, chunk, 10 * i, **place) for i, chunk in enumerate(chunks)]


def test_two_deltas_stay_apart_and_three_are_packed() -> None:
    two = _run(delta("a"), delta("b"))
    assert list(pack(two)) == rows(two)
    assert list(pack(_run(delta("a"), delta("b"), delta("c"), turn=2, step=3))) == [
        {
            "type": "text-chunks",
            "seq0": 0,
            "time0": 0,
            "data": {
                "turn": 2,
                "step": 3,
                "index": 0,
                "dt": [10, 10],
                "texts": ["a", "b", "c"],
            },
        }
    ]


def test_reasoning_and_tool_call_rows() -> None:
    reasoning = _run(*[delta(t, 4, "reasoning-delta") for t in "xyz"])
    (row,) = pack(reasoning)
    assert row["type"] == "reasoning-chunks"
    assert row["data"]["texts"] == ["x", "y", "z"]
    named = [_tool_delta(index=1, id="c", name="n", argumentsDelta=t) for t in "xyz"]
    (row,) = pack(_run(*named))
    assert row["type"] == "tool-call-chunks"
    assert row["data"] == {
        "turn": 1, "step": 1, "index": 1, "id": "c", "name": "n",
        "dt": [10, 10], "args": ["x", "y", "z"],
    }  # fmt: skip


def _tool(**changes: Any) -> JsonObject:
    return {**_tool_delta(index=0, id="c", name="n", argumentsDelta="x"), **changes}


_NAMELESS = {key: value for key, value in _tool().items() if key != "name"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (delta("a", 0), delta("a", 1)),
        (delta("a", 1), delta("a", 1.0)),
        (delta("a", 1), delta("a", True)),
        (delta("a"), delta("a", 0, "reasoning-delta")),
        (_tool(), _tool(id="d")),
        (_tool(), _tool(name="m")),
        (_tool(), _NAMELESS),
        (_tool(name=""), _NAMELESS),
    ],
)
def test_a_run_breaks_where_the_block_changes(
    first: JsonObject, second: JsonObject
) -> None:
    packed = list(pack(_run(first, first, second, first, first)))
    assert [is_packed(row) for row in packed] == [False] * 5


@pytest.mark.parametrize("place", [{"turn": 2}, {"step": 2}, {"turn": 1.0}])
def test_a_run_breaks_where_turn_or_step_changes(place: JsonObject) -> None:
    events = [chunk_event(i, delta("a")) for i in range(4)]
    events[2:] = [chunk_event(i, delta("a"), **place) for i in (2, 3)]
    assert not any(map(is_packed, pack(events)))


def test_a_run_breaks_at_a_gap_of_seqs_and_at_other_events() -> None:
    gap = [chunk_event(seq, delta("a")) for seq in (0, 1, 3, 4)]
    assert list(pack(gap)) == rows(gap)
    other = [chunk_event(seq, delta("a")) for seq in range(5)]
    other[2] = Event(2, "x/note", 0, {})
    assert list(pack(other)) == rows(other)
    marked = [chunk_event(seq, delta("a")) for seq in range(5)]
    marked[2] = Event(2, marked[2].type, 0, marked[2].data, ignorable=True)
    assert list(pack(marked)) == rows(marked)


def test_a_run_breaks_where_the_time_gap_is_no_safe_integer() -> None:
    times = [-MAX_SAFE_INTEGER, 0, 0, 1, -MAX_SAFE_INTEGER]
    events = [chunk_event(seq, delta("a"), time) for seq, time in enumerate(times)]
    packed = list(pack(events))
    assert [row["type"] for row in packed] == ["text-chunks", "assistant/chunk"]
    assert _exact(_read_back(packed)) == _exact(events)


def test_a_projected_row_takes_the_next_seq_and_time_0() -> None:
    data = {"turn": 1, "step": 1, "index": 0, "dt": [5, -7], "texts": ["a", "b", "c"]}
    events = unpack({"type": "text-chunks", "data": data}, 9)
    assert [(event.seq, event.time) for event in events] == [(9, 0), (10, 5), (11, -2)]


def test_a_reader_accepts_one_member() -> None:
    data = {"turn": 1, "step": 1, "index": 0, "dt": [], "texts": ["z"]}
    (event,) = unpack({"type": "text-chunks", "data": data}, 0)
    assert event.data == {"turn": 1, "step": 1, "chunk": delta("z")}


_TEXT_ROW: JsonObject = {
    "type": "text-chunks", "seq0": 3, "time0": 5,
    "data": {"turn": 1, "step": 1, "index": 0, "dt": [1, 1], "texts": ["a", "b", "c"]},
}  # fmt: skip
_TOOL_ROW: JsonObject = {
    "type": "tool-call-chunks", "seq0": 3, "time0": 5,
    "data": {
        "turn": 1, "step": 1, "index": 0, "id": "c", "name": "n",
        "dt": [1, 1], "args": ["a", "b", "c"],
    },
}  # fmt: skip
_GONE = object()

_MALFORMED: list[tuple[JsonObject, str, Any]] = [
    (_TEXT_ROW, "ignorable", True),
    (_TEXT_ROW, "surfaceOp", "append"),
    (_TEXT_ROW, "seq0", -1),
    (_TEXT_ROW, "seq0", 1.5),
    (_TEXT_ROW, "seq0", None),
    (_TEXT_ROW, "seq0", True),
    (_TEXT_ROW, "seq0", MAX_SAFE_INTEGER - 1),
    (_TEXT_ROW, "time0", "5"),
    (_TEXT_ROW, "time0", 0.5),
    (_TEXT_ROW, "time0", MAX_SAFE_INTEGER - 1),
    (_TEXT_ROW, "data", _GONE),
    (_TEXT_ROW, "data", None),
    (_TEXT_ROW, "data", 7),
    (_TEXT_ROW, "data", []),
    (_TEXT_ROW, "data.texts", _GONE),
    (_TEXT_ROW, "data.texts", "abc"),
    (_TEXT_ROW, "data.texts", []),
    (_TEXT_ROW, "data.texts", ["a", 2, "c"]),
    (_TEXT_ROW, "data.turn", "1"),
    (_TEXT_ROW, "data.step", True),
    (_TEXT_ROW, "data.index", None),
    (_TEXT_ROW, "data.dt", _GONE),
    (_TEXT_ROW, "data.dt", 1),
    (_TEXT_ROW, "data.dt", [1.5, 1]),
    (_TEXT_ROW, "data.dt", [True, 1]),
    (_TEXT_ROW, "data.dt", [1]),
    (_TEXT_ROW, "data.dt", [1, 1, 1]),
    (_TEXT_ROW, "data.dt", [MAX_SAFE_INTEGER, 1]),
    (_TEXT_ROW, "data.dt", [-MAX_SAFE_INTEGER, -10]),
    (_TEXT_ROW, "data.extra", 1),
    (_TEXT_ROW, "data.id", "c"),
    (_TOOL_ROW, "data.id", _GONE),
    (_TOOL_ROW, "data.id", 1),
    (_TOOL_ROW, "data.name", None),
    (_TOOL_ROW, "data.args", _GONE),
    (_TOOL_ROW, "data.texts", ["a", "b", "c"]),
]


def _changed(row: JsonObject, path: str, value: Any) -> JsonObject:
    changed = copy.deepcopy(row)
    *parents, key = path.split(".")
    target = changed["data"] if parents else changed
    target.pop(key, None)
    if value is not _GONE:
        target[key] = value
    return changed


@pytest.mark.parametrize(("row", "path", "value"), _MALFORMED)
def test_malformed_rows_are_refused(row: JsonObject, path: str, value: Any) -> None:
    changed = _changed(row, path, value)
    with pytest.raises(UnreadableError, match=f"^malformed {row['type']} row: "):
        unpack(changed, 3)


@pytest.mark.parametrize("row", [_TEXT_ROW, _TOOL_ROW])
def test_the_rows_that_were_spoiled_are_sound(row: JsonObject) -> None:
    assert list(pack(unpack(row, 3))) == [row]


@pytest.mark.parametrize("data", [None, 1, [], {}, {"turn": 1, "step": 1, "chunk": 2}])
def test_chunks_of_another_shape_stay_as_they_are(data: Any) -> None:
    """A reader keeps them, so a writer must be able to write them."""
    events = [Event(seq, "assistant/chunk", 0, data) for seq in range(4)]
    assert list(pack(events)) == rows(events)


def test_members_may_reach_the_last_safe_seq() -> None:
    last = [
        event.seq for event in unpack({**_TEXT_ROW, "seq0": MAX_SAFE_INTEGER - 2}, 0)
    ]
    assert last[-1] == MAX_SAFE_INTEGER


def test_the_rest_of_a_log_is_not_packed() -> None:
    assert not is_packed({"type": "assistant/chunk"})
    assert not is_packed({})
