"""One session at the hub: how it ends, and what it may ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nestling.driver import hub_session
from nestling.driver.director import CancelAt, KillAt, Recorded, Stops
from nestling.driver.exits import Exit
from nestling.driver.hub_session import State
from nestling.driver.instructions import (
    Abort,
    Done,
    Kill,
    Release,
    Tick,
)
from nestling.driver.watch import LEAVING
from nestling.session.jsontext import JsonObject, dumps, loads
from nestling.wire.messages import (
    Bye,
    Cancel,
    Close,
    Delegate,
    Events,
    Ready,
    Result,
    Tool,
    ToolResult,
)
from support.directors import Scripted
from support.hubs import Kit, Peer, check_killed, shown

# --- ending --------------------------------------------------------------------


def ended(peer: Peer) -> None:
    peer.begin()
    peer.message("done")
    peer.end()


def test_a_session_ends_by_itself() -> None:
    kit = Kit()
    peer = kit.peer()
    ended(peer)
    assert shown(peer.finish()) == ["Close"]
    settled = kit.director.settled["root"]
    assert (settled.ended_by, settled.diagnostic) == ("itself", None)
    assert (settled.outcome.stop_reason, settled.outcome.text) == ("completed", "done")
    assert kit.session(0).state is State.SETTLED
    assert not kit.has_ordered(Done()), "its process is there still"
    assert kit.exited("w0", Exit(0, None)) == [Release(0), Done()]
    assert kit.hub.waiting() == []


def test_a_worker_leaves_once_all_it_said_is_durable() -> None:
    kit = Kit(is_slow=True)
    peer = kit.peer()
    ended(peer)
    assert shown(peer.say(Result(0, len(peer.log)))) == []
    assert kit.hub.waiting() == [("/", "its last events to be durable")]
    assert "Close" in shown(kit.sync())
    assert kit.hub.waiting() == [("/", "its worker to say goodbye")]
    peer.say(Bye(0, "done"))
    assert kit.director.settled["root"].ended_by == "itself"


def test_a_goodbye_before_all_is_durable() -> None:
    kit = Kit(is_slow=True)
    peer = kit.peer()
    ended(peer)
    peer.finish()
    kit.is_slow = False
    assert "root" not in kit.director.settled
    check_killed(kit, "a goodbye from a session that is running")


def test_a_result_of_another_length() -> None:
    kit = Kit()
    peer = kit.peer()
    ended(peer)
    peer.say(Result(0, 1))
    check_killed(kit, "a result after 1 events, the log has 5")


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_second_result(is_slow: bool) -> None:
    kit = Kit()
    peer = kit.peer()
    ended(peer)
    kit.is_slow = is_slow
    if is_slow:
        peer.items(5, 1, {"type": "note", "data": 1})
    length = len(kit.session(0).log)
    peer.say(Result(0, length))
    peer.say(Result(0, length))
    kit.is_slow = False
    kit.sync()
    problem = "a second result" if is_slow else "a result from a session that is"
    check_killed(kit, problem)


@pytest.mark.parametrize("has_step", [False, True])
def test_a_result_inside_a_turn(has_step: bool) -> None:
    kit = Kit()
    peer = kit.peer()
    if has_step:
        peer.begin()
    else:
        peer.add({"type": "turn/start", "data": {"turn": 1}})
    peer.say(Result(0, len(peer.log)))
    assert Close(0) not in [said.message for said in kit.sent("w0")]
    check_killed(kit, "a result with turn 1 open")


def test_after_the_close_nothing_is_taken() -> None:
    kit = Kit()
    peer = kit.peer()
    ended(peer)
    peer.say(Result(0, len(peer.log)))
    assert kit.sent("w0")[-1].message == Close(0)
    peer.items(5, 1, {"type": "note", "data": 1})
    check_killed(kit, "events from a session that is finishing")


def test_after_the_goodbye_nothing_is_heard() -> None:
    kit = Kit()
    peer = kit.peer()
    ended(peer)
    peer.finish()
    for message in (Ready(0, 0), Events(0, 5, 1), Result(0, 5), Bye(0, "failed")):
        assert peer.say(message, b"[]") == []
    assert len(kit.session(0).log) == 5


def test_a_death_after_the_result_is_a_death() -> None:
    kit = Kit()
    peer = kit.peer()
    ended(peer)
    peer.say(Result(0, len(peer.log)))
    kit.exited("w0", Exit(4, None))
    settled = kit.director.settled["root"]
    assert (settled.ended_by, settled.outcome.stop_reason) == ("death", "error")
    assert settled.outcome.text == "done"
    assert settled.closing == []


@pytest.mark.parametrize("char", ["x", "é", "€", "😀"])
@pytest.mark.parametrize("start", ["", "."])
def test_a_long_goodbye_is_cut(char: str, start: str) -> None:
    kit = Kit()
    kit.peer().say(Bye(0, "failed"), (start + char * 100_000).encode())
    ((_, _, detail),) = kit.director.refused
    assert 4000 - len(char.encode()) < len(detail.encode()) <= 4000
    assert set(detail.removeprefix(start)) == {char}
    reason = kit.session(0).stop_reason
    assert reason == f"failed: {detail}"


@pytest.mark.parametrize("body", [b"\xff" * 3999, b"\xff" * 9000, b"x\xe2" * 2000])
def test_a_long_goodbye_of_bytes_that_are_no_text(body: bytes) -> None:
    kit = Kit()
    kit.peer().say(Bye(0, "failed"), body)
    ((_, _, detail),) = kit.director.refused
    assert 3990 < len(detail) <= 4000
    assert body.decode("utf-8", "backslashreplace").startswith(detail)


@pytest.mark.parametrize("reason", ["seed-refused", "loop-refused", "failed"])
def test_a_worker_that_gives_up(reason: str) -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    said = peer.say(Bye(0, reason), "because \u00e9".encode() + b"\xff")  # type: ignore[arg-type]  # every reason
    assert said == [Kill("w0")]
    assert kit.director.refused == [("root", reason, "because \u00e9\\xff")]
    kit.exited("w0", Exit(0, None))
    settled = kit.director.settled["root"]
    assert (settled.ended_by, settled.outcome.stop_reason) == ("director", "error")
    assert [event.type for event in settled.closing] == ["step/end", "turn/end"]


def test_a_worker_that_is_killed_where_it_was_told_to() -> None:
    director = Scripted()
    director.stops["root"] = Stops(kills=(KillAt(2),))
    kit = Kit(director, is_slow=True)
    peer = kit.peer()
    kit.sync()
    peer.begin()
    assert not kit.has_ordered(Kill("w0")), "not before it is durable"
    assert kit.sync()[-1] == Kill("w0")
    kit.exited("w0")
    kit.sync()
    assert director.settled["root"].diagnostic == "its worker ended (SIGKILL)"


@pytest.mark.parametrize("cause", [{"kind": "user"}, {}])
def test_a_turn_is_cancelled_once_where_it_was_told_to(cause: JsonObject) -> None:
    director = Scripted()
    director.stops["root"] = Stops(cancels=(CancelAt(2, cause),))
    kit = Kit(director)
    peer = kit.peer()
    assert shown(peer.begin()) == ["Persist", "Cancel", "Ack"]
    said = kit.sent("w0")[-2]
    assert (said.message, loads(said.body)) == (Cancel(0, None, None), cause)
    start = {"type": "turn/start", "data": {"turn": 1}}
    assert shown(peer.items(0, 1, start)) == [], "that was sent again"
    assert shown(peer.end()) == ["Persist", "Ack"]


def test_an_abort_ends_what_has_not_ended() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    assert kit.tell(Abort("enough")) == [Kill("w0")]
    assert kit.tell(Abort("enough")) == []
    kit.exited("w0")
    settled = kit.director.settled["root"]
    assert (settled.ended_by, settled.diagnostic) == ("abort", "enough (SIGKILL)")
    assert "turn/end" not in kit.director.seen["root"], "no worker said that"


# --- tools ---------------------------------------------------------------------


def test_a_recorded_result_is_served() -> None:
    director = Scripted()
    director.tools["c0"] = Recorded({"block": {"type": "tool-result"}})
    kit = Kit(director, is_slow=True)
    peer = kit.peer()
    peer.begin()
    peer.asks()
    assert shown(peer.tool()) == []
    kit.sync()
    said = [s for s in kit.sent("w0") if isinstance(s.message, ToolResult)]
    assert [s.message for s in said] == [ToolResult(0, 1, 1, 0)]
    assert loads(said[0].body) == {"block": {"type": "tool-result"}}


def test_a_tool_that_is_never_answered() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks()
    assert peer.tool() == []
    assert kit.hub.waiting() == [("/", "the result of tool bash")]


Ask = Callable[[Peer], object]
WRONG: list[tuple[Ask, str]] = [
    (lambda p: (p.tool(), p.tool()), "a second request of turn 1, step 1"),
    (lambda p: (p.delegate(), p.delegate()), "a second request of turn 1, step 1"),
    (lambda p: p.tool(turn=2), "a request of turn 2, step 1; the log is at 1, 1"),
    (lambda p: p.tool(step=9), "a request of turn 1, step 9; the log is at 1, 1"),
    (lambda p: p.delegate(turn=0), "a request of turn 0, step 1"),
    (lambda p: (p.end(), p.tool(turn=1, step=1)), "the log is at 0, 0"),
    (lambda p: (p.end(), p.tool(turn=0, step=0)), "the log is at 0, 0"),
    (lambda p: (p.end_step(), p.tool(turn=1, step=1)), "the log is at 1, 0"),
    # Not a tool call, not this one, none that has started, none that is durable.
    (lambda p: p.tool(block=2), 'hold no tool call "c2"'),
    (lambda p: p.tool(block=0, call_id="c1"), 'hold no tool call "c1"'),
    (lambda p: p.tool(block=9), 'hold no tool call "c9"'),
    (lambda p: p.tool(call_id=""), 'hold no tool call ""'),
    (lambda p: p.tool(length=3), 'first 3 events of the log hold no tool call "c0"'),
    (lambda p: p.delegate(block=2), 'hold no tool call "c2"'),
    (lambda p: p.delegate(call_id="c1"), 'hold no tool call "c1"'),
    (lambda p: p.delegate(length=0), "first 0 events of the log hold no tool call"),
    # A new step has none of the last one's calls, nor has a message that came later.
    (lambda p: (p.next_step(), p.tool()), 'hold no tool call "c0"'),
    (lambda p: (p.message("x"), p.tool()), 'hold no tool call "c0"'),
    # One delegation after the other, each with one name.
    (lambda p: p.delegate(n=1), "delegation 1 of block 0 before the one before it"),
    (lambda p: (p.delegate(), p.delegate(n=2)), "delegation 2 of block 0 before"),
    (lambda p: p.delegate(None, n=1), "delegation 1 of block None before"),
    (lambda p: (p.delegate(), p.delegate(block=1, n=1)), "delegation 1 of block 1"),
    (lambda p: p.delegate(key="k"), "names both a key and block 0, n 0"),
    (lambda p: p.delegate(None, key="k", n=1), "both a key and block None, n 1"),
    (lambda p: (p.delegate(None), p.delegate(None)), "a second request of turn 1"),
]


@pytest.mark.parametrize(("ask", "problem"), WRONG)
def test_a_request_of_another_place(ask: Ask, problem: str) -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks(2)
    ask(peer)
    check_killed(kit, problem)


def test_a_request_is_checked_before_its_log_is_durable() -> None:
    """When it comes: the step that it stands in may have ended until then."""
    kit = Kit(is_slow=True)
    peer = kit.peer()
    peer.begin()
    peer.asks()
    peer.delegate(block=3)
    assert kit.has_ordered(Kill("w0"))
    kit.sync()
    kit.is_slow = False
    check_killed(kit, 'hold no tool call "c3"')
    assert kit.director.delegations == []


def test_a_tool_call_that_has_not_started() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    asked = {"type": "tool-call", "id": "c0", "name": "bash", "arguments": "{}"}
    peer.message_of(asked)
    peer.tool()
    check_killed(kit, 'hold no tool call "c0"')


def test_a_message_that_replaces_another_changes_nothing() -> None:
    """It is what the model sees from now on, not what it said in this step."""
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.message("old")
    peer.asks()
    old = len(peer.log) - 3
    replaced = {"op": "replace", "start": old, "end": old}
    peer.message_of(
        {"type": "text", "text": "rewritten"},
        surfaceOp=replaced,
        sourceEventSeqs=[old],
    )
    peer.tool()
    assert kit.hub.waiting() == [("/", "the result of tool bash")]
    assert not kit.has_ordered(Kill("w0"))


def test_an_id_that_a_model_used_twice() -> None:
    """The second block's call has started once the second call of that id has."""
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    asked = {"type": "tool-call", "id": "c", "name": "bash", "arguments": "{}"}
    peer.message_of(asked, asked)
    call = {"callId": "c", "name": "bash", "arguments": "{}", **peer.place}
    peer.add({"type": "tool/call", "data": call})
    peer.tool(0, "c")
    assert not kit.has_ordered(Kill("w0"))
    peer.add({"type": "tool/call", "data": call})
    peer.tool(1, "c", length=4)
    check_killed(kit, 'first 4 events of the log hold no tool call "c"')


