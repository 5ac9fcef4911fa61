"""Cancels, at the hub: of calls, of turns, of all below; and the ladder."""

from __future__ import annotations

from typing import Any

import pytest

from nestling.driver.director import Asked, Limits
from nestling.driver.exits import UNKILLABLE, Exit
from nestling.driver.hub_session import State
from nestling.driver.instructions import (
    Abandon,
    CancelCall,
    CancelTurn,
    Dismiss,
    Done,
    Dump,
    HangUp,
    Instruction,
    Kill,
    Prompted,
    Provided,
    Received,
    Send,
    Stopped,
    Terminate,
    Tick,
)
from nestling.session.jsontext import JsonObject, loads
from nestling.wire.messages import (
    Bye,
    Cancel,
    Credit,
    Fail,
    Prompt,
    Settled,
    ToolResult,
)
from support.directors import Scripted, saying
from support.hubs import Kit, Peer, shown
from support.session_logs import delta, finish

USER: JsonObject = {"kind": "user"}
CHILD = "/t1s1b0"


class Live(Scripted):
    """Every call is put to a provider."""

    def on_stream(self, call: Any) -> Any:
        super().on_stream(call)
        return Asked("m")


def cancel(kit: Kit, path: str = "/", cause: JsonObject = USER) -> bool | None:
    """Cancel a turn; return what was acknowledged."""
    acks: list[bool | None] = []
    kit.tell(CancelTurn(path, cause, acks.append))
    (ack,) = acks
    return ack


def cancels(orders: list[Instruction]) -> list[tuple[str, Cancel, JsonObject]]:
    return [
        (o.launch, o.message, loads(o.body))
        for o in orders
        if isinstance(o, Send) and isinstance(o.message, Cancel)
    ]


def told(kit: Kit, launch: str = "w0") -> list[tuple[Cancel, JsonObject]]:
    found = cancels(kit.orders)
    return [(message, cause) for to, message, cause in found if to == launch]


def prompted(kit: Kit) -> Peer:
    """A live root that is told something."""
    kit.tell(Prompted([{"type": "text", "text": "go"}]))
    return kit.peer()


# --- turns -----------------------------------------------------------------------------


def test_a_turn_between_two_calls() -> None:
    director = Scripted()
    director.is_open = True
    kit = Kit(director)
    peer = prompted(kit)
    peer.begin()
    assert cancel(kit) is True
    assert told(kit) == [(Cancel(0, None, None), USER)]
    peer.end("aborted")
    assert cancel(kit) is False, "it has ended"
    peer.finish_turn()
    assert cancel(kit) is False, "it waits"
    assert kit.director.idle[-1][2].stop_reason == "aborted"


def test_between_two_turns_what_it_was_told_is_dropped() -> None:
    """What it came to before is not what it was told to do last."""
    director = Scripted()
    director.is_open = True
    kit = Kit(director)
    peer = prompted(kit)
    kit.tell(Prompted([{"type": "text", "text": "and then"}]))
    peer.begin()
    peer.end()
    assert cancel(kit) is True
    assert cancel(kit) is False, "it was dropped already"
    peer.finish_turn()
    _, prompts, outcome = kit.director.idle[-1]
    assert (prompts, outcome.stop_reason) == (2, "aborted")
    kit.tell(Prompted([{"type": "text", "text": "go on"}]))
    peer.begin()
    peer.end()
    peer.finish_turn()
    assert kit.director.idle[-1][2].stop_reason == "completed"


def test_a_cancel_that_comes_too_late_for_a_turn_drops_what_follows() -> None:
    director = Scripted()
    director.is_open = True
    kit = Kit(director)
    peer = prompted(kit)
    kit.tell(Prompted([{"type": "text", "text": "and then"}]))
    peer.begin()
    assert cancel(kit) is True
    peer.end()  # it had completed by then
    peer.finish_turn()
    _, prompts, outcome = kit.director.idle[-1]
    assert (prompts, outcome.stop_reason) == (2, "aborted")


def test_a_second_cancel_changes_nothing() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    assert cancel(kit) is True
    assert cancel(kit, cause={"kind": "other"}) is True
    assert told(kit) == [(Cancel(0, None, None), USER)]


def broken(kit: Kit) -> None:
    """A worker that is ended, in the middle of its turn."""
    peer = kit.peer()
    peer.begin()
    peer.items(0, 1, "no event")


def closed(kit: Kit) -> None:
    """One that was told to leave, and has not yet."""
    peer = kit.peer()
    peer.begin()
    peer.end()
    peer.finish_turn()


def left(kit: Kit) -> None:
    """One that has said goodbye."""
    closed(kit)
    kit.tell(Received("w0", Bye(0, "done"), b""))


