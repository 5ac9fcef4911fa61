"""Sessions at the hub that go on with another worker after the death of theirs."""

from __future__ import annotations

import pytest

from nestling.driver.director import (
    CancelAt,
    KillAt,
    Lost,
    Resume,
    Run,
    Stops,
    Unanswered,
)
from nestling.driver.exits import Exit
from nestling.driver.hub_session import State
from nestling.driver.instructions import (
    Abort,
    Broken,
    Done,
    Kill,
    Launch,
    Launched,
    NotDurable,
    Received,
    Release,
)
from nestling.session.jsontext import JsonObject, loads
from nestling.session.repair import OpenCall
from nestling.wire.codec import create_parts
from nestling.wire.messages import (
    Beat,
    Cancel,
    Create,
    Settled,
    ToolResult,
)
from support.directors import Scripted
from support.hubs import Kit, Peer, shown

CRASHED = Exit(None, "SIGSEGV")
GONE = Exit(None, "SIGKILL")


def resuming(*sessions: str, brief: bytes | None = None) -> Scripted:
    """A director that has each of these go on after its worker's first death."""
    director = Scripted()
    for session_id in sessions or ("root",):
        director.lost[session_id] = [Lost(resume=Resume(brief))]
    return director


def crashed(director: Scripted, *, is_slow: bool = False) -> tuple[Kit, Peer]:
    """A root whose worker died in a step."""
    kit = Kit(director, is_slow=is_slow)
    peer = kit.peer()
    peer.begin()
    kit.exited("w0", CRASHED)
    return kit, peer


def created(kit: Kit, launch: str) -> tuple[Create, bytes]:
    """What a worker was created with."""
    (said,) = (s for s in kit.sent(launch) if isinstance(s.message, Create))
    assert isinstance(said.message, Create)
    return said.message, said.body


def test_another_worker_is_given_the_whole_log() -> None:
    kit, _ = crashed(resuming(brief=b"other"))
    assert kit.has_ordered(Launch("w0.1", "/", "tape"))
    assert not any(isinstance(order, Release) for order in kit.orders)
    peer = kit.peer()
    assert peer.launch == "w0.1"
    message, body = created(kit, "w0.1")
    header, seed, brief = create_parts(message, body)
    assert (message.events, brief) == (4, b"other")
    assert "seedLength" not in loads(header)
    assert seed.count(b"\n") == 4
    peer.begin()
    peer.message("done")
    peer.end()
    peer.finish()
    kit.exited("w0.1", Exit(0, None))
    settled = kit.director.settled["root"]
    assert (settled.ended_by, settled.outcome.text) == ("itself", "done")
    assert settled.lost == (CRASHED,)
    assert settled.exit == Exit(0, None) or settled.exit is None
    assert kit.orders[-1] == Done()
    kinds = [event.type for event in kit.session(0).log.events]
    assert kinds[:4] == ["turn/start", "step/start", "step/end", "turn/end"]
    assert kit.director.seen["root"] == kinds, "what closed its turn, too"


def test_nothing_goes_on_before_its_closed_turn_is_durable() -> None:
    kit, _ = crashed(resuming(), is_slow=True)
    kit.sync(2)
    assert len(kit.session(0).log) == 4
    assert not kit.has_ordered(Launch("w0.1", "/", "tape"))
    kit.sync()
    assert kit.has_ordered(Launch("w0.1", "/", "tape"))


def test_what_is_not_resumed_settles() -> None:
    kit, _ = crashed(Scripted())
    (loss,) = kit.director.losses["root"]
    assert loss.exit == CRASHED
    assert kit.director.settled["root"].ended_by == "death"
    assert kit.has_ordered(Done())


def test_what_is_known_of_calls_is_what_closes_them() -> None:
    director = Scripted()
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    peer.asks(2)
    call = OpenCall("c1", "bash", 1, 1, 1, 4)
    block = {"type": "tool-result", "toolCallId": "c1", "content": [], "isError": False}
    director.lost["root"] = [Lost({call: {"block": block}})]
    kit.exited("w0")
    (loss,) = director.losses["root"]
    assert [(each.call_id, each.block) for each in loss.calls] == [("c0", 0), ("c1", 1)]
    results = [e.data for e in kit.session(0).log.events if e.type == "tool/result"]
    assert results[0]["error"]["code"] == "TOOL_OUTCOME_UNKNOWN"
    assert results[1]["message"]["content"] == [block]
    assert "error" not in results[1]


