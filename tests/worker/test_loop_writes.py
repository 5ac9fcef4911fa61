"""What each verb of the loop writes, event by event."""

from __future__ import annotations

import pytest

from nestling.session.chunk import error_finish
from nestling.session.errors import AppendError, LoopError
from nestling.session.jsontext import Json, JsonObject
from nestling.worker.loop import Route
from support.loops import STOP, USER, Driver, result_of, tool_chunks
from support.session_logs import call_block, delta, finish, text_block, types

PLACE = {"turn": 1, "step": 1}
HEADER: JsonObject = {
    "type": "request/header",
    "data": {"header": {"config": {"provider": "p", "model": "m"}}},
}
FAILURE: JsonObject = {"message": "the line is dead", "code": "SERVER"}


def last_row(driver: Driver) -> JsonObject:
    return driver.loop.log.events[-1].row()


def message_data(driver: Driver) -> JsonObject:
    event = driver.loop.log.events[-1]
    assert event.type == "assistant/message"
    data: JsonObject = event.data
    return data


def test_turns_and_steps() -> None:
    driver = Driver()
    driver.start()
    driver.close()
    assert [event.row() for event in driver.loop.log.events] == [
        {"type": "turn/start", "seq": 0, "time": 1001, "data": {"turn": 1}},
        {"type": "step/start", "seq": 1, "time": 1002, "data": PLACE},
        {"type": "step/end", "seq": 2, "time": 1003, "data": PLACE},
        {
            "type": "turn/end",
            "seq": 3,
            "time": 1004,
            "data": {"turn": 1, "reason": {"kind": "completed"}},
        },
    ]


def test_steps_are_counted_in_their_turn() -> None:
    driver = Driver()
    for _ in range(2):
        driver.start()
        driver.loop.end_step()
        driver.loop.start_step()
        driver.close()
    places = [e.data for e in driver.loop.log.events if e.type == "step/start"]
    assert places == [{"turn": t, "step": s} for t in (1, 2) for s in (1, 2)]


def test_a_chunk() -> None:
    driver = Driver()
    driver.start()
    driver.open(delta("hi"))
    assert last_row(driver) == {
        "type": "assistant/chunk",
        "seq": 2,
        "time": 1003,
        "data": {**PLACE, "chunk": delta("hi")},
    }
    assert driver.loop.logged_chunks == 1


def test_a_chunk_that_is_none() -> None:
    driver = Driver()
    driver.start()
    driver.loop.begin_call()
    for chunk in ({}, {"type": "text-delta", "index": True, "text": "x"}):
        with pytest.raises(AppendError):
            driver.loop.add_chunk(chunk)
    assert driver.loop.logged_chunks == 0