def gone(kit: Kit) -> None:
    """One whose process has ended, in the middle of its turn."""
    broken(kit)
    kit.exited("w0")


OVER = {
    State.STOPPING: broken,
    State.FINISHING: closed,
    State.SETTLED: left,
    State.REAPED: gone,
}


@pytest.mark.parametrize("state", OVER)
def test_a_session_that_is_over_is_not_cancelled(state: State) -> None:
    """E4: a no-op. One that is being ended does not get its time anew."""
    kit = Kit()
    OVER[state](kit)
    session = kit.session(0)
    assert session.state is state
    before, climb = len(kit.orders), session.climb
    kit.seconds = 3.0
    assert cancel(kit) is False
    assert cancel(kit) is False
    assert kit.orders[before:] == []
    assert session.cancelling is None
    assert session.climb is climb
    if state is State.STOPPING:
        assert ticked(kit, 5.0)[0] == Abandon("w0"), (
            "since it was killed, not since then"
        )


def test_one_that_was_told_nothing_is_not_cancelled() -> None:
    director = Scripted()
    director.is_open = True
    kit = Kit(director)
    kit.peer()
    assert kit.session(0).state is State.IDLE
    assert cancel(kit) is False
    assert told(kit) == []


def test_who_was_cancelled_is_left_alone_in_what_follows() -> None:
    """Neither is the next turn cut, nor does its worker climb for the last one."""
    director = Live()
    director.is_open = True
    kit = Kit(director)
    peer = prompted(kit)
    peer.begin()
    cancel(kit)
    peer.end("aborted")
    assert kit.session(0).cancelling is None
    assert ticked(kit, 9.0) == [], "though it has not said its result"
    peer.finish_turn()
    kit.tell(Prompted([{"type": "text", "text": "more"}]))
    assert ticked(kit, 18.0) == []
    peer.begin()
    peer.stream()
    assert len(kit.director.calls) == 1, "it is asked as any other"
    assert len(told(kit)) == 1
    assert cancel(kit) is True
    assert len(told(kit)) == 2, "a cancel of its own"


def test_there_is_something_to_cancel_below_one_that_is_over() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks(2)
    for block in range(2):
        peer.delegate(block)
        kit.peer(block + 1).begin()
    kit.exited("w2")
    peer.items(0, 1, "no event")
    states = [kit.session(sid).state for sid in range(3)]
    assert states == [State.STOPPING, State.RUNNING, State.REAPED]
    assert cancel(kit) is True


def test_no_session_at_that_path() -> None:
    assert cancel(Kit(), "/t9s9b9") is None


def test_a_call_that_is_served_is_cut_where_it_stands() -> None:
    """Also at zero credit: the worker takes what was sent, and stops there."""
    kit = Kit(Live())
    peer = kit.peer()
    peer.begin()
    peer.stream(credit_frames=1)
    kit.tell(Provided(0, 0, [delta("a"), delta("b")]))
    kit.tell(Provided(0, 0, [delta("c")]))
    session = kit.session(0)
    assert session.call is not None
    assert session.call.served == 2
    sent = kit.sent("w0")[-1]
    assert cancel(kit) is True
    assert Dismiss(0, 0) in kit.orders
    assert told(kit) == [(Cancel(0, 0, 2), USER)]
    orders = kit.tell(Provided(0, 0, [delta("d")]))
    assert orders == [], "what comes late is nobody's"
    room = Credit(0, 0, len(sent.body), 1)
    assert peer.say(room) == [], "nor is what there was no room for"


def test_a_call_of_a_cancelled_turn_is_not_cancelled_once_more() -> None:
    kit = Kit(Live())
    peer = kit.peer()
    peer.begin()
    peer.stream()
    cancel(kit)
    before = len(kit.orders)
    assert cancel_call(kit) is False
    assert kit.orders[before:] == []


def test_a_call_that_waits_for_the_disk_gets_nothing() -> None:
    kit = Kit(is_slow=True)
    peer = kit.peer()
    peer.begin()
    peer.stream()
    assert cancel(kit) is True
    assert told(kit) == []
    kit.sync()
    assert told(kit) == [(Cancel(0, 0, 0), USER)]
    assert kit.director.calls == [], "nobody was asked"


def test_a_call_that_was_asked_for_meanwhile_gets_nothing() -> None:
    """The worker had asked before it heard of the cancel."""
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    cancel(kit)
    peer.stream()
    assert told(kit) == [(Cancel(0, None, None), USER), (Cancel(0, 0, 0), USER)]
    assert kit.director.calls == []


def test_a_turn_that_the_hub_does_not_know_of_yet() -> None:
    """The prompt is on its way: the cancel follows the turn's first event."""
    kit = Kit()
    peer = kit.peer()
    assert cancel(kit) is True
    assert told(kit) == []
    peer.begin()
    assert told(kit) == [(Cancel(0, None, None), USER)]


