"""Faults of replay that other systems have had, as small trees.

``docs/verify.md`` names the other tests of the kind.
"""

from __future__ import annotations

from nestling.harness.compose import Composer, Tree, text
from support.replays import live_contents, replayed, scenario_of


def test_a_failed_call_is_served_as_one() -> None:
    """A call fails, its retry succeeds: both in their order, nothing moves up."""
    root = Composer("root", 1_000)
    root.turn("Go.")
    root.fails("BAD_REQUEST", message="400")
    root.retry()
    root.says(text("Now it works."))
    root.step("And?")
    root.says(text("That is all."))
    root.end()
    replay = replayed(scenario_of(Tree(root)))
    assert replay.problems == []
    assert replay.account("/").served == 3
    finishes = [
        event["data"]["chunk"]["reason"]["kind"]
        for event in live_contents(replay)["/"]
        if event["type"] == "assistant/chunk"
        and event["data"]["chunk"]["type"] == "finish"
    ]
    assert finishes == ["error", "stop", "stop"]


def test_an_aborted_stream_stays_one() -> None:
    """Three of nine chunks, and the abort; the message says that it was interrupted."""
    words = "one two three four five six"
    whole = Composer("root", 1_000)
    whole.turn("Go.")
    whole.says(text(words))
    chunks = [event for event in whole.own if event.type == "assistant/chunk"]
    root = Composer("root", 1_000)
    root.turn("Go.")
    root.starts_saying(text(words), chunks=3)
    root.abort("user")
    assert len(chunks) >= 9
    replay = replayed(scenario_of(Tree(root)))
    assert replay.problems == []
    log = live_contents(replay)["/"]
    types = [event["type"] for event in log]
    assert types.count("assistant/chunk") == 3
    assert types[-3:] == ["assistant/message", "step/end", "turn/end"]
    assert log[-3]["data"]["interrupted"] is True
    assert log[-1]["data"]["reason"]["kind"] == "aborted"
