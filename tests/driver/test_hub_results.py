"""Children at the hub: how they end, and what their parents are told of it."""

from __future__ import annotations

import pytest

from nestling.driver.director import Lost, Real
from nestling.driver.exits import Exit
from nestling.driver.instructions import (
    Abort,
    Done,
    Kill,
    NotDurable,
    NotLaunched,
    Send,
)
from nestling.session.jsontext import JsonObject, loads
from nestling.wire.messages import Cancel, Settled
from support.directors import Scripted
from support.hubs import Kit, Peer

CHILD = "/t1s1b0"


def delegated(kit: Kit) -> tuple[Peer, Peer]:
    """A parent in its first step, and the child that it waits for."""
    peer = kit.peer()
    peer.begin()
    peer.asks(2)
    peer.delegate()
    return peer, kit.peer(1)


def told(kit: Kit, launch: str = "w0") -> JsonObject:
    """What a parent was told of its only child: the tool-result block."""
    (said,) = (s for s in kit.sent(launch) if isinstance(s.message, Settled))
    block: JsonObject = loads(said.body)["block"]
    return block


def texts(block: JsonObject) -> list[str]:
    return [part["text"] for part in block["content"]]


def answer(peer: Peer, text: str = "done", kind: str = "completed") -> None:
    peer.begin()
    peer.message(text)
    peer.end(kind)
    peer.finish()


# --- what a parent is told -----------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "is_error"),
    [("completed", False), ("max-tokens", True), ("blocked", True), ("error", True)],
)
def test_a_child_that_ends_by_itself(kind: str, is_error: bool) -> None:
    kit = Kit()
    _, child = delegated(kit)
    answer(child, "noon", kind)
    block = told(kit)
    assert (block["isError"], texts(block)[-1]) == (is_error, "noon")
    assert kit.hub.waiting() == [("/", "its worker")]


def test_a_result_is_released_once_the_child_is_durable() -> None:
    kit = Kit()
    _, child = delegated(kit)
    kit.is_slow = True
    answer(child)
    assert not any(isinstance(s.message, Settled) for s in kit.sent("w0"))
    # Its goodbye came too early: it is not believed.
    assert kit.has_ordered(Kill("w1"))


def test_a_child_that_dies() -> None:
    kit = Kit()
    _, child = delegated(kit)
    child.begin()
    child.message("half")
    kit.exited("w1", Exit(None, "SIGSEGV", "core dumped"))
    block = told(kit)
    assert block["isError"] is True
    assert texts(block) == [
        "Error: the subagent ended with stop reason error",
        "half",
        "Diagnostic: its worker ended (SIGSEGV: core dumped) after event 2, assistant/message",
    ]


def test_a_child_that_dies_before_it_said_anything() -> None:
    for end in (Exit(0, None), Exit(1, None), Exit(None, "SIGKILL")):
        kit = Kit()
        delegated(kit)
        kit.exited("w1", end)
        block = told(kit)
        assert block["isError"] is True
        assert (
            texts(block)[-1]
            == f"Diagnostic: its worker ended ({end}) before its first event"
        )


def test_a_child_that_cannot_start() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks()
    peer.delegate()
    kit.tell(NotLaunched("w1", "too many processes"))
    assert texts(told(kit))[-1] == (
        "Diagnostic: its worker ended (not started: too many processes) before its first event"
    )


def test_a_child_whose_disk_fails() -> None:
    kit = Kit()
    _, child = delegated(kit)
    kit.is_slow = True
    child.begin()
    child.stream()
    kit.tell(NotDurable(1, "the disk is full"))
    kit.exited("w1")
    assert [call.session_id for call in kit.director.calls] == []
    block = told(kit)
    assert block["isError"] is True
    assert (
        texts(block)[-1]
        == "Diagnostic: the disk is full (SIGKILL) after event 1, step/start"
    )
    assert not kit.has_ordered(Kill("w0"))


def test_what_a_dead_child_said_is_durable_before_its_parent_is_told() -> None:
    kit = Kit()
    _, child = delegated(kit)
    child.begin()
    kit.is_slow = True
    kit.exited("w1")
    assert not any(isinstance(s.message, Settled) for s in kit.sent("w0"))
    kit.sync()
    assert told(kit)["isError"] is True


# --- trees that end ------------------------------------------------------------


