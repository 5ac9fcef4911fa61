"""Cutting a session's own events into calls."""

from __future__ import annotations

import pytest

from nestling.harness.scripts import CallPlace, Entry, ScriptCall, derive_script
from nestling.session.errors import UnreadableError
from support.logs import Log, text_chunks

ABORTED = {"kind": "aborted", "reason": {"kind": "user"}}


def _refusal(log: Log) -> str:
    with pytest.raises(UnreadableError) as caught:
        derive_script(log.recording())
    return str(caught.value)


def _kinds(log: Log) -> list[str]:
    return [call.entry.kind for call in derive_script(log.recording())]


def test_calls_keep_their_places() -> None:
    log = Log("s").turn("hi").say("one").end().answered("again", "two")
    first, second = derive_script(log.recording())
    assert first == ScriptCall(
        Entry("chunks", tuple(text_chunks("one"))), "turn", CallPlace(1, 1, 3, 5)
    )
    assert second.place == CallPlace(2, 1, 11, 13)


def test_several_calls_share_a_step() -> None:
    log = Log("s").turn("hi").chunks(text_chunks("a", "error")).say("b").end()
    places = [call.place for call in derive_script(log.recording())]
    assert [(p.turn, p.step) for p in places if p is not None] == [(1, 1), (1, 1)]


def test_a_fork_has_only_its_own_calls() -> None:
    root = Log("root").answered("hi", "inherited")
    fork = root.fork("f", 1).answered("more", "own")
    (call,) = derive_script(fork.recording())
    assert call.entry.chunks == tuple(text_chunks("own"))


def test_chunks_between_other_events_are_one_call() -> None:
    half = text_chunks("a", None)
    log = Log("s").turn("hi").chunks(half).add("note", {}).chunks(text_chunks("b"))
    (call,) = derive_script(log.end().recording())
    assert len(call.entry.chunks) == 3
    assert call.place == CallPlace(1, 1, 3, 7)


# --- calls left open -----------------------------------------------------------


def test_an_aborted_turn_leaves_an_abort_entry() -> None:
    log = Log("s").turn("hi").chunks(text_chunks("half", None))
    log.end("aborted", reason={"kind": "user"})
    (call,) = derive_script(log.recording())
    assert call.entry.to_json() == {
        "kind": "abort",
        "chunks": text_chunks("half", None),
        "reason": ABORTED,
    }
    assert call.place == CallPlace(1, 1, 3, 4)


def test_an_interrupted_turn_leaves_a_crash_entry() -> None:
    log = Log("s").turn("hi").chunks(text_chunks("half", None)).end("interrupted")
    log.answered("go on", "done")
    assert _kinds(log) == ["crash", "chunks"]
    crash = derive_script(log.recording())[0].entry
    assert crash.reason == {"kind": "interrupted"}


@pytest.mark.parametrize("kind", ["aborted", "interrupted"])
def test_a_closed_turn_without_an_open_call_adds_no_entry(kind: str) -> None:
    assert _kinds(Log("s").turn("hi").end(kind)) == []
    assert _kinds(Log("s").turn("hi").say("done").end(kind)) == ["chunks"]


@pytest.mark.parametrize("kind", ["completed", "error", "max-tokens"])
def test_another_end_of_the_turn_is_refused(kind: str) -> None:
    message = _refusal(Log("s").turn("hi").chunks(text_chunks("a", None)).end(kind))
    for fact in ("session.jsonl line 5", "turn 1, step 1", "1 chunks", kind, "finish"):
        assert fact in message


def test_the_end_of_the_log_is_refused() -> None:
    message = _refusal(Log("s").turn("hi").chunks(text_chunks("a", None)))
    assert "turn 1, step 1" in message
    assert "the log ends" in message


@pytest.mark.parametrize("kind", ["aborted", "interrupted"])
def test_a_further_call_in_a_cut_turn_is_refused(kind: str) -> None:
    log = Log("s").turn("hi").chunks(text_chunks("a", None)).step().say("b").end(kind)
    message = _refusal(log)
    assert "turn 1, step 1" in message
    assert "turn 1, step 2" in message


def test_a_turn_that_never_ends_is_refused() -> None:
    log = Log("s").turn("hi").chunks(text_chunks("a", None)).turn("next").say("b")
    assert "turn 2, step 1 begins" in _refusal(log.end("aborted"))


