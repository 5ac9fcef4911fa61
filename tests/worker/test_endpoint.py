"""The worker's half of the protocol, as long as the hub keeps to it."""

from __future__ import annotations

from zlib import crc32

import pytest

from nestling.session.chunk import error_finish
from nestling.session.errors import WireError
from nestling.session.jsontext import JsonObject, dumps, loads
from nestling.session.log import SessionLog
from nestling.wire import messages
from nestling.wire.credit import WINDOW_BYTES, WINDOW_FRAMES
from nestling.wire.messages import (
    RUN_TOOL,
    Bye,
    Chunks,
    Close,
    Credit,
    Delegate,
    End,
    Events,
    Fail,
    Nack,
    Ready,
    Result,
    Stream,
    ToHub,
    Tool,
)
from nestling.worker.tape import (
    Call,
    CallInput,
    Input,
    Item,
    Message,
    StepEnd,
    StepStart,
    Summary,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
)
from support.endpoints import SID, Worker, one_call, turn
from support.loops import STOP, TOOLS, result_of, tool_chunks
from support.session_logs import LogWriter, call_block, delta, text_block

HEADER: JsonObject = {
    "type": "request/header",
    "data": {"header": {"config": {"provider": "p", "model": "m"}}},
}
TWO_TOOLS: list[Item] = [
    Message("m"),
    ToolCall(0),
    ToolCall(1),
    ToolResult(0, "r0"),
    ToolResult(1, "r1"),
]


def names(said: list[ToHub]) -> list[str]:
    return [type(message).__name__ for message in said]


def ref(call: int, start: int, end: int, *bodies: bytes) -> JsonObject:
    """A reference to chunks that came with these messages."""
    return {"call": call, "from": start, "to": end, "crc": crc32(b"".join(bodies))}


def started(*items: Item) -> Worker:
    """A worker whose first call is open."""
    worker = Worker(one_call(*items))
    worker.create()
    return worker


# --- starting, ending ----------------------------------------------------------


def test_an_empty_tape_is_a_session_without_events() -> None:
    worker = Worker([])
    assert worker.create() == [Ready(SID, 0), Result(SID, 0)]
    assert worker.tell(Close(SID)) == [Bye(SID, "done")]
    assert worker.endpoint.is_closed
    assert worker.tell(Close(SID)) == [], "it has said its last word"


def test_events_come_before_the_request_that_follows_them() -> None:
    worker = Worker([Input(HEADER), *one_call(Message("m"))])
    assert names(worker.create()) == ["Ready", "Events", "Stream"]
    (stream, _) = worker.last(Stream)
    assert stream == Stream(
        SID,
        *(0, "turn", "p", "m", 1, 1),
        worker.endpoint.loop.log.surface.request_digest(),
        3,
        *(WINDOW_BYTES, WINDOW_FRAMES),
    )
    assert names(worker.chunks(delta("hi"), STOP)) == ["Events"]
    assert names(worker.tell(End(SID, 0, 2))) == ["Events", "Result"]
    assert worker.last(Result)[0].length == len(worker.log) == 8


def test_a_fork_goes_on_where_its_seed_ends() -> None:
    seed = LogWriter()
    seed.answered_turn("a", "b")
    worker = Worker(turn(number=2), seed.events)
    assert names(worker.create()) == ["Ready", "Events", "Result"]
    length = len(seed.events)
    assert worker.last(Ready)[0].events == length
    assert worker.types[0] == "session/end-seed"
    # The hub has stored the end of the seed itself.
    assert worker.last(Events)[0] == Events(SID, length + 1, 4)
    whole = SessionLog(worker.log[:length])
    assert worker.endpoint.loop.log.prefix_digest(length) == whole.prefix_digest(length)


# --- calls ---------------------------------------------------------------------


def test_a_chunk_goes_back_as_a_reference() -> None:
    worker = started(Message("m"))
    worker.answer(delta("h"), delta("i"), STOP)
    items = worker.uploaded()
    assert ref(0, 0, 3, dumps([delta("h"), delta("i"), STOP])) in items
    kinds = [item.get("type") for item in items]
    assert "assistant/chunk" not in kinds
    (message,) = (i for i in items if i.get("type") == "assistant/message")
    assert message["sourceEventSeqs"] == [2, 3, 4]


def test_a_failed_call_is_finished_by_the_worker() -> None:
    worker = Worker(turn(Call(), Call(), Message("m")))
    worker.create()
    worker.chunks(delta("half"))
    failure = {"message": "dead", "code": "TRANSPORT"}
    said = worker.tell(Fail(SID, 0, 1), dumps(failure))
    assert names(said) == ["Events", "Stream"]
    assert worker.last(Stream)[0].call == 1
    last = worker.uploaded()[-1]
    assert last["type"] == "assistant/chunk"
    assert last["data"]["chunk"] == error_finish(failure)
    worker.answer(STOP, call=1)
    assert ref(1, 0, 1, dumps([STOP])) in worker.uploaded()


