"""The request that a log leads to: its header, its messages, and their order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.session.jsontext import JsonObject
from nestling.session.log import SessionLog
from nestling.session.request import rebuild_request
from support.session_logs import LogWriter, call_block, rows, text_block


def _header(**more: Any) -> JsonObject:
    config = {"provider": "p", "model": "m", "temperature": 0.5}
    return {"header": {"config": config, **more}, "reason": "initial"}


def _log(writer: LogWriter) -> SessionLog:
    """The log of what was written, its last turn open, each event checked."""
    log = SessionLog()
    for event in writer.events:
        log.append(event)
    return log


def _shown(writer: LogWriter) -> list[str]:
    """What the model sees: user texts, calls as ``A[ids]``, results as ``R(id)``."""
    return [_short(m) for m in rebuild_request(_log(writer)).messages]


def _short(message: JsonObject) -> str:
    blocks = message["content"]
    calls = [block["id"] for block in blocks if block["type"] == "tool-call"]
    results = [b["toolCallId"] for b in blocks if b["type"] == "tool-result"]
    texts = "".join(block["text"] for block in blocks if block["type"] == "text")
    if results:
        return f"R({','.join(results)})"
    return (
        f"A[{','.join(calls)}]" if calls else f"{message['role'][0].upper()}({texts})"
    )


def _asked(*call_ids: str) -> LogWriter:
    """A turn in which the model made calls."""
    writer = LogWriter()
    writer.start_turn()
    writer.start_step()
    writer.user("go")
    writer.assistant(*map(call_block, call_ids))
    return writer


def _answer(writer: LogWriter, *call_ids: str) -> None:
    for call_id in call_ids:
        writer.tool_result(call_id, writer.tool_call(call_id))


# --- the header ----------------------------------------------------------------


def test_the_header_says_who_is_asked_and_with_what() -> None:
    writer = LogWriter()
    tools = [{"name": "look", "description": "", "parameters": {"type": "object"}}]
    writer.add("request/header", _header(system="Be brief.", tools=tools))
    request = rebuild_request(_log(writer))
    assert (request.provider, request.model) == ("p", "m")
    assert request.config == {"provider": "p", "model": "m", "temperature": 0.5}
    assert (request.system, request.tools) == ("Be brief.", tools)
    assert request.messages == []


def test_the_last_header_holds() -> None:
    writer = LogWriter()
    writer.add("request/header", _header(system="old", tools=[]))
    writer.user("hi")
    config = {"provider": "q", "model": "n"}
    writer.add("request/header", {"header": {"config": config}, "reason": "change"})
    request = rebuild_request(_log(writer))
    assert (request.provider, request.model) == ("q", "n")
    assert (request.system, request.tools) == (None, None)


def test_a_log_without_a_header_asks_nobody() -> None:
    writer = LogWriter()
    writer.user("hi")
    request = rebuild_request(_log(writer))
    assert request._replace(messages=[]) == ("", "", {}, None, None, [])
    assert _shown(writer) == ["U(hi)"]


# --- the messages --------------------------------------------------------------


def test_messages_stand_in_order_and_chunks_do_not_count() -> None:
    writer = LogWriter()
    writer.answered_turn("one?", "one.")
    writer.answered_turn("two?", "two.")
    assert _shown(writer) == ["U(one?)", "A(one.)", "U(two?)", "A(two.)"]


def test_a_seed_counts_like_own_events() -> None:
    writer = LogWriter()
    writer.answered_turn("one?", "one.")
    log = SessionLog(writer.events)
    assert [_short(m) for m in rebuild_request(log).messages] == ["U(one?)", "A(one.)"]


def test_messages_without_content_are_left_out() -> None:
    writer = _asked()
    assert writer.events[-1].data["message"]["content"] == []
    message = {"id": "u", "role": "user", "content": [], "source": {"kind": "user"}}
    writer.add("user/message", message, surfaceOp="append")
    writer.user("still there?")
    assert _shown(writer) == ["U(go)", "U(still there?)"]


def test_an_empty_message_does_not_end_the_wait_for_results() -> None:
    writer = _asked("c")
    writer.assistant()
    writer.user("side")
    _answer(writer, "c")
    assert _shown(writer) == ["U(go)", "A[c]", "R(c)", "U(side)"]


def test_a_compaction_shows_its_summary_where_the_range_was() -> None:
    writer = LogWriter()
    writer.answered_turn("one?", "one.")
    writer.answered_turn("two?", "two.")
    seqs = [seq for seq, e in enumerate(writer.events) if e.surface_op is not None]
    message = {"id": "s", "role": "user", "content": [text_block("summary")]}
    writer.add(
        "user/message",
        message,
        surfaceOp={"op": "replace", "start": seqs[0], "end": seqs[2]},
        sourceEventSeqs=seqs[:3],
    )
    assert _shown(writer) == ["U(summary)", "A(two.)"]


def test_a_replaced_result_stands_where_the_first_one_stood() -> None:
    writer = _asked("c")
    _answer(writer, "c")
    (old,) = [e for e in writer.events if e.type == "tool/result"]
    writer.assistant(text_block("done"))
    block = {**old.data["message"]["content"][0], "content": [text_block("pruned")]}
    message = {**old.data["message"], "content": [block]}
    writer.add(
        "tool/result",
        {**old.data, "message": message},
        surfaceOp={"op": "replace", "start": old.seq, "end": old.seq},
        sourceEventSeqs=[old.seq],
    )
    assert _shown(writer) == ["U(go)", "A[c]", "R(c)", "A(done)"]
    shown = rebuild_request(_log(writer)).messages[2]["content"][0]["content"]
    assert shown == [text_block("pruned")]


def test_a_result_whose_call_was_compacted_away_is_left_out() -> None:
    """Fault A3: a provider refuses a result without its call, for ever."""
    writer = _asked("c")
    called = len(writer.events) - 1
    message = {"id": "s", "role": "user", "content": [text_block("summary")]}
    _answer(writer, "c")
    writer.add(
        "user/message",
        message,
        surfaceOp={"op": "replace", "start": called, "end": called},
        sourceEventSeqs=[called],
    )
    assert _shown(writer) == ["U(go)", "U(summary)"]


# --- what lands between calls and results --------------------------------------


def test_a_message_between_call_and_result_stands_after_the_result() -> None:
    """Fault A8: the log keeps it where it came, the request does not."""
    writer = _asked("c")
    seq = writer.tool_call("c")
    writer.user("side")
    writer.tool_result("c", seq)
    log = _log(writer)
    assert [e.type for e in log.events[-2:]] == ["user/message", "tool/result"]
    assert _shown(writer) == ["U(go)", "A[c]", "R(c)", "U(side)"]


def test_messages_wait_for_the_last_result_and_keep_their_order() -> None:
    writer = _asked("c", "d")
    writer.user("first")
    _answer(writer, "c")
    writer.user("second")
    _answer(writer, "d")
    writer.user("third")
    expected = ["U(go)", "A[c,d]", "R(c)", "R(d)", "U(first)", "U(second)", "U(third)"]
    assert _shown(writer) == expected


def test_what_waits_for_a_result_that_never_came_is_not_lost() -> None:
    writer = _asked("c", "d")
    writer.user("side")
    _answer(writer, "d")
    assert _shown(writer) == ["U(go)", "A[c,d]", "R(d)", "U(side)"]
    writer.assistant(text_block("on"))
    assert _shown(writer) == ["U(go)", "A[c,d]", "R(d)", "U(side)", "A(on)"]


def test_a_call_id_may_be_used_twice() -> None:
    writer = _asked("c", "c")
    _answer(writer, "c")
    writer.user("side")
    _answer(writer, "c")
    writer.assistant(call_block("c"))
    _answer(writer, "c")
    assert _shown(writer) == [
        "U(go)", "A[c,c]", "R(c)", "R(c)", "U(side)", "A[c]", "R(c)",
    ]  # fmt: skip


@given(st.permutations(["c", "d", "e", "one", "two"]))
def test_no_order_of_arrival_parts_calls_from_results(order: list[str]) -> None:
    writer = _asked("c", "d", "e")
    for name in order:
        if name in ("one", "two"):
            writer.user(name)
        else:
            _answer(writer, name)
    shown = _shown(writer)
    results = [f"R({name})" for name in order if name in "cde"]
    users = [f"U({name})" for name in order if name in ("one", "two")]
    assert shown == ["U(go)", "A[c,d,e]", *results, *users]


def test_a_request_is_a_copy() -> None:
    writer = LogWriter()
    writer.add("request/header", _header(tools=[{"name": "look"}]))
    writer.answered_turn("one?", "one.")
    log = _log(writer)
    before = [repr(row) for row in rows(log.events)]
    request = rebuild_request(log)
    request.config.clear()
    request.tools[0].clear()
    for message in request.messages:
        message["content"][0].clear()
        message.clear()
    assert [repr(row) for row in rows(log.events)] == before


@pytest.mark.parametrize("text", ["\ud83d", "é\U0001f600"])
def test_texts_come_as_they_were_logged(text: str) -> None:
    writer = LogWriter()
    writer.user(text)
    (message,) = rebuild_request(_log(writer)).messages
    assert message["content"] == [text_block(text)]
