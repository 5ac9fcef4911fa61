"""What an endpoint makes of a hub that breaks the protocol, and of what cannot be."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from nestling.session.errors import WireError
from nestling.session.event import Event
from nestling.session.jsontext import dumps
from nestling.session.writing import encode_rows
from nestling.wire.messages import (
    Ack,
    Bye,
    Cancel,
    Chunks,
    Close,
    End,
    Events,
    Fail,
    Nack,
    Settled,
    ToolResult,
    ToWorker,
)
from nestling.worker.tape import (
    Call,
    CallInput,
    Hold,
    Message,
    StepEnd,
    StepStart,
    ToolCall,
    TurnStart,
)
from nestling.worker.tape import (
    ToolResult as TapeResult,
)
from support.endpoints import SID, Worker, one_call, turn
from support.loops import STOP, result_of, tool_chunks
from support.session_logs import LogWriter, delta

# --- before and around the session ---------------------------------------------

EARLY: list[ToWorker] = [
    Ack(SID, 0),
    Nack(SID, 0),
    Chunks(SID, 0, 0, 0),
    End(SID, 0, 0),
    Cancel(SID, None, None),
    ToolResult(SID, 1, 1, 0),
    Settled(SID, 1, 1, 0, 0, None),
    Close(SID),
]


@pytest.mark.parametrize("message", EARLY, ids=lambda message: type(message).__name__)
def test_a_message_before_the_session(message: ToWorker) -> None:
    with pytest.raises(WireError, match="before its create"):
        Worker([]).tell(message, b"{}")


@pytest.mark.parametrize("message", EARLY, ids=lambda message: type(message).__name__)
def test_a_message_for_another_session(message: ToWorker) -> None:
    worker = Worker([Hold()])
    worker.create(sid=SID + 1)
    with pytest.raises(WireError, match="a message for session 3, not 4"):
        worker.tell(message, b"{}")


def test_a_second_create() -> None:
    worker = Worker([Hold()])
    worker.create()
    with pytest.raises(WireError, match="a second create"):
        worker.create()


def test_a_create_whose_sizes_do_not_add_up() -> None:
    with pytest.raises(WireError, match="'create' body"):
        Worker([]).create(brief_size=99)


def test_an_agent_that_is_not_known() -> None:
    with pytest.raises(WireError, match="unknown agent 'mine:agent'"):
        Worker([]).create(agent="mine:agent")


@pytest.mark.parametrize("tape", [b"", b"{}", b'[{"at":"nowhere"}]'])
def test_a_tape_that_is_none(tape: bytes) -> None:
    worker = Worker([])
    worker.tape = tape
    with pytest.raises(WireError, match="the tape is not readable"):
        worker.create()


# --- in the session ------------------------------------------------------------


def calling() -> Worker:
    worker = Worker(one_call(Message("m")))
    worker.create()
    worker.chunks(delta("a"))
    return worker


def asking() -> Worker:
    worker = Worker(turn(Call(), Message("m"), ToolCall(0), ToolCall(1), Hold()))
    worker.create()
    worker.answer(*tool_chunks("a", "b"))
    worker.ack()
    return worker


ONE = dumps([delta("b")])
RESULT = dumps(result_of("a"))
BROKEN: list[tuple[Callable[[], Worker], ToWorker, bytes, str]] = [
    (calling, Ack(SID, 99), b"", "an ack of 99 events, only 3 exist"),
    (calling, Nack(SID, 99), b"", "events from 99"),
    (calling, Chunks(SID, 0, 0, 1), ONE, "chunks from 0, expected 1"),
    (calling, Chunks(SID, 0, 2, 1), ONE, "chunks from 2, expected 1"),
    (calling, Chunks(SID, 0, 1, 2), ONE, "1 chunks came, announced were 2"),
    (calling, Chunks(SID, 0, 1, 0), ONE, "1 chunks came, announced were 0"),
    (calling, Chunks(SID, 0, 1, 1), b"{}", "expected a JSON array"),
    (calling, Chunks(SID, 0, 1, 1), b"[", "no JSON"),
    (calling, Chunks(SID, 0, 1, 1), b"\xff", "no JSON"),
    (calling, End(SID, 0, 2), b"", "ends after 2 chunks, 1 came"),
    (calling, Fail(SID, 0, 0), b"{}", "ends after 0 chunks, 1 came"),
    (calling, Fail(SID, 0, 1), b"[]", "expected a JSON object"),
    (calling, Cancel(SID, 0, 1), b"null", "expected a JSON object"),
    (calling, ToolResult(SID, 1, 1, 0), RESULT, "block 0, which awaits none"),
    (asking, ToolResult(SID, 1, 1, 2), RESULT, "block 2, which awaits none"),
    (asking, ToolResult(SID, 1, 2, 0), RESULT, "step 2, block 0, which awaits none"),
    (asking, ToolResult(SID, 2, 1, 0), RESULT, "turn 2, step 1"),
    (asking, Settled(SID, 1, 1, None, 0, None), RESULT, "block None"),
    (asking, ToolResult(SID, 1, 1, 0), b"", "no JSON"),
    (asking, ToolResult(SID, 1, 1, 0), b"[]", "expected a JSON object"),
    (asking, Settled(SID, 1, 1, 0, 0, None), RESULT, "block 0, which awaits none"),
]


@pytest.mark.parametrize(("state", "message", "body", "problem"), BROKEN)
def test_a_hub_that_breaks_the_protocol(
    state: Callable[[], Worker], message: ToWorker, body: bytes, problem: str
) -> None:
    worker = state()
    length = len(worker.log)
    with pytest.raises(WireError, match=problem):
        worker.tell(message, body)
    assert len(worker.log) == length
    assert not any(isinstance(said, Bye) for said, _ in worker.said)


def test_a_second_result_for_one_call() -> None:
    worker = asking()
    worker.result(0, result_of("a"))
    with pytest.raises(WireError, match="block 0, which awaits none"):
        worker.result(0, result_of("a"))


def test_a_request_for_events_that_were_acknowledged() -> None:
    worker = asking()
    with pytest.raises(WireError, match="kept are"):
        worker.tell(Nack(SID, 0))


# --- a seed that is not the one announced --------------------------------------


def seeded() -> Worker:
    seed = LogWriter()
    seed.answered_turn("a", "b")
    return Worker(turn(number=2), seed.events)


def refused(worker: Worker, **changes: object) -> str:
    """Create a session from what it must refuse; return why it did."""
    assert worker.create(**changes) == [Bye(SID, "seed-refused")]
    assert worker.endpoint.is_closed
    assert worker.endpoint.sid == SID
    return worker.said[-1][1].decode()


def test_a_seed_of_another_hash() -> None:
    assert refused(seeded(), sha256=b"\0" * 32) == (
        "the seed's bytes do not fit their hash"
    )


def test_a_seed_of_another_length() -> None:
    assert refused(seeded(), events=5) == "the seed has 8 events, announced 5"


def test_a_seed_with_an_open_turn() -> None:
    worker = seeded()
    log = LogWriter()
    log.answered_turn("a", "b")
    log.start_turn()
    worker.seed = encode_rows(log.events)
    assert "9 inherited events leave turn 2 open" in refused(worker, events=9)


def test_a_seed_that_is_cut_off_in_a_turn() -> None:
    worker = seeded()
    log = LogWriter()
    log.answered_turn("a", "b")
    worker.seed = encode_rows(log.events[:-1])
    assert "7 inherited events leave turn 1 open" in refused(worker, events=7)


@pytest.mark.parametrize(
    ("seed", "problem"),
    [
        (b"{}\n", "seed event 0: an event must have a type"),
        (b'{"type":"x"}\n', "seed event 0: x has no data"),
        (b'{"type":"turn/start","data":{}}\n', "seed event 0: turn/start: turn must"),
        (
            encode_rows([Event(0, "x", 0, {}), Event(2, "x", 0, {})]),
            "seed event 1: found seq 2, expected 1",
        ),
    ],
)
def test_a_seed_that_is_no_log(seed: bytes, problem: str) -> None:
    worker = seeded()
    worker.seed = seed
    digest = hashlib.sha256(seed).digest()
    assert problem in refused(worker, sha256=digest, events=1)


def test_a_seed_that_is_no_json() -> None:
    worker = seeded()
    worker.seed = b"{"
    with pytest.raises(WireError, match="no JSON"):
        worker.create(events=1)


def test_after_a_refusal_nothing_is_said() -> None:
    worker = seeded()
    refused(worker, events=5)
    assert worker.create() == []
    assert worker.tell(Close(SID)) == []


# --- what the loop cannot do ---------------------------------------------------


def left(worker: Worker) -> str:
    """Return why a worker gave up."""
    message, body = worker.said[-1]
    assert message == Bye(SID, "loop-refused")
    assert worker.endpoint.is_closed
    return body.decode()


def test_a_tape_that_does_not_fit_what_was_served() -> None:
    worker = Worker(one_call(Message("m"), ToolCall(0), TapeResult(0, "r")))
    worker.create()
    said = worker.answer(delta("no tool"), STOP)
    # What it did until then is uploaded first.
    assert [type(each) for each in said] == [Events, Events, Bye]
    assert left(worker) == (
        "event 5: recorded tool/call, but block 0 of the message is no tool call"
    )


def test_a_turn_of_another_number() -> None:
    worker = Worker(turn(number=7))
    worker.create()
    assert left(worker) == (
        "event 1: recorded turn/start, but the loop's turn is 1, recorded was 7"
    )


def test_a_step_of_another_number() -> None:
    worker = Worker([TurnStart(1), StepStart(1, 2), StepEnd()])
    worker.create()
    assert left(worker).endswith("but the loop's step is 1, recorded was 2")


def test_a_chunk_that_no_log_takes() -> None:
    worker = calling()
    worker.chunks({"type": "nothing"}, first=1)
    assert "a chunk must have a known type" in left(worker)


def test_a_result_of_another_call() -> None:
    tape = one_call(Message("m"), ToolCall(0), TapeResult(0, "r"))
    worker = Worker(tape)
    worker.create()
    worker.answer(*tool_chunks("a"))
    worker.ack()
    worker.result(0, result_of("z"))
    assert "the result answers 'z', block 0 is 'a'" in left(worker)


def test_a_call_that_ends_before_its_inputs() -> None:
    late = CallInput(2, {"type": "note", "data": {}})
    worker = Worker(turn(Call(inputs=(late,)), Message("m")))
    worker.create()
    worker.answer(STOP)
    assert left(worker).endswith(
        "the call ended after 1 chunks, recorded was an input after 2"
    )


def test_a_detail_that_no_terminal_takes() -> None:
    worker = calling()
    worker.chunks({"type": "\ud800"}, first=1)
    assert "\\ud800" in left(worker)