def test_a_turn_that_has_come_and_gone_meanwhile() -> None:
    director = Scripted()
    director.is_open = True
    kit = Kit(director)
    peer = prompted(kit)
    assert cancel(kit) is True
    begin = {"type": "turn/start", "data": {"turn": 1}}
    end = {"type": "turn/end", "data": {"turn": 1, "reason": {"kind": "completed"}}}
    peer.add(begin, end)
    peer.finish_turn()
    kit.tell(Prompted([{"type": "text", "text": "more"}]))
    peer.begin()
    assert told(kit) == [], "it was not for this one"


def test_what_was_not_begun_is_dropped() -> None:
    director = Scripted()
    director.is_open = True
    kit = Kit(director)
    peer = prompted(kit)
    peer.begin()
    kit.tell(Prompted([{"type": "text", "text": "and then"}]))
    cancel(kit)
    peer.end("aborted")
    peer.finish_turn()
    prompts = [s for s in kit.sent("w0") if isinstance(s.message, Prompt)]
    assert len(prompts) == 1
    assert kit.session(0).state is State.IDLE
    assert kit.director.idle[-1][1] == 2, "both are done with"


def test_before_the_worker_is_there() -> None:
    director = Scripted()
    director.is_open = True
    kit = Kit(director)
    kit.tell(Prompted([{"type": "text", "text": "go"}]))
    assert cancel(kit) is True
    kit.peer()
    assert [s for s in kit.sent("w0") if isinstance(s.message, Prompt)] == []
    assert kit.director.idle[-1][1:] == (1, ("aborted", []))
    kit.tell(Prompted([{"type": "text", "text": "now"}]))
    assert isinstance(kit.sent("w0")[-1].message, Prompt), "it can be told more"


# --- what is below ---------------------------------------------------------------------


def test_all_below_are_told_at_once_and_why() -> None:
    """E2: the one that was asked for by its cause, those below by their parent."""
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks()
    peer.delegate()
    child = kit.peer(1)
    child.begin()
    child.asks()
    child.delegate()
    grandchild = kit.peer(2)
    grandchild.begin()
    assert cancel(kit) is True
    parent: JsonObject = {"kind": "parent"}
    assert told(kit, "w0")[0][1] == USER
    assert told(kit, "w1")[0][1] == told(kit, "w2")[0][1] == parent
    for each in (grandchild, child):
        each.end("aborted")
        each.finish()
    settled = [s.message for s in kit.sent("w0") if isinstance(s.message, Settled)]
    assert len(settled) == 1
    assert [kit.director.settled[p].outcome.stop_reason for p in (CHILD,)] == [
        "aborted"
    ]


def test_a_subtree_alone() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks(2)
    peer.delegate(0)
    peer.delegate(1)
    one, two = kit.peer(1), kit.peer(2)
    one.begin()
    two.begin()
    assert cancel(kit, CHILD) is True
    assert told(kit, "w1") == [(Cancel(1, None, None), USER)]
    assert told(kit, "w0") == told(kit, "w2") == []


def test_children_that_wait_to_start_never_begin() -> None:
    kit = Kit(Scripted(Limits(starting=1)))
    peer = kit.peer()
    peer.begin()
    peer.asks(2)
    peer.delegate(0)
    peer.delegate(1)
    cancel(kit)
    settled = kit.director.settled["/t1s1b1"]
    assert (settled.ended_by, settled.outcome.stop_reason) == ("cancel", "aborted")
    assert kit.has_ordered(Kill("w1")), "its process starts already"
    assert not kit.has_ordered(Kill("w2")), "it has none"


def test_what_is_asked_for_in_a_cancelled_turn_is_not_begun() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks(2)
    cancel(kit)
    assert shown(peer.tool(0)) == ["ToolResult"]
    assert shown(peer.delegate(1)) == ["Settled"]
    assert kit.director.delegations == []
    answers = [s for s in kit.sent("w0") if isinstance(s.message, ToolResult | Settled)]
    for each in answers:
        assert loads(each.body)["error"]["code"] == "ABORTED_BEFORE_DISPATCH"


# --- calls -----------------------------------------------------------------------------


def cancel_call(kit: Kit, path: str = "/") -> bool | None:
    acks: list[bool | None] = []
    kit.tell(CancelCall(path, acks.append))
    (ack,) = acks
    return ack


def test_a_call_fails_and_its_turn_goes_on() -> None:
    kit = Kit(Live())
    peer = kit.peer()
    peer.begin()
    assert cancel_call(kit) is False
    peer.stream()
    kit.tell(Provided(0, 0, [delta("a")]))
    assert cancel_call(kit) is True
    assert cancel_call(kit) is False
    assert cancel_call(kit, "/t9s9b9") is None
    fail = kit.sent("w0")[-1]
    assert fail.message == Fail(0, 0, 1)
    assert loads(fail.body)["code"] == "CANCELLED"
    assert told(kit) == []
    assert kit.session(0).climb is None


