"""One session at the hub: how it ends, and what it may ask for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nestling.driver.director import CancelAt, Recorded, Stops
from nestling.driver.exits import Exit
from nestling.driver.hub_session import State
from nestling.driver.instructions import (
    Abort,
    Done,
    Kill,
)
from nestling.session.jsontext import dumps, loads
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
    assert kit.exited("w0", Exit(0, None)) == [Done()]
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
    director.stops["root"] = Stops(kill_at=2)
    kit = Kit(director, is_slow=True)
    peer = kit.peer()
    kit.sync()
    peer.begin()
    assert not kit.has_ordered(Kill("w0")), "not before it is durable"
    assert kit.sync()[-1] == Kill("w0")
    kit.exited("w0")
    kit.sync()
    assert (
        director.settled["root"].diagnostic == "the recorded worker died here (SIGKILL)"
    )


def test_a_turn_is_cancelled_once_where_it_was_told_to() -> None:
    director = Scripted()
    director.stops["root"] = Stops(cancels=(CancelAt(2, {"kind": "user"}),))
    kit = Kit(director)
    peer = kit.peer()
    assert shown(peer.begin()) == ["Persist", "Cancel", "Ack"]
    said = kit.sent("w0")[-2]
    assert (said.message, loads(said.body)) == (
        Cancel(0, None, None),
        {"kind": "user"},
    )
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
    director.tools["c"] = Recorded({"block": {"type": "tool-result"}})
    kit = Kit(director, is_slow=True)
    peer = kit.peer()
    peer.begin()
    assert shown(peer.tool()) == []
    kit.sync()
    said = [s for s in kit.sent("w0") if isinstance(s.message, ToolResult)]
    assert [s.message for s in said] == [ToolResult(0, 1, 1, 0)]
    assert loads(said[0].body) == {"block": {"type": "tool-result"}}


def test_a_tool_that_is_never_answered() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    assert peer.tool() == []
    assert kit.hub.waiting() == [("/", "the result of tool bash")]


Ask = Callable[[Peer], object]
WRONG: list[tuple[Ask, str]] = [
    (lambda p: (p.tool(), p.tool()), "a second request of turn 1, step 1"),
    (lambda p: (p.delegate(), p.delegate()), "a second request of turn 1, step 1"),
    (lambda p: (p.tool(), p.delegate()), "a second request of turn 1, step 1"),
    (lambda p: p.tool(turn=2), "a request of turn 2, step 1; the log is at 1, 1"),
    (lambda p: p.tool(step=9), "a request of turn 1, step 9; the log is at 1, 1"),
    (lambda p: p.delegate(turn=0), "a request of turn 0, step 1"),
    (lambda p: (p.end(), p.tool(turn=1, step=1)), "the log is at None, None"),
]


@pytest.mark.parametrize(("ask", "problem"), WRONG)
def test_a_request_of_another_place(ask: Ask, problem: str) -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    ask(peer)
    check_killed(kit, problem)


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