def test_an_earlier_worker_is_not_heard_any_more() -> None:
    kit, first = crashed(resuming())
    peer = kit.peer()
    before = len(kit.session(0).log)
    first.begin()
    kit.tell(Received("w0", Beat(0, 0), b""))
    kit.tell(Broken("w0", "noise"))
    kit.tell(Launched("w0", 77))
    kit.exited("w0")
    session = kit.session(0)
    assert (len(session.log), session.state) == (before, State.RUNNING)
    assert session.pid != 77
    peer.begin()
    assert len(session.log) == before + 2


def test_what_the_dead_had_asked_for_is_forgotten() -> None:
    """Though the place that it asked from becomes durable later."""
    kit = Kit(resuming(), is_slow=True)
    peer = kit.peer()
    kit.sync()
    peer.begin()
    peer.asks()
    peer.tool()
    peer.items(9, 1, {"type": "session/title", "data": {}})
    peer.stream(length=9)
    kit.exited("w0")
    kit.sync()
    assert kit.director.calls == []
    again = kit.peer()
    again.begin()
    again.stream()
    kit.sync()
    (call,) = kit.director.calls
    assert call.number == 0, "the other one was never opened"
    assert not any(isinstance(s.message, ToolResult) for s in kit.sent("w0.1"))


def test_calls_are_counted_over_all_workers() -> None:
    kit = Kit(resuming())
    peer = kit.peer()
    peer.begin()
    peer.stream()
    kit.exited("w0")
    again = kit.peer()
    message, _ = created(kit, "w0.1")
    assert message.calls == again.calls == 1
    again.begin()
    again.stream()
    assert [call.number for call in kit.director.calls] == [0, 1]


# --- with children ---------------------------------------------------------------


def with_child(director: Scripted, context: str = "spawn") -> tuple[Kit, Peer, Peer]:
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    peer.asks()
    peer.delegate(context=context)  # type: ignore[arg-type]
    return kit, peer, kit.peer(1)


def test_a_session_goes_on_when_nothing_below_it_lives() -> None:
    kit, _, child = with_child(resuming())
    child.begin()
    kit.exited("w0")
    assert kit.has_ordered(Kill("w1"))
    assert not kit.has_ordered(Launch("w0.1", "/", "tape"))
    assert kit.hub.waiting() == [
        ("/", "its children to end"),
        ("/t1s1b0", kit.session(1).waits_for),
    ]
    kit.exited("w1", GONE)
    assert kit.has_ordered(Launch("w0.1", "/", "tape"))
    assert kit.director.settled["/t1s1b0"].ended_by == "abort"
    kit.peer()
    assert not any(isinstance(s.message, Settled) for s in kit.sent("w0.1"))


def test_a_resumed_child_shares_its_log_with_no_sibling() -> None:
    """Though that inherits as many events of their parent."""
    kit = Kit(resuming("/t2s1b0"))
    peer = kit.peer()
    peer.begin()
    peer.end()
    peer.begin()
    peer.asks(2)
    peer.delegate(0)
    kit.peer(1).begin()
    kit.exited("w1")
    kit.peer(1)
    peer.delegate(1, "fork")
    kit.peer(2)
    resumed, fork = (create_parts(*created(kit, each))[1] for each in ("w1.1", "w2"))
    assert kit.session(1).given == kit.session(2).given == 4
    assert b"interrupted" in resumed
    assert b"interrupted" not in fork


def test_a_run_that_is_ended_resumes_nothing() -> None:
    kit, _, _ = with_child(resuming())
    kit.exited("w0")
    kit.tell(Abort("enough"))
    kit.exited("w1", GONE)
    assert not kit.has_ordered(Launch("w0.1", "/", "tape"))
    assert kit.director.settled["root"].ended_by == "abort"
    assert kit.orders[-1] == Done()


def test_a_child_of_the_dead_is_not_resumed() -> None:
    """It had died first, and waited for its own child to end."""
    kit, _, child = with_child(resuming("/t1s1b0"))
    child.begin()
    child.asks()
    child.delegate()
    kit.peer(2)
    kit.exited("w1")
    kit.exited("w0")
    kit.exited("w2", GONE)
    assert not kit.has_ordered(Launch("w1.1", "/t1s1b0", "tape"))
    assert kit.director.settled["/t1s1b0"].ended_by == "abort"
    assert kit.orders[-1] == Done()


