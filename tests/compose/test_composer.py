"""What each method of a composer appends, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compose.trees import START, TREES, finished, root_with_fact, root_with_turn
from nestling.harness.compose import (
    Clock,
    Composer,
    Tree,
    reasoning,
    spawn_call,
    text,
    tool_call,
)
from nestling.harness.compose_stream import block_chunks
from nestling.session.errors import AppendError, ToolArgumentError
from nestling.session.event import Event
from nestling.session.fold import fold
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import outcome
from nestling.session.repair import NOT_STARTED, OUTCOME_UNKNOWN


def root_events(name: str) -> Sequence[Event]:
    return TREES[name]().recordings()[0].events


def types(events: Sequence[Event]) -> list[str]:
    """Return the events' types, runs of chunks as one."""
    return [kind for kind, _ in groupby(event.type for event in events)]


def of_type(events: Sequence[Event], kind: str) -> list[JsonObject]:
    return [event.data for event in events if event.type == kind]


def end_reasons(events: Sequence[Event]) -> list[JsonObject]:
    return [data["reason"] for data in of_type(events, "turn/end")]


# --- turns ---------------------------------------------------------------------


def test_a_turn_has_the_order_of_the_format() -> None:
    assert types(root_events("plain_answer")) == [
        "turn/start",
        "step/start",
        "user/message",
        "request/header",
        "request/context",
        "assistant/chunk",
        "assistant/message",
        "step/end",
        "turn/end",
        "turn/start",
        "step/start",
        "user/message",
        "assistant/chunk",
        "assistant/message",
        "step/end",
        "turn/end",
    ]


def test_a_fork_child_starts_behind_its_boundary() -> None:
    fork = TREES["spawn_and_fork"]().recordings()[2]
    assert types(fork.events[fork.header.seed_length :]) == [
        "session/end-seed",
        "turn/start",
        "subagent/descriptor",
        "step/start",
        "user/message",
        "request/header",
        "assistant/chunk",
        "assistant/message",
        "step/end",
        "turn/end",
    ]


def test_a_turn_may_have_no_step() -> None:
    root = Composer("root", START)
    root.begin()
    root.end()
    assert types(root.log.events) == ["turn/start", "turn/end"]


def test_messages_and_calls_are_counted() -> None:
    root = root_with_turn()
    calls = root.says(tool_call("a", {}), tool_call("b", "{", call_id="given"))
    assert [call.id for call in calls] == ["root-c1", "given"]
    assert [call.block for call in calls] == [0, 1]
    assert root.log.events[-1].data["message"]["id"] == "root-m2"


def test_anything_else_goes_in_where_it_is_to_stand() -> None:
    root = root_with_turn()
    root.add("session/title", {"title": "A title"}, ignorable=True)
    root.user("Keep it short.", {"kind": "hooks"})
    title, message = root.log.events[-2:]
    assert title.ignorable
    assert message.data["source"] == {"kind": "hooks"}


def test_the_clock_is_given() -> None:
    root = Composer("root", START, clock=Clock(5_000, step_ms=7))
    root.turn("Begin.")
    assert root.header.created_at == START
    assert [event.time for event in root.log.events[:3]] == [5_000, 5_007, 5_014]


# --- calls ---------------------------------------------------------------------


def test_chunks_of_a_call() -> None:
    root = root_with_turn()
    root.says(reasoning("hm"), text("two words"), usage={"inputTokens": 1})
    chunks = [data["chunk"] for data in of_type(root.log.events, "assistant/chunk")]
    assert chunks == [
        {"type": "block-start", "index": 0, "blockType": "reasoning"},
        {"type": "reasoning-delta", "index": 0, "text": "hm"},
        {"type": "block-end", "index": 0, "block": reasoning("hm")},
        {"type": "block-start", "index": 1, "blockType": "text"},
        {"type": "text-delta", "index": 1, "text": "two"},
        {"type": "text-delta", "index": 1, "text": " words"},
        {"type": "block-end", "index": 1, "block": text("two words")},
        {"type": "usage", "usage": {"inputTokens": 1}},
        {"type": "finish", "reason": {"kind": "stop"}},
    ]


def test_usage_is_made_up_from_the_call() -> None:
    root = root_with_turn()
    root.says(reasoning("hm"), text("two words"))
    assert root.log.events[-1].data["usage"] == {
        "inputTokens": 8,
        "outputTokens": 3,
        "reasoningTokens": 1,
    }


@given(
    st.lists(
        st.builds(text, st.text())
        | st.builds(reasoning, st.text())
        | st.builds(tool_call, st.text(), st.text(), st.text(min_size=1))
    )
)
def test_deltas_alone_say_what_the_blocks_say(blocks: list[JsonObject]) -> None:
    deltas = [c for c in block_chunks(blocks) if c["type"] != "block-end"]
    spoken = [block.get("text", block.get("arguments")) for block in blocks]
    folded = [b.get("text", b.get("arguments")) for b in fold(deltas).blocks]
    assert folded == spoken
    assert fold(block_chunks(blocks)).blocks == blocks


