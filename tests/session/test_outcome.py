"""What a session came to."""

from __future__ import annotations

from typing import Any

import pytest

from nestling.session.boundary import own_events
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import Outcome, outcome
from nestling.session.repair import closers
from support.session_logs import LogWriter, call_block, delta, finish, text_block


@pytest.mark.parametrize(
    ("kind", "stop_reason"),
    [
        ("completed", "completed"),
        ("max-tokens", "max-tokens"),
        ("aborted", "aborted"),
        ("blocked", "refusal"),
        ("error", "error"),
        ("interrupted", "error"),
        ("something-later", "error"),
    ],
)
def test_the_stop_reason_is_that_of_the_last_turn(kind: str, stop_reason: str) -> None:
    log = LogWriter()
    log.answered_turn("q", "a")
    log.start_turn()
    log.end_turn(kind)
    log.add("session/title", {})
    assert outcome(log.events).stop_reason == stop_reason


def test_a_turn_that_is_still_open_is_an_error() -> None:
    log = LogWriter()
    assert outcome(log.events) == ("error", [])
    log.answered_turn("q", "a")
    log.start_turn()
    assert outcome(log.events).stop_reason == "error"
    assert outcome([*log.events, *closers(log.events)]).stop_reason == "error"


def test_the_output_is_the_last_message_that_is_not_empty() -> None:
    log = LogWriter()
    log.answered_turn("q", "first")
    log.start_turn()
    log.start_step()
    log.chunks(delta("streamed"), finish())
    log.assistant(text_block("se"), call_block("c"), text_block("cond"))
    log.assistant()
    found = outcome(log.events)
    assert found.output == [text_block("se"), call_block("c"), text_block("cond")]
    assert found.text == "second"


_DEAD = "API Error: the connection was lost"


def _closed_by(source: JsonObject, **data: Any) -> LogWriter:
    """A turn that a model has answered, and that something else speaks last in."""
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.chunks(delta("said"), finish())
    log.assistant(text_block("said"))
    message = {
        "id": "m",
        "role": "assistant",
        "content": [text_block(_DEAD)],
        "source": source,
    }
    place = {"turn": 1, "step": 1}
    data = {**place, "message": message, **data}
    log.add("assistant/message", data, surfaceOp="append")
    log.end_turn()
    return log


_MODEL = {"kind": "model", "provider": "p", "model": "m"}
_NOTHING = {"inputTokens": 0, "outputTokens": 0}


@pytest.mark.parametrize(
    ("source", "data", "text"),
    [
        (_MODEL, {}, _DEAD),
        ({}, {}, _DEAD),
        ({"kind": "plugin"}, {}, "said"),
        ({"kind": "host"}, {"usage": {"inputTokens": 1, "outputTokens": 1}}, "said"),
        (_MODEL, {"synthetic": True, "usage": _NOTHING}, "said"),
        (_MODEL, {"synthetic": True}, "said"),
        (_MODEL, {"synthetic": True, "usage": {**_NOTHING, "outputTokens": 1}}, _DEAD),
        (_MODEL, {"synthetic": False, "usage": _NOTHING}, _DEAD),
        (_MODEL, {"usage": _NOTHING}, _DEAD),
    ],
)
def test_what_no_model_wrote_is_not_what_a_session_came_to(
    source: JsonObject, data: JsonObject, text: str
) -> None:
    """Fault A11: a synthetic tail mistaken for an answer."""
    found = outcome(_closed_by(source, **data).events)
    assert found == ("completed", [text_block(text)])


def test_a_session_in_which_no_model_spoke_came_to_nothing() -> None:
    """Fault A11: the stand-in is no fallback either."""
    log = _closed_by({"kind": "host"})
    events = [event for event in log.events if event.type != "assistant/chunk"]
    own = [event for event in events if event.data.get("message", {}).get("id") != "a4"]
    assert len(own) == len(log.events) - 3
    assert outcome(own).output == []


def test_without_a_message_the_output_is_the_text_so_far() -> None:
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.chunks(
        delta("thought", 0, "reasoning-delta"),
        delta("a", 1),
        {"type": "tool-call-delta", "index": 2, "id": "c", "argumentsDelta": "{"},
        finish("error"),
        delta("b", 0),
    )
    log.assistant()
    assert outcome(log.events).output == [text_block("ab")]


def test_a_pair_split_over_two_deltas_joins() -> None:
    log = LogWriter()
    log.start_turn()
    log.chunks(delta("\ud83d"), delta("\ude00"))
    assert outcome(log.events).output == [text_block("\U0001f600")]


def test_without_any_text_there_is_no_output() -> None:
    log = LogWriter()
    log.start_turn()
    log.chunks(delta("r", 0, "reasoning-delta"), delta(""), finish())
    found = outcome(log.events)
    assert found.output == []
    assert found.text == ""


def test_inherited_answers_are_never_counted() -> None:
    log = LogWriter()
    log.answered_turn("q", "the parent's answer")
    boundary = len(log.events)
    log.add("session/end-seed", {})
    assert outcome(own_events(log.events, boundary)) == ("error", [])
    log.start_turn()
    log.start_step()
    log.chunks(delta("own"))
    own = own_events(log.events, boundary)
    assert outcome(own) == ("error", [text_block("own")])
    log.end_turn("aborted")
    own = own_events(log.events, boundary)
    assert outcome(own) == ("aborted", [text_block("own")])


def test_text_of_an_output_without_text_blocks() -> None:
    blocks: list[JsonObject] = [
        {"type": "image"},
        {"type": "text"},
        {"type": "text", "text": 1},
    ]
    assert Outcome("completed", [*blocks, text_block("x")]).text == "x"