def test_a_parent_hears_of_a_resumed_child_in_the_end() -> None:
    kit, _, child = with_child(resuming("/t1s1b0"), "fork")
    child.begin()
    kit.exited("w1")
    assert not any(isinstance(s.message, Settled) for s in kit.sent("w0"))
    child = kit.peer(1)
    child.begin()
    child.message("late")
    child.end()
    child.finish()
    (told,) = (s for s in kit.sent("w0") if isinstance(s.message, Settled))
    assert loads(told.body)["block"]["content"] == [{"type": "text", "text": "late"}]


def test_a_director_may_object_to_what_closed_the_turn() -> None:
    director = resuming()
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    director.objections["root"] = "no"
    kit.exited("w0")
    settled = director.settled["root"]
    assert (settled.ended_by, settled.diagnostic) == ("director", "it was stopped: no")
    assert kit.orders[-1] == Done()


def test_a_store_that_is_lost_meanwhile_ends_the_session() -> None:
    kit, _ = crashed(resuming(), is_slow=True)
    kit.tell(NotDurable(0, "the disk is full"))
    kit.sync()
    assert not kit.has_ordered(Launch("w0.1", "/", "tape"))
    assert kit.director.settled["root"].diagnostic == "the disk is full"
    assert kit.orders[-1] == Done()


# --- where it is killed ----------------------------------------------------------


def stopping(stops: Stops) -> Kit:
    director = resuming()
    director.stops["root"] = stops
    director.tools["c0"] = Run()
    return Kit(director, is_slow=True)


def test_what_a_worker_says_beyond_its_end_is_lost() -> None:
    kit = stopping(Stops(kills=(KillAt(3), KillAt(6))))
    peer = kit.peer()
    kit.sync()
    peer.begin()
    peer.asks()
    peer.tool()
    peer.stream(length=4)
    assert shown(kit.sync()) == ["Ack", "Ack", "Kill"]
    session = kit.session(0)
    assert (len(session.log), session.stop_reason) == (3, "its worker ended")
    assert kit.director.calls == []
    kit.exited("w0", GONE)
    kit.sync()
    assert session.log.events[3].data["error"]["code"] == "TOOL_NOT_STARTED"
    again = kit.peer()
    assert len(again.log) == 6
    again.begin()
    again.message("on")
    again.end()
    kit.sync()
    assert len(session.log) == 11, "that end had passed when it was resumed"


def test_chunks_beyond_the_end_are_lost() -> None:
    kit = stopping(Stops(kills=(KillAt(4),)))
    peer = kit.peer()
    kit.sync()
    peer.begin()
    peer.stream()
    kit.sync()
    peer.log_chunks(0, 0, 3)
    kit.sync()
    assert len(kit.session(0).log) == 4
    assert kit.has_ordered(Kill("w0"))


@pytest.mark.parametrize("is_kill", [True, False])
def test_a_stop_waits_for_children(is_kill: bool) -> None:
    """And comes before the parent is told of them."""
    director = Scripted()
    cause: JsonObject = {"kind": "user"}
    director.stops["root"] = (
        Stops(kills=(KillAt(4, 1),)) if is_kill else Stops((CancelAt(4, cause, 1),))
    )
    director.tools["c0"] = Unanswered()
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    peer.asks()
    peer.tool()
    peer.delegate()
    child = kit.peer(1)
    child.begin()
    child.end()
    sent = len(kit.sent("w0"))
    assert not any(isinstance(s.message, Cancel) for s in kit.sent("w0"))
    assert not kit.has_ordered(Kill("w0"))
    child.finish()
    later = [type(s.message) for s in kit.sent("w0")[sent:]]
    assert kit.has_ordered(Kill("w0")) == is_kill
    assert later == ([] if is_kill else [Cancel, ToolResult, Settled])


def test_a_request_of_a_cancelled_turn_is_answered_at_once() -> None:
    director = Scripted()
    director.stops["root"] = Stops((CancelAt(4, {"kind": "user"}),))
    director.decisions["/t1s1b0"] = Unanswered()
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    peer.asks()
    peer.delegate()
    (told,) = (s for s in kit.sent("w0") if isinstance(s.message, Settled))
    assert loads(told.body)["error"]["code"] == "ABORTED"