def test_a_retry_stays_in_the_step() -> None:
    events = root_events("retried_call")
    assert types(events)[5:] == [
        "assistant/chunk",
        "llm/retry",
        "llm/retry-started",
        "assistant/chunk",
        "llm/retry",
        "llm/retry-started",
        "assistant/chunk",
        "assistant/message",
        "step/end",
        "turn/end",
    ]
    retries = of_type(events, "llm/retry")
    started = of_type(events, "llm/retry-started")
    assert [retry["retry"] for retry in retries] == [1, 2]
    assert [retry["failure"]["code"] for retry in retries] == [
        "SERVER",
        "EMPTY_RESPONSE",
    ]
    assert [r["retryId"] for r in retries] == [s["retryId"] for s in started]
    assert end_reasons(events) == [{"kind": "completed"}]


def test_a_failure_without_a_retry_ends_the_turn() -> None:
    events = root_events("failed_turn")
    failure = {"message": "nothing left", "code": "QUOTA"}
    assert end_reasons(events) == [
        {"kind": "error", "error": failure},
        {"kind": "completed"},
    ]


def test_the_output_limit_drops_the_tool_call() -> None:
    events = root_events("cut_off_answer")
    (message,) = of_type(events, "assistant/message")
    assert message["message"]["content"] == [text("Writing it now.")]
    assert not of_type(events, "tool/call")
    assert end_reasons(events) == [{"kind": "max-tokens"}]


# --- tools and delegation ------------------------------------------------------


def test_parallel_calls_start_before_the_first_result() -> None:
    events = root_events("parallel_tools")
    kinds = [event.type for event in events if event.type.startswith("tool/")]
    assert kinds == ["tool/call"] * 3 + ["tool/result"] * 3
    results = of_type(events, "tool/result")
    called = [call["callId"] for call in of_type(events, "tool/call")]
    assert [r["message"]["source"]["callId"] for r in results] == called


def test_results_carry_error_and_meta() -> None:
    good, bad = of_type(root_events("one_tool"), "tool/result")
    assert good["meta"] == {"lines": 2}
    assert "error" not in good
    assert bad["error"] == {"name": "FsError", "code": "FS_NOT_FOUND"}
    assert bad["message"]["content"][0]["isError"] is True


def test_a_child_returns_its_text() -> None:
    results = of_type(root_events("spawn_and_fork"), "tool/result")
    blocks = [result["message"]["content"][0] for result in results]
    assert [block["content"] for block in blocks] == [[text("yes")], [text("noon")]]
    assert [block["isError"] for block in blocks] == [False, False]


def test_a_child_that_did_not_complete_returns_an_error() -> None:
    results = of_type(root_events("unlucky_children"), "tool/result")
    blocks = [result["message"]["content"][0] for result in results]
    ended = "Error: the subagent ended with stop reason "
    assert [[part["text"] for part in block["content"]] for block in blocks] == [
        [f"{ended}error", "half"],
        [f"{ended}aborted", "half"],
        [f"{ended}error"],
        [f"{ended}max-tokens", "too long"],
    ]
    assert all(block["isError"] for block in blocks)


def test_sessions_stand_in_spawn_path_order() -> None:
    tree = TREES["nested_forks"]()
    assert [session.path for session in tree.recordings()] == [
        "/",
        "/t2s1b0",
        "/t2s1b0/t2s1b0",
        "/t2s1b0/t3s1b0",
        "/t2s1b0/t3s1b1",
    ]
    assert list(tree.files()) == [
        "session.jsonl",
        "session.1.jsonl",
        "session.2.jsonl",
        "session.3.jsonl",
        "session.4.jsonl",
    ]


def test_children_of_one_call_are_counted() -> None:
    sessions = TREES["many_children_of_one_call"]().recordings()
    paths = [session.path for session in sessions]
    assert paths == ["/", "/t1s1b0", "/t1s1b0.1", "/t1s1b0.2"]


def test_a_fork_in_the_first_turn_is_fresh() -> None:
    child = TREES["first_turn_fork"]().recordings()[1]
    assert child.header.spawned_by is not None
    assert child.header.spawned_by.context == "fork"
    assert "seedLength" not in child.header.fields
    assert child.events[0].type == "turn/start"


def test_a_fork_of_a_fork_inherits_all_of_it() -> None:
    sessions = TREES["nested_forks"]().recordings()
    outer, mid_turn, later = sessions[1:4]
    assert mid_turn.header.seed_length == outer.header.seed_length
    assert later.header.seed_length > outer.header.seed_length


def test_a_child_gets_the_id_it_is_given() -> None:
    root = root_with_turn()
    (call,) = root.says(spawn_call("ask", "Say yes."))
    child = root.spawn(call, "chosen")
    assert (child.id, child.header.parent_session) == ("chosen", "root")
    assert root.children == [child]


