"""What a root is told in a replay: what was named, and what was told again then."""

from __future__ import annotations

import pytest

from nestling.driver.director import Prompt
from nestling.harness.told import ToldTurn, told_turns, with_told_again
from nestling.session.event import Event


def said(text: str) -> Prompt:
    return [{"type": "text", "text": text}]


@pytest.mark.parametrize(
    ("named", "recorded", "fatal", "told"),
    [
        ("a b", "a b", {}, "a b"),
        ("a", "a a", {1}, "a a"),
        ("a", "a a a", {1, 2}, "a a a"),
        ("a b", "a a b", {1}, "a a b"),
        ("a b", "a b b", {2}, "a b b"),
        # Somebody resumed it after the death, and said the same or another thing.
        ("a a", "a a", {1}, "a a"),
        ("a b", "a b", {1}, "a b"),
        ("a b", "a b b", {1, 2}, "a b b"),
        # What the log does not hold of a turn is taken for what came next.
        ("a", "- a", {1}, "a a"),
        # Named otherwise than recorded: told so, and found to differ.
        ("x", "a a", {1}, "x x"),
        ("a b c", "a b", {}, "a b c"),
        ("a", "a b", {}, "a"),
        ("a", "a b", {1}, "a"),
        ("", "a", {}, ""),
    ],
)
def test_told_again(named: str, recorded: str, fatal: set[int], told: str) -> None:
    turns = [
        ToldTurn(turn, None if text == "-" else said(text))
        for turn, text in enumerate(recorded.split(), start=1)
    ]
    found = with_told_again([*map(said, named.split())], turns, set(fatal))
    assert found == [*map(said, told.split())]


def test_turns_of_a_log() -> None:
    def message(seq: int, text: str, kind: str) -> Event:
        return Event(
            seq, "user/message", 0, {"content": said(text), "source": {"kind": kind}}
        )

    own = [
        Event(0, "turn/start", 0, {"turn": 3}),
        message(1, "by the agent", "agent"),
        message(2, "a", "user"),
        message(3, "more", "user"),
        Event(4, "turn/start", 0, {"turn": 4}),
    ]
    assert told_turns(own) == [ToldTurn(3, said("a")), ToldTurn(4, None)]