def test_a_parent_that_dies_takes_its_children_along() -> None:
    kit = Kit()
    peer, child = delegated(kit)
    peer.delegate(block=1)
    other = kit.peer(2)
    answer(other, "in time")
    child.begin()
    child.asks()
    child.delegate()
    kit.peer(3)
    orders = kit.exited("w0")
    assert [o for o in orders if isinstance(o, Kill)] == [Kill("w1")]
    assert [o for o in kit.exited("w1") if isinstance(o, Kill)] == [Kill("w3")]
    assert Done() not in kit.orders
    kit.exited("w3")
    assert Done() not in kit.orders, "a process is left"
    kit.exited("w2", Exit(0, None))
    assert kit.orders[-1] == Done()
    settled = kit.director.settled
    assert [settled[s.id].ended_by for s in kit.hub.tree] == [
        *("death", "abort", "itself", "abort")
    ]
    assert settled[CHILD].diagnostic == "its parent / is gone (SIGKILL)"


def test_children_of_the_dead_may_close_their_turns() -> None:
    director = Scripted()
    director.lost["root"] = [Lost(is_orderly=True)]
    kit = Kit(director)
    peer, child = delegated(kit)
    peer.delegate(block=1)
    other = kit.peer(2)
    answer(other, "in time")
    child.begin()
    child.asks()
    child.delegate()
    last = kit.peer(3)
    orders = kit.exited("w0")
    cancels = [
        o for o in orders if isinstance(o, Send) and isinstance(o.message, Cancel)
    ]
    assert [(o.launch, loads(o.body)) for o in cancels] == [("w1", {"kind": "parent"})]
    last.begin()
    said = [each.message for each in kit.sent("w3")]
    assert Cancel(3, None, None) in said, "once it has a turn"
    last.end("aborted")
    last.finish()
    kit.exited("w3", Exit(0, None))
    child.end("aborted")
    child.finish()
    kit.exited("w1", Exit(0, None))
    assert Done() not in kit.orders, "a process is left"
    kit.exited("w2", Exit(0, None))
    assert kit.orders[-1] == Done()
    settled = kit.director.settled
    assert [settled[s.id].ended_by for s in kit.hub.tree] == [
        *("death", "itself", "itself", "itself")
    ]
    assert settled[CHILD].outcome.stop_reason == "aborted"


def test_a_session_that_the_director_stops_is_stopped_alone() -> None:
    """Its children finish what they were asked for, so that they can be judged."""
    kit = Kit()
    peer, child = delegated(kit)
    child.begin()
    child.asks()
    child.delegate()
    grandchild = kit.peer(2)
    grandchild.begin()
    kit.director.objections["root"] = "it differs"
    peer.message("more")
    assert kit.has_ordered(Kill("w0"))
    orders = kit.exited("w0")
    assert not any(isinstance(order, Kill) for order in orders)
    grandchild.message("deep")
    grandchild.end()
    grandchild.finish()
    assert len([s for s in kit.sent("w1") if isinstance(s.message, Settled)]) == 1
    child.message("done")
    child.end()
    child.finish()
    assert not any(isinstance(s.message, Settled) for s in kit.sent("w0"))
    kit.exited("w1", Exit(0, None))
    assert Done() not in kit.orders
    kit.exited("w2", Exit(0, None))
    assert kit.orders[-1] == Done()
    settled = kit.director.settled
    assert [settled[s.id].ended_by for s in kit.hub.tree] == [
        *("director", "itself", "itself")
    ]


def test_a_request_of_a_session_that_was_stopped_is_not_heard() -> None:
    kit = Kit(is_slow=True)
    peer = kit.peer()
    peer.begin()
    peer.asks(2)
    peer.delegate()
    peer.tool(1)
    kit.director.objections["root"] = "it differs"
    peer.message("more")
    kit.sync()
    assert kit.director.delegations == []
    assert [session.path for session in kit.hub.tree] == ["/"]


def test_an_abort_ends_the_children_of_a_stopped_session_too() -> None:
    kit = Kit()
    peer, child = delegated(kit)
    child.begin()
    kit.director.objections["root"] = "it differs"
    peer.message("more")
    kit.exited("w0")
    assert kit.tell(Abort("enough")) == [Kill("w1")]
    kit.exited("w1")
    assert kit.director.settled[CHILD].ended_by == "abort"
    assert kit.orders[-1] == Done()


def test_a_sibling_goes_on_when_a_child_is_ended() -> None:
    kit = Kit()
    peer, bad = delegated(kit)
    peer.delegate(block=1)
    good = kit.peer(2)
    bad.items(0, 1, 7)
    assert kit.has_ordered(Kill("w1"))
    kit.exited("w1")
    answer(good, "fine")
    said = [s for s in kit.sent("w0") if isinstance(s.message, Settled)]
    blocks = [loads(s.body)["block"] for s in said]
    assert [block["isError"] for block in blocks] == [True, False]
    assert not kit.has_ordered(Kill("w0"))


def test_a_real_child_is_what_the_director_calls_it() -> None:
    director = Scripted()
    director.decisions[CHILD] = Real(director.creation("chosen"))
    kit = Kit(director)
    delegated(kit)
    assert kit.session(1).id == "chosen"
    assert kit.session(1).path == CHILD