def test_an_end_without_a_reason_is_refused_only_where_it_matters() -> None:
    log = Log("s").turn("hi").say("a").add("turn/end", {"turn": 1})
    assert _kinds(log) == ["chunks"]
    log.turn("hi").chunks(text_chunks("b", None)).add("turn/end", {"turn": 2})
    assert "reason must be an object" in _refusal(log)


# --- summaries -----------------------------------------------------------------


def _summary(**data: object) -> Log:
    log = Log("s").turn("hi").say("a")
    return log.add("compaction/summary", {"llmStreamCall": True, **data}).say("b").end()


def test_a_marked_summary_is_a_call_between_its_neighbours() -> None:
    log = _summary(rawOutput=[{"type": "text", "text": "s"}], usage={"inputTokens": 1})
    calls = derive_script(log.recording())
    assert [call.purpose for call in calls] == ["turn", "summary", "turn"]
    assert calls[1].place == CallPlace(1, 1, 6, 7)
    assert [chunk["type"] for chunk in calls[1].entry.chunks] == [
        "block-start",
        "block-end",
        "usage",
        "finish",
    ]


def test_a_summary_between_turns_has_no_turn() -> None:
    log = Log("s").answered("hi", "a")
    log.add("compaction/summary", {"llmStreamCall": True, "rawOutput": []})
    place = derive_script(log.recording())[1].place
    assert place is not None
    assert (place.turn, place.step) == (None, None)


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        ({}, "rawOutput"),
        ({"rawOutput": "text"}, "rawOutput"),
        ({"rawOutput": ["text"]}, "rawOutput"),
        ({"rawOutput": [{"text": "no type"}]}, "blockType"),
        ({"rawOutput": [], "usage": 7}, "usage"),
    ],
)
def test_a_marked_summary_must_say_what_was_streamed(
    data: dict[str, object], fact: str
) -> None:
    message = _refusal(_summary(**data))
    assert "session.jsonl line 8" in message
    assert fact in message


def test_a_summary_inside_a_call_is_refused() -> None:
    log = Log("s").turn("hi").chunks(text_chunks("a", None))
    log.add("compaction/summary", {"llmStreamCall": True, "rawOutput": []})
    assert "compaction summary" in _refusal(log.end("aborted"))


def test_an_unmarked_summary_is_no_call() -> None:
    log = Log("s").answered("hi", "a").add("compaction/summary", {"rawOutput": []})
    assert _kinds(log.add("compaction/summary", 7)) == ["chunks"]


# --- malformed logs ------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"turn": 1, "step": 1},
        {"turn": "1", "step": 1, "chunk": {"type": "finish", "reason": {}}},
        {"turn": 1, "step": 1, "chunk": {"type": "zap"}},
        {"turn": 1, "step": 1, "chunk": {"type": "finish"}},
        {"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0}},
    ],
)
def test_a_malformed_chunk_is_refused(data: object) -> None:
    log = Log("s").turn("hi").add("assistant/chunk", data)
    assert "session.jsonl line 5 (event 3)" in _refusal(log)


def test_messages_without_calls_are_refused() -> None:
    log = Log("s").turn("hi").message([{"type": "text", "text": "said"}]).end()
    assert "session.jsonl line 5" in _refusal(log)
    assert "assistant message" in _refusal(log)


def test_the_older_shape_of_a_message_counts_as_one() -> None:
    old = {"turn": 1, "step": 1, "content": [{"type": "text", "text": "said"}]}
    assert "assistant message" in _refusal(Log("s").add("assistant/message", old))


def test_messages_that_no_call_made_are_not_refused() -> None:
    log = Log("s").turn("hi").message([]).end().add("assistant/message", 7)
    replaced = {"surfaceOp": {"op": "replace", "start": 2, "end": 2}}
    told = {"message": {"content": [{"type": "text", "text": "rewritten"}]}}
    assert _kinds(log.add("assistant/message", told, **replaced)) == []


def test_what_no_model_wrote_is_no_part_of_the_script() -> None:
    """Fault A11: a stand-in closes a dead session, with a call before it or without."""
    stand_in = {
        "id": "m",
        "role": "assistant",
        "content": [{"type": "text", "text": "the session has ended"}],
        "source": {"kind": "host"},
    }
    data = {"turn": 1, "step": 1, "message": stand_in}
    log = Log("s").turn("hi").add("assistant/message", data, surfaceOp="append")
    assert list(derive_script(log.end().recording())) == []
    log = Log("s").turn("hi").say("one")
    log.add("assistant/message", data, surfaceOp="append").end()
    assert [call.entry.chunks for call in derive_script(log.recording())] == [
        tuple(text_chunks("one"))
    ]