def test_code_may_delegate_in_a_turn_without_a_step() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.add({"type": "turn/start", "data": {"turn": 1}})
    peer.delegate(None)
    peer.delegate(None, n=1)
    peer.delegate(None, key="k")
    paths = [session.path for session in kit.hub.tree]
    assert paths == ["/", "/t1s0d0", "/t1s0d1", "/t1s0kk"]
    peer.add({"type": "turn/end", "data": {"turn": 1, "reason": {"kind": "blocked"}}})
    peer.delegate(None, turn=0, step=0)
    check_killed(kit, "a request of turn 0, step 0; the log is at 0, 0")


@pytest.mark.parametrize("ask", [Peer.stream, Peer.tool, Peer.delegate])
def test_a_request_made_from_events_that_are_not_there(
    ask: Callable[..., object],
) -> None:
    kit = Kit(is_slow=True)
    peer = kit.peer()
    peer.begin()
    peer.asks()
    ask(peer, length=6)
    kit.is_slow = False
    check_killed(kit, "a request made from 6 events, the log has 4")


def test_more_requests_than_any_worker_has_reason_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub_session, "MOST_WAITING", 3)
    kit = Kit(is_slow=True)
    peer = kit.peer()
    peer.begin()
    peer.asks(4)
    for block in range(3):
        peer.tool(block)
    assert not kit.has_ordered(Kill("w0"))
    peer.tool(3)
    kit.is_slow = False
    check_killed(kit, "more than 3 requests at once")