# --- cancels and crashes -------------------------------------------------------


def test_an_aborted_call_keeps_what_can_be_read() -> None:
    events = root_events("aborted_call")
    message = of_type(events, "assistant/message")[0]
    assert message["interrupted"] is True
    assert message["message"]["content"] == [reasoning("hm"), text("Starti")]
    assert end_reasons(events)[0] == {"kind": "aborted", "reason": {"kind": "user"}}


@pytest.mark.parametrize("name", ["aborted_tool_call", "aborted_between_calls"])
def test_an_abort_with_nothing_to_read_has_no_message(name: str) -> None:
    events = root_events(name)
    assert types(events)[-2:] == ["step/end", "turn/end"]
    assert not any(m.get("interrupted") for m in of_type(events, "assistant/message"))


def test_a_crash_is_closed_as_a_repair_does() -> None:
    assert types(root_events("crashed_call"))[-3:] == [
        "assistant/chunk",
        "step/end",
        "turn/end",
    ]
    events = root_events("crashed_tool")
    codes = [data["error"]["code"] for data in of_type(events, "tool/result")]
    assert codes == [OUTCOME_UNKNOWN, NOT_STARTED]
    assert end_reasons(events) == [{"kind": "interrupted"}]
    assert outcome(events).stop_reason == "error"


def test_a_crash_may_take_the_whole_tree() -> None:
    root = root_with_fact()
    (call,) = root.says(spawn_call("ask", "Say yes."))
    child = root.spawn(call)
    child.turn()
    child.starts_saying(text("yes and"), chunks=2)
    child.crash()
    root.crash()
    for session in Tree(root).recordings():
        assert end_reasons(session.events)[-1] == {"kind": "interrupted"}


# --- what a composer refuses ---------------------------------------------------


def test_a_second_turn_while_one_is_open() -> None:
    with pytest.raises(AppendError, match="turn 1 is open in root"):
        root_with_turn().begin()


def test_a_step_without_a_turn() -> None:
    with pytest.raises(AppendError, match="no turn is open in root"):
        Composer("root", START).step()


def test_an_end_without_a_turn() -> None:
    with pytest.raises(AppendError, match="no turn is open in root"):
        Composer("root", START).end()


def test_a_crash_without_a_turn() -> None:
    with pytest.raises(AppendError, match="no turn is open in root"):
        Composer("root", START).crash()


def test_a_call_without_a_step() -> None:
    root = Composer("root", START)
    root.begin()
    with pytest.raises(AppendError, match="no step is open in root"):
        root.says(text("hello"))


def test_going_on_while_a_call_is_open() -> None:
    root = root_with_turn()
    root.starts_saying(text("half an answer"), chunks=2)
    for go_on in (root.end, root.step, lambda: root.says(text("more"))):
        with pytest.raises(AppendError, match="a call is open in root"):
            go_on()


def test_a_second_message_in_a_step() -> None:
    root = root_with_turn()
    root.says(text("one"))
    with pytest.raises(AppendError, match="step 1 has its message in root"):
        root.says(text("two"))


def test_going_on_while_a_tool_call_is_unanswered() -> None:
    root = root_with_turn()
    (call,) = root.says(tool_call("read", {}))
    for go_on in (root.end, root.step, root.abort):
        with pytest.raises(AppendError, match="awaits the result of the call root-c1"):
            go_on()
    root.result(call, "read")
    root.end()


def test_a_result_that_nothing_awaits() -> None:
    root = root_with_turn()
    (call,) = root.says(tool_call("read", {}))
    root.result(call, "read")
    with pytest.raises(AppendError, match="awaits no result of the call root-c1"):
        root.result(call, "again")
    with pytest.raises(AppendError, match="awaits no result of the call root-c1"):
        root.calls(call)


def test_more_chunks_than_the_blocks_have() -> None:
    with pytest.raises(ValueError, match="4 chunks of a call that has 3"):
        root_with_turn().starts_saying(text("one"), chunks=4)


def test_a_retry_of_nothing() -> None:
    root = root_with_turn()
    with pytest.raises(AppendError, match="no failed call"):
        root.retry()
    root.says(text("fine"))
    with pytest.raises(AppendError, match="no failed call"):
        root.retry()


def test_a_delegation_without_a_prompt() -> None:
    root = root_with_turn()
    (call,) = root.says(tool_call("subagent", {"description": "ask"}))
    with pytest.raises(ToolArgumentError, match="prompt must be a string"):
        root.spawn(call)
    assert not root.children


def test_the_result_of_a_child_that_is_not_done_or_not_ours() -> None:
    root = root_with_turn()
    (call,) = root.says(spawn_call("ask", "Say yes."))
    child = root.spawn(call)
    child.turn()
    with pytest.raises(AppendError, match="turn 1 is open in root-1"):
        root.returns(child)
    child.abort("parent")
    with pytest.raises(AppendError, match="root-1 is no child of other"):
        Composer("other", START).returns(finished(child))
