"""Where two JSON values, or two events, first differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.harness.compare import (
    Difference,
    event_difference,
    first_difference,
)
from nestling.session.event import Event
from nestling.session.jsontext import Json, canonical, shown
from nestling.session.repair import closers
from support.session_logs import LogWriter

EQUAL: list[tuple[Json, Json]] = [
    (None, None),
    (1, 1.0),
    (0.5, 0.5),
    ([1, [2.0]], [1.0, [2]]),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ("\ud800", "\ud800"),
    ("\ud83d\ude00", "😀"),  # a pair of halves is the character
    ({"\udfff": ["\ud800"]}, {"\udfff": ["\ud800"]}),
]
DIFFERENT: list[tuple[Json, Json, Difference]] = [
    (True, 1, Difference("", "true", "1")),
    (False, 0, Difference("", "false", "0")),
    (1, "1", Difference("", "1", '"1"')),
    (None, False, Difference("", "null", "false")),
    (None, {}, Difference("", "null", "{}")),
    ([], {}, Difference("", "[]", "{}")),
    (1, 1.5, Difference("", "1", "1.5")),
    ([1, True], [1, 1], Difference("[1]", "true", "1")),
    ([[0], [1, [2]]], [[0], [1, [3]]], Difference("[1][1][0]", "2", "3")),
    ([1], [1, 2], Difference("", "[1]", "[1,2]")),
    ({"a": 1}, {"a": 1, "b": 2}, Difference("b", "absent", "2")),
    ({"a": 1, "b": None}, {"a": 1}, Difference("b", "null", "absent")),
    ({"a": {"b": [{}]}}, {"a": {"b": [{"c": 0}]}}, Difference("a.b[0].c", "absent", "0")),
    ({"b": 1, "a": 1}, {"a": 2, "b": 2}, Difference("a", "1", "2")),
    ("\ud800", "\udc00", Difference("", '"\\ud800"', '"\\udc00"')),
    ({"\ud800": 1}, {"\ud801": 1}, Difference("\ud801", "absent", "1")),
]  # fmt: skip


@pytest.mark.parametrize(("live", "recorded"), EQUAL)
def test_equal_values(live: Json, recorded: Json) -> None:
    assert first_difference(live, recorded) is None


@pytest.mark.parametrize(("live", "recorded", "expected"), DIFFERENT)
def test_different_values(live: Json, recorded: Json, expected: Difference) -> None:
    assert first_difference(live, recorded) == expected


def test_a_difference_is_a_sentence() -> None:
    assert str(Difference("a.b", "1", "2")) == "a.b is 1, recorded was 2"
    assert str(Difference("", "1", "2")) == "everything is 1, recorded was 2"


def test_long_values_are_cut_in_the_middle() -> None:
    text = shown("a" * 500 + "b" * 500)
    assert len(text) < 130
    assert text.startswith('"aaa')
    assert text.endswith('bbb"')
    assert shown("x" * 118) == '"' + "x" * 118 + '"'


VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2, width=16).filter(
        lambda number: str(number) != "-0.0"
    ) | st.text(st.sampled_from("ab\ud800é"), max_size=2),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(VALUES, VALUES)
def test_a_difference_is_found_exactly_where_there_is_one(one: Json, two: Json) -> None:
    found = first_difference(one, two)
    assert (found is None) == (canonical(one) == canonical(two))
    back = first_difference(two, one)
    assert (back is None) == (found is None)


# --- events --------------------------------------------------------------------


def note(**fields: Json) -> Event:
    return Event(0, "note", 0, {"n": 1}, **fields)


def test_times_and_places_do_not_count() -> None:
    assert event_difference(note(), Event(7, "note", 99, {"n": 1})) is None


def test_everything_else_counts() -> None:
    assert event_difference(Event(0, "memo", 0, {}), note()) == (
        "it is memo, recorded was note"
    )
    assert event_difference(Event(0, "note", 0, {"n": 2}), note()) == (
        "note: data.n is 2, recorded was 1"
    )
    for key, value in (
        ("surface_op", "append"),
        ("source_event_seqs", [1]),
        ("ignorable", True),
    ):
        assert event_difference(note(**{key: value}), note()) is not None
        assert event_difference(note(), note(**{key: value})) is not None


def closing_result(words: str, code: str = "") -> Event:
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.tool_call("c")
    result = closers(log.events)[0]
    assert result.type == "tool/result"
    data = result.data
    data["message"]["content"][0]["content"][0]["text"] = words
    data["error"]["code"] = code or data["error"]["code"]
    return result


def test_the_words_of_a_repair_are_its_own() -> None:
    assert event_difference(closing_result("one"), closing_result("two")) is None


def test_all_else_of_a_repair_counts() -> None:
    other = closing_result("one", "TOOL_NOT_STARTED")
    assert event_difference(other, closing_result("one")) is not None
    by_a_tool = closing_result("one", "ENOENT")
    assert event_difference(by_a_tool, closing_result("two", "ENOENT")) is not None
    moved = closing_result("one")
    moved.data["message"]["content"][0]["toolCallId"] = "d"
    assert event_difference(moved, closing_result("one")) is not None


def test_lists_of_objects_are_told_apart_by_an_item_or_by_their_length() -> None:
    one, two, other = {"name": "a"}, {"name": "b"}, {"name": "c"}
    told = str(first_difference({"x": [one, two]}, {"x": [one, other, two]}))
    assert told == 'x[1].name is "b", recorded was "c"'
    told = str(first_difference({"x": [one]}, {"x": [one, two]}))
    assert told == "the length of x is 1, recorded was 2"