def test_many_requests_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_session, "MOST_WAITING", 1)
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks(4)
    for block in range(4):
        peer.tool(block)
    assert not kit.has_ordered(Kill("w0"))


def test_a_name_of_any_length_in_what_is_waited_for() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks()
    asked = {"callId": "c0", "name": "n" * 5000, "arguments": ""}
    peer.say(Tool(0, 1, 1, 0, len(peer.log)), dumps(asked))
    assert kit.hub.waiting() == [("/", f"the result of tool {'n' * 80}…")]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "a request is not readable"),
        (b"\xff", "a request is not readable"),
        (b"[" * 9000, "a request is not readable"),
        (b"[]", "a request is no object"),
        (b"null", "a request is no object"),
        (b"{}", "callId of a request must be a string"),
        (dumps({"callId": 1}), "callId of a request must be a string"),
        (dumps({"callId": "c"}), " of a request must be a string"),
    ],
)
def test_a_request_with_a_body_that_is_none(body: bytes, problem: str) -> None:
    for message in (Tool(0, 1, 1, 0, 2), Delegate(0, 1, 1, 0, 0, None, "fork", 2)):
        kit = Kit()
        peer = kit.peer()
        peer.begin()
        peer.say(message, body)
        check_killed(kit, problem)


def test_a_worker_that_does_not_end_after_its_goodbye() -> None:
    """It has some time, then it is ended; what its session came to stays."""
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.end()
    peer.finish()
    kit.seconds = LEAVING
    kit.tell(Tick())
    assert not kit.has_ordered(Kill("w0"))
    kit.seconds = LEAVING + 0.1
    for _ in range(2):
        kit.tell(Tick())
    assert kit.orders.count(Kill("w0")) == 1
    kit.exited("w0")
    assert kit.has_ordered(Done())
    assert kit.director.settled["root"].ended_by == "itself"