def test_a_message() -> None:
    driver = Driver()
    driver.loop.append_input(HEADER)
    driver.start()
    usage = {"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 2}}
    driver.answer(delta("h"), delta("i"), usage, STOP)
    driver.loop.commit("root-m1")
    assert last_row(driver) == {
        "type": "assistant/message",
        "seq": 7,
        "time": 1008,
        "data": {
            **PLACE,
            "message": {
                "id": "root-m1",
                "role": "assistant",
                "content": [text_block("hi")],
                "source": {"kind": "model", "provider": "p", "model": "m"},
            },
            "usage": {"inputTokens": 1, "outputTokens": 2},
        },
        "sourceEventSeqs": [3, 4, 5, 6],
        "surfaceOp": "append",
    }


def test_the_message_is_of_the_model_that_was_asked() -> None:
    driver = Driver()
    assert driver.loop.route == Route("", "")
    driver.loop.append_input(HEADER)
    driver.start()
    driver.answer(delta("a"), STOP)
    driver.loop.commit("m1")
    driver.close()
    other = {"header": {"config": {"provider": "q", "model": "n"}}}
    driver.loop.append_input({"type": "request/header", "data": other})
    driver.start()
    driver.answer(delta("b"), STOP)
    driver.loop.commit("m2")
    source = message_data(driver)["message"]["source"]
    assert source == {"kind": "model", "provider": "q", "model": "n"}
    # A loop over the same log asks the same model.
    assert Driver(driver.loop.log).loop.route == Route("q", "n")


def test_a_retry_cites_the_last_call_only() -> None:
    driver = Driver()
    driver.start()
    driver.open(delta("half"))
    failed = driver.loop.fail_call(FAILURE)
    assert failed.data["chunk"] == {
        "type": "finish",
        "reason": {"kind": "error", "failure": FAILURE},
    }
    driver.loop.append_input({"type": "llm/retry", "data": {}})
    driver.answer(error_finish(FAILURE))
    driver.loop.append_input({"type": "llm/retry", "data": {}})
    driver.answer(delta("whole"), STOP)
    driver.loop.commit("m")
    event = driver.loop.log.events[-1]
    assert event.source_event_seqs == [7, 8]
    assert event.data["message"]["content"] == [text_block("whole")]
    driver.close()
    assert driver.reason() == {"kind": "completed"}


def test_an_input_in_the_middle_of_a_call_is_not_cited() -> None:
    driver = Driver()
    driver.start()
    driver.open(delta("a"))
    driver.loop.append_input({"type": "note", "data": {}})
    driver.loop.add_chunk(STOP)
    driver.loop.end_call()
    driver.loop.commit("m")
    assert driver.loop.log.events[-1].source_event_seqs == [2, 4]


def test_a_cut_off_message_drops_its_tool_calls() -> None:
    driver = Driver()
    driver.start()
    text_end = {"type": "block-end", "index": 0, "block": text_block("writing")}
    call_end = {"type": "block-end", "index": 1, "block": call_block("a")}
    state = {"response": "r", "blocks": ["of text", "of call"]}
    driver.answer(text_end, call_end, finish("max-tokens", replayState=state))
    driver.loop.commit("m")
    message = message_data(driver)["message"]
    assert message["content"] == [text_block("writing")]
    expected = {"response": "r", "blocks": ["of text"]}
    assert message["source"]["replayState"] == expected
    with pytest.raises(LoopError, match="block 1 of the message is no tool call"):
        driver.loop.dispatch(1)
    driver.loop.end_step()
    # Sticky: the turn ends so, whatever a later call of it comes to.
    driver.loop.start_step()
    driver.answer(delta("more"), STOP)
    driver.loop.commit("m2")
    driver.close()
    assert driver.reason() == {"kind": "max-tokens"}


def test_a_replay_state_that_does_not_fit_is_dropped() -> None:
    driver = Driver()
    driver.start()
    state = {"response": "r", "blocks": ["one", "two"]}
    driver.answer(delta("x"), {**STOP, "replayState": state})
    driver.loop.commit("m")
    assert "replayState" not in message_data(driver)["message"]["source"]


def test_an_empty_message_carries_its_usage() -> None:
    driver = Driver()
    driver.start()
    usage = {"type": "usage", "usage": {"outputTokens": 9}}
    driver.answer(usage, finish("max-tokens"))
    with pytest.raises(LoopError, match="a step end cannot follow"):
        driver.loop.end_step()
    driver.loop.commit("m")
    assert message_data(driver)["message"]["content"] == []
    assert message_data(driver)["usage"] == {"outputTokens": 9}
    driver.close()


# --- cut calls -----------------------------------------------------------------


def test_a_cut_call_keeps_what_can_be_read() -> None:
    driver = Driver()
    driver.start()
    end = {"type": "block-end", "index": 2, "block": call_block("a")}
    blank, thought = delta("  \n", 1), delta("hm", 3, "reasoning-delta")
    driver.open(delta("half"), blank, end, thought)
    driver.loop.cut_call({"kind": "user"})
    driver.loop.commit("m")
    data = message_data(driver)
    assert data["interrupted"] is True
    kept = [text_block("half"), {"type": "reasoning", "text": "hm"}]
    assert data["message"]["content"] == kept
    assert "usage" not in data
    assert driver.loop.log.events[-1].source_event_seqs == [2, 3, 4, 5]
    assert driver.loop.is_cancelled
    driver.close()
    assert driver.reason() == {"kind": "aborted", "reason": {"kind": "user"}}


@pytest.mark.parametrize("chunks", [[], [delta(" ")], tool_chunks("a")[:1]])
def test_a_cut_call_of_which_nothing_is_left(chunks: list[JsonObject]) -> None:
    driver = Driver()
    driver.start()
    driver.open(*chunks)
    driver.loop.cut_call(USER)
    with pytest.raises(LoopError, match="nothing readable"):
        driver.loop.commit("m")
    driver.close()
    assert driver.reason()["kind"] == "aborted"


def test_a_cut_call_drops_the_state_of_a_stream_that_did_not_end() -> None:
    driver = Driver()
    driver.start()
    driver.open(delta("x"), {**STOP, "replayState": {"response": "r"}})
    driver.loop.cut_call(USER)
    driver.loop.commit("m")
    assert "replayState" not in message_data(driver)["message"]["source"]


# --- tools ---------------------------------------------------------------------


def test_a_tool_call_and_its_result() -> None:
    driver = Driver()
    driver.start()
    driver.answer(*tool_chunks("a"))
    driver.loop.commit("m")
    tool = driver.loop.dispatch(0)
    called = {"callId": "a", "name": "bash", "arguments": "{}"}
    assert last_row(driver)["data"] == {**PLACE, **called}
    assert (tool.block, tool.call_id, tool.name, tool.seq) == (0, "a", "bash", 5)
    more: dict[str, Json] = {"error": {"name": "E", "code": "C"}, "meta": {"lines": 2}}
    driver.loop.collect(0, result_of("a", **more), "r")
    assert last_row(driver) == {
        "type": "tool/result",
        "seq": 6,
        "time": 1007,
        "data": {
            **PLACE,
            "message": {
                "id": "r",
                "role": "user",
                "source": {"kind": "tool", "callId": "a"},
                "content": [result_of("a")["block"]],
            },
            **more,
        },
        "sourceEventSeqs": [5],
        "surfaceOp": "append",
    }


def test_results_may_stand_in_any_order() -> None:
    driver = Driver()
    driver.start()
    driver.answer(*tool_chunks("a", "b"))
    driver.loop.commit("m")
    seqs = [driver.loop.dispatch(block).seq for block in (1, 0)]
    for block, call_id in ((0, "a"), (1, "b")):
        driver.loop.collect(block, result_of(call_id), f"r{block}")
    results = driver.loop.log.events[-2:]
    assert [e.source_event_seqs for e in results] == [[seqs[1]], [seqs[0]]]
    driver.close()
    assert types(driver.loop.log.events)[-2:] == ["step/end", "turn/end"]


# --- why a turn ends -----------------------------------------------------------


def test_a_failed_turn_names_the_failure() -> None:
    driver = Driver()
    driver.start()
    driver.open()
    driver.loop.fail_call(FAILURE)
    driver.close()
    assert driver.reason() == {"kind": "error", "error": FAILURE}
    driver.start()
    driver.close()
    assert driver.reason() == {"kind": "completed"}, "another turn, another outcome"


def test_a_cancel_comes_before_all_else() -> None:
    driver = Driver()
    driver.start()
    driver.answer(finish("max-tokens"))
    driver.loop.cancel({"kind": "parent"})
    driver.close()
    assert driver.reason() == {"kind": "aborted", "reason": {"kind": "parent"}}
    driver.start()
    assert not driver.loop.is_cancelled


def test_a_reason_can_be_told_where_no_call_tells_one() -> None:
    driver = Driver()
    driver.loop.start_turn()
    told: JsonObject = {"kind": "error", "error": {"message": "m", "code": "c"}}
    driver.loop.end_turn(told)
    assert driver.reason() == told
    driver.start()
    driver.answer(STOP)
    driver.loop.end_step()
    with pytest.raises(LoopError, match="turn 2 called a model"):
        driver.loop.end_turn(told)
    driver.loop.end_turn({"kind": "blocked"})
    assert driver.reason() == {"kind": "blocked"}