def test_inputs_of_a_call_stand_after_their_chunk() -> None:
    notes = [CallInput(n, {"type": "note", "data": n}) for n in (0, 2, 2)]
    worker = Worker(turn(Call(inputs=tuple(notes)), Message("m")))
    worker.create()
    worker.answer(delta("a"), delta("b"), STOP)
    assert worker.types[2:8] == [
        "note",
        *["assistant/chunk"] * 2,
        "note",
        "note",
        "assistant/chunk",
    ]
    refs = [item for item in worker.uploaded() if "call" in item]
    body = dumps([delta("a"), delta("b"), STOP])
    assert refs == [ref(0, 0, 2, body), ref(0, 2, 3, body)]


def test_a_reference_proves_all_messages_up_to_its_last_chunk() -> None:
    worker = started(Message("m"))
    bodies = [dumps([delta("a"), delta("b")]), dumps([STOP])]
    worker.chunks(delta("a"), delta("b"))
    worker.chunks(STOP, first=2)
    refs = [item for item in worker.uploaded() if "call" in item]
    assert refs == [ref(0, 0, 2, bodies[0]), ref(0, 2, 3, *bodies)]


def test_the_sum_is_of_the_bytes_and_not_of_what_they_say() -> None:
    worker = started(Message("m"))
    body = b'[ {"text":"a","type":"text-delta","index":0} ]'
    worker.tell(Chunks(SID, 0, 0, 1), body)
    assert worker.uploaded()[-1] == ref(0, 0, 1, body)


def test_a_summary_is_streamed_and_not_logged() -> None:
    summary: JsonObject = {"type": "compaction/summary", "data": {"of": 3}}
    worker = Worker([Summary(summary), *turn()])
    worker.create()
    stream = worker.last(Stream)[0]
    assert (stream.purpose, stream.turn, stream.step) == ("summary", 0, 0)
    usage = {"type": "usage", "usage": {"inputTokens": 1}}
    said = worker.answer(delta("short"), usage, STOP)
    event = worker.endpoint.loop.log.events[0]
    # The answer is what was served, not what a tape could have told.
    assert event.type == "compaction/summary"
    blocks = [{"type": "text", "text": "short"}]
    assert event.data == {"of": 3, "rawOutput": blocks, "usage": {"inputTokens": 1}}
    assert "assistant/chunk" not in worker.types
    assert names(said) == ["Events", "Result"]


def test_credit_is_given_back_in_large_grants() -> None:
    worker = started(Message("m"))
    chunk = delta("x" * 1000)
    said = [names(worker.chunks(chunk, first=first)) for first in range(32)]
    assert said[:31] == [["Events"]] * 31
    assert said[31] == ["Credit", "Events"]
    (credit, _) = worker.last(Credit)
    # 64 frames are the smaller window here: half of it is given back at once.
    assert credit == Credit(SID, 0, 32 * len(dumps([chunk])), 32)


# --- cancels -------------------------------------------------------------------


@pytest.mark.parametrize("after", range(4))
def test_a_cut_call_logs_exactly_so_many_chunks(after: int) -> None:
    tape: list[Item] = [TurnStart(1), StepStart(1, 1), Call()]
    tape += [Message("m")] if after else []
    worker = Worker([*tape, StepEnd(), TurnEnd(cancelled=True)])
    worker.create()
    # Nothing is taken back: a hub serves k chunks and then says to stop after k.
    worker.chunks(*(delta(str(n)) for n in range(after)))
    worker.cancel(0, after)
    assert worker.types.count("assistant/chunk") == after
    assert worker.log[-1].data["reason"] == {
        "kind": "aborted",
        "reason": {"kind": "user"},
    }
    assert worker.last(Result)


def test_a_cut_in_the_middle_of_what_was_served() -> None:
    worker = Worker(turn(Call(), Message("m")))
    worker.create()
    worker.cancel(0, 2)
    assert worker.types.count("assistant/chunk") == 0
    worker.chunks(delta("a"), delta("b"), delta("c"), STOP)
    assert worker.types.count("assistant/chunk") == 2
    assert worker.log[4].data["message"]["content"] == [text_block("ab")]
    served = dumps([delta("a"), delta("b"), delta("c"), STOP])
    refs = [item for item in worker.uploaded() if "call" in item]
    assert refs == [ref(0, 0, 2, served)]
    # The rest of the answer, and its end, are on their way still.
    assert worker.chunks(delta("d"), first=4) == []
    assert worker.tell(End(SID, 0, 5)) == []
    assert worker.tell(Fail(SID, 0, 5), b"{}") == []


def test_the_rest_of_a_cut_call_is_not_the_next_ones() -> None:
    tape: list[Item] = [*turn(Call(), Message("m")), *turn(Call(), number=2)]
    worker = Worker(tape)
    worker.create()
    worker.cancel(0, 1)
    worker.chunks(delta("a"), delta("b"))
    assert worker.last(Stream)[0].call == 1
    assert worker.chunks(delta("c"), first=2) == []
    assert worker.tell(End(SID, 0, 3)) == []
    worker.answer(STOP, call=1)
    assert worker.types.count("assistant/chunk") == 2