# --- a run -----------------------------------------------------------------------------


def test_a_run_that_is_stopped_ends_in_order() -> None:
    director = Scripted()
    director.is_open = True
    kit = Kit(director)
    peer = prompted(kit)
    peer.begin()
    kit.tell(Stopped(USER))
    assert told(kit) == [(Cancel(0, None, None), USER)]
    peer.end("aborted")
    assert shown(peer.finish()) == ["Close"]
    kit.exited("w0", Exit(0, None))
    assert kit.orders[-1] == Done()


@pytest.mark.parametrize("is_ready", [True, False])
def test_a_run_that_is_stopped_with_nothing_to_do(is_ready: bool) -> None:
    director = Scripted()
    director.is_open = True
    kit = Kit(director)
    if is_ready:
        kit.peer()
    kit.tell(Stopped(USER))
    if is_ready:
        assert kit.session(0).state is State.FINISHING
    else:
        assert kit.has_ordered(Kill("w0"))


# --- the ladder ------------------------------------------------------------------------


def ticked(kit: Kit, seconds: float) -> list[Instruction]:
    kit.seconds = seconds
    return [o for o in kit.tell(Tick()) if shown([o])]


def test_orders_are_told_apart() -> None:
    """Else the rungs below would all be one."""
    orders = [kind("w0") for kind in (HangUp, Terminate, Kill, Abandon, Dump)]
    assert all(orders.count(order) == 1 for order in orders)


def test_who_does_not_stop_is_ended_rung_by_rung() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    kit.seconds = 10.0
    cancel(kit)
    assert ticked(kit, 11.9) == []
    assert ticked(kit, 12.0) == [HangUp("w0")]
    assert ticked(kit, 13.9) == []
    assert ticked(kit, 14.0) == [Terminate("w0")]
    assert ticked(kit, 16.9) == []
    assert ticked(kit, 17.0) == [Kill("w0")]
    assert ticked(kit, 21.9) == []
    orders = ticked(kit, 22.0)
    assert orders[0] == Abandon("w0")
    assert orders[-1] == Done(), "nobody waits for it any more"
    settled = kit.director.settled["root"]
    assert (settled.ended_by, settled.outcome.stop_reason) == ("cancel", "aborted")
    assert settled.exit is not None
    assert settled.exit.cause == UNKILLABLE
    assert kit.session(0).log.turns.turn is None, "its turn is closed"
    assert ticked(kit, 99.0) == []


def test_who_stops_on_a_rung_climbs_no_further() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    cancel(kit)
    assert ticked(kit, 2.0) == [HangUp("w0")]
    kit.exited("w0", Exit(3, None))
    assert kit.orders[-1] == Done()
    assert ticked(kit, 99.0) == []
    settled = kit.director.settled["root"]
    assert (
        settled.diagnostic == "it was cancelled (user) and did not stop (exit code 3)"
    )
    reason = kit.session(0).log.events[-1].data["reason"]
    assert reason == {"kind": "interrupted"}


def test_an_end_that_comes_too_late_stops_no_climb() -> None:
    """What is being ended goes all the way, whatever it still says."""
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    cancel(kit)
    assert ticked(kit, 2.0) == [HangUp("w0")]
    peer.end("aborted")
    assert ticked(kit, 4.0) == [Terminate("w0")]


def test_who_ends_its_turn_in_time_is_left_alone() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    cancel(kit)
    peer.end("aborted")
    peer.finish()
    assert ticked(kit, 4.0) == []


def test_all_climb_at_the_same_time() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks(3)
    for block in range(3):
        peer.delegate(block)
        kit.peer(block + 1).begin()
    cancel(kit)
    assert ticked(kit, 2.0) == [HangUp(f"w{sid}") for sid in range(4)]
    assert ticked(kit, 4.0) == [Terminate(f"w{sid}") for sid in range(4)]


def test_a_kill_begins_higher_up_and_is_bounded_too() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.items(0, 1, "no event")
    assert kit.session(0).stop_reason is not None
    assert kit.has_ordered(Kill("w0"))
    assert ticked(kit, 4.9) == []
    orders = ticked(kit, 5.0)
    assert (orders[0], orders[-1]) == (Abandon("w0"), Done())


def test_a_tape_is_cut_like_a_live_call() -> None:
    director = Scripted()
    director.answers["root"] = [saying(delta("a"), finish(), hangs=True)]
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    peer.stream()
    assert cancel(kit) is True
    assert told(kit) == [(Cancel(0, 0, 2), USER)]
