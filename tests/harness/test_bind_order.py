"""The order of loose logs."""

from __future__ import annotations

from nestling.harness.bind_order import bind_order, locale_key
from support.logs import Log, recordings


def test_the_first_is_the_root_and_age_orders_the_others() -> None:
    logs = recordings(Log("late", 9), Log("b", 2), Log("a", 3), Log("B", 2))
    assert [r.header.id for r in bind_order(logs)] == ["late", "b", "B", "a"]


def test_nothing_has_an_order() -> None:
    assert bind_order([]) == []


def test_texts_sort_as_people_sort_words() -> None:
    words = ["", "_a", "-a", "10", "2", "a", "A", "á", "ab", "Ab", "b", "B", "z", "é😀"]
    expected = [
        "",
        "_a",
        "-a",
        "10",
        "2",
        "a",
        "A",
        "á",
        "ab",
        "Ab",
        "b",
        "B",
        "é😀",
        "z",
    ]
    assert sorted(words, key=locale_key) == expected


def test_any_text_has_a_key() -> None:
    assert locale_key("\ud800") != locale_key("\ud801")
    assert locale_key("\u0130") != locale_key("i")