def test_a_cut_that_comes_too_late_changes_nothing() -> None:
    worker = started(Message("m"))
    worker.cancel(0, 9)
    worker.answer(delta("a"), STOP)
    assert worker.log[-1].data["reason"] == {"kind": "completed"}
    assert worker.cancel(0, 1) == []


def test_a_cancel_of_another_call_changes_nothing() -> None:
    worker = started(Message("m"))
    worker.cancel(7, 0)
    worker.answer(delta("a"), STOP)
    assert worker.log[-1].data["reason"] == {"kind": "completed"}


def test_a_turn_waits_for_its_cancel() -> None:
    worker = Worker([TurnStart(1), TurnEnd(cancelled=True), *turn(number=2)])
    assert names(worker.create()) == ["Ready", "Events"]
    assert worker.types == ["turn/start"]
    assert names(worker.cancel(None, None, {"kind": "parent"})) == ["Events", "Result"]
    reason = {"kind": "aborted", "reason": {"kind": "parent"}}
    assert worker.log[1].data["reason"] == reason
    assert worker.log[-1].data["reason"] == {"kind": "completed"}


def test_a_cancel_that_comes_too_late_is_not_kept() -> None:
    last: list[Item] = [TurnStart(2), TurnEnd(cancelled=True)]
    worker = Worker([*one_call(Message("m")), *last])
    worker.create()
    worker.cancel(None, None)
    worker.answer(delta("a"), STOP)
    assert worker.types[-1] == "turn/start", "the second turn waits for its own cancel"
    worker.cancel(None, None, {"kind": "parent"})
    reason = {"kind": "aborted", "reason": {"kind": "parent"}}
    assert worker.log[-1].data["reason"] == reason


# --- tools ---------------------------------------------------------------------


def test_a_tool_waits_until_its_call_is_durable() -> None:
    worker = started(*TWO_TOOLS)
    said = worker.answer(*tool_chunks("a", "b"))
    first, second = (e.seq for e in worker.log if e.type == "tool/call")
    assert [m for m in said if isinstance(m, Tool)] == [
        Tool(SID, 1, 1, 0, first + 1),
        Tool(SID, 1, 1, 1, second + 1),
    ]
    asked = {"callId": "b", "name": "bash", "arguments": "{}"}
    assert loads(worker.last(Tool)[1]) == asked
    worker.ack(second)
    run = messages.ToolResult(SID, 1, 1, 1)
    with pytest.raises(WireError, match=f"of which {second} are durable"):
        worker.tell(run, RUN_TOOL)


def test_results_are_logged_in_the_order_of_the_calls() -> None:
    worker = started(*TWO_TOOLS)
    worker.answer(*tool_chunks("a", "b"))
    worker.ack()
    assert worker.result(1, result_of("b")) == []
    assert "tool/result" not in worker.types
    assert names(worker.result(0, result_of("a"))) == ["Events", "Result"]
    results = [e for e in worker.log if e.type == "tool/result"]
    assert [e.data["message"]["id"] for e in results] == ["r0", "r1"]
    assert [e.data["message"]["source"]["callId"] for e in results] == ["a", "b"]


DELEGATED = '{"description":"d","prompt":"p"}'


@pytest.mark.parametrize(
    ("name", "arguments", "context"),
    [
        ("subagent", DELEGATED, "spawn"),
        ("subagent_fork", DELEGATED, "fork"),
        ("subagent_fork", '{"prompt":"p"}', "fork"),
        ("subagent", '{"description":"d"}', None),
        ("subagent", "[", None),
        ("bash", DELEGATED, None),
    ],
)
def test_what_a_tool_call_asks_for(
    name: str, arguments: str, context: str | None
) -> None:
    worker = started(Message("m"), ToolCall(0), ToolResult(0, "r"))
    block = {**call_block("a", name), "arguments": arguments}
    said = worker.answer({"type": "block-end", "index": 0, "block": block}, TOOLS)
    assert names(said)[-2] == "Events", "what led to it comes before it"
    message = said[-1]
    worker.ack()
    length = len(worker.log)
    asked = {"callId": "a", "name": name, "arguments": arguments}
    if context is None:
        assert message == Tool(SID, 1, 1, 0, length)
        assert loads(worker.said[-1][1]) == asked
        assert names(worker.result(0, result_of("a"))) == ["Events", "Result"]
        return
    assert isinstance(message, Delegate)
    assert (message.block, message.n, message.key) == (0, 0, None)
    assert (message.context, message.length) == (context, length)
    description = "d" if "description" in arguments else ""
    more = {"prompt": "p", "description": description}
    assert loads(worker.said[-1][1]) == {**asked, **more}
    assert names(worker.settle(0, result_of("a"))) == ["Events", "Result"]


# --- gaps ----------------------------------------------------------------------


def test_a_gap_is_filled() -> None:
    worker = started(Message("m"))
    worker.answer(delta("a"), STOP)
    worker.ack(2)
    before = worker.uploaded()
    assert names(worker.tell(Nack(SID, 2))) == ["Events"]
    (message, body) = worker.last(Events)
    assert (message.first, message.first + message.count) == (2, len(worker.log))
    assert loads(body) == before[2:]
