"""So many workers start at once, the others wait their turn; some never get one."""

from __future__ import annotations

from typing import Any

import pytest

from nestling.driver.director import Limits
from nestling.driver.exits import Exit
from nestling.driver.hub_session import State
from nestling.driver.instructions import (
    Abort,
    Done,
    Kill,
    Launch,
    NotDurable,
    NotLaunched,
    Persist,
    Received,
    Tick,
)
from nestling.session.jsontext import loads
from nestling.wire.messages import PROTOCOL, Hello, Settled
from support.directors import Scripted
from support.hubs import Kit, Peer

TURN = "its turn to start"
NOT_STARTED = Exit(None, None)


def family(children: int, starting: int = 2, **limits: Any) -> tuple[Kit, Peer]:
    """A root that asked for so many children, and runs itself."""
    kit = Kit(Scripted(Limits(starting=starting, **limits)))
    peer = kit.peer()
    peer.begin()
    peer.asks(children)
    for block in range(children):
        peer.delegate(block)
    return kit, peer


def launched(kit: Kit) -> list[str]:
    return [order.launch for order in kit.orders if isinstance(order, Launch)]


def told(kit: Kit) -> dict[int | None, str]:
    """The last words of each result that the root was told of, by block."""
    return {
        said.message.block: loads(said.body)["block"]["content"][-1]["text"]
        for said in kit.sent("w0")
        if isinstance(said.message, Settled)
    }


def test_so_many_start_at_once() -> None:
    kit, _ = family(5)
    assert launched(kit) == ["w0", "w1", "w2"]
    assert kit.hub.waiting()[1:] == [
        *((f"/t1s1b{block}", "its worker to start") for block in (0, 1)),
        *((f"/t1s1b{block}", TURN) for block in (2, 3, 4)),
    ]
    # What they start with is on its way to disk all the same.
    written = [order.sid for order in kit.orders if isinstance(order, Persist)]
    assert written[-5:] == [1, 2, 3, 4, 5]


def test_the_next_starts_once_one_is_ready() -> None:
    kit, _ = family(5)
    kit.tell(Received("w2", Hello(PROTOCOL, "test", 1), b""))
    assert launched(kit) == ["w0", "w1", "w2"], "it has said hello, it is not ready"
    kit.peer(1)
    assert launched(kit) == ["w0", "w1", "w2", "w3"]
    kit.peer(3)
    kit.exited("w2")
    assert launched(kit) == [f"w{n}" for n in range(6)], "in the order of asking"


@pytest.mark.parametrize("starting", [1, 3])
def test_who_cannot_start_makes_room(starting: int) -> None:
    kit, _ = family(5, starting)
    for n in range(1, 6):
        assert launched(kit) == [f"w{k}" for k in range(min(n + starting, 6))]
        kit.tell(NotLaunched(f"w{n}", "no room"))
    why = "its worker ended (not started: no room) before its first event"
    assert told(kit) == dict.fromkeys(range(5), f"Diagnostic: {why}")
    assert not kit.has_ordered(Kill("w0"))


def test_who_is_not_wanted_takes_no_room() -> None:
    kit = Kit(Scripted(Limits(starting=1)))
    kit.director.objections["/t1s1b0 created"] = "another tree"
    peer = kit.peer()
    peer.begin()
    peer.asks(2)
    peer.delegate(0)
    peer.delegate(1)
    assert launched(kit) == ["w0", "w2"]
    assert kit.director.settled["/t1s1b0"].exit == Exit(None, None, "never started")


def test_waiting_for_a_turn_is_not_starting_slowly() -> None:
    kit, _ = family(3, starting=1, start_timeout=2.0)
    kit.seconds = 1.5
    kit.peer(1)
    kit.seconds = 3.0
    assert kit.tell(Tick()) == [], "the second began at 1.5, the third has not"
    kit.seconds = 3.6
    assert kit.tell(Tick()) == [Kill("w2")]
    assert launched(kit) == ["w0", "w1", "w2"], "its process is there still"
    assert not kit.hub.is_starting(), "nobody is, and that may last"
    kit.exited("w2")
    assert launched(kit)[-1] == "w3"


def test_whether_anybody_is_starting() -> None:
    kit = Kit()
    assert kit.hub.is_starting()
    peer = kit.peer()
    assert not kit.hub.is_starting()
    peer.begin()
    peer.asks()
    peer.delegate()
    assert kit.hub.is_starting()
    kit.exited("w1")
    assert not kit.hub.is_starting()


# --- sessions that never start -------------------------------------------------


def test_an_abort_ends_those_that_wait_without_a_process() -> None:
    kit, _ = family(4, starting=1)
    orders = kit.tell(Abort("enough"))
    assert [o for o in orders if isinstance(o, Kill)] == [Kill("w0"), Kill("w1")]
    assert launched(kit) == ["w0", "w1"]
    for block in (1, 2, 3):
        settled = kit.director.settled[f"/t1s1b{block}"]
        assert (settled.ended_by, settled.exit) == ("abort", NOT_STARTED)
        assert settled.diagnostic == "enough (not started)"
        assert kit.session(block + 1).state is State.REAPED
    kit.exited("w1")
    assert Done() not in kit.orders
    assert kit.exited("w0")[-1] == Done()
    assert launched(kit) == ["w0", "w1"]


def test_a_parent_that_dies_takes_those_that_wait_along() -> None:
    kit, _ = family(3, starting=1)
    orders = kit.exited("w0")
    assert [o for o in orders if isinstance(o, Kill)] == [Kill("w1")]
    for block in (1, 2):
        settled = kit.director.settled[f"/t1s1b{block}"]
        assert settled.ended_by == "abort"
        assert settled.diagnostic == "its parent / is gone (not started)"
    assert kit.exited("w1")[-1] == Done()
    assert launched(kit) == ["w0", "w1"]


def test_one_whose_log_cannot_be_written_is_not_started() -> None:
    kit, _ = family(3, starting=1)
    assert kit.tell(NotDurable(2, "the disk is full")) != []
    assert told(kit) == {
        1: "Diagnostic: the disk is full (not started) before its first event"
    }
    kit.peer(1)
    assert launched(kit) == ["w0", "w1", "w3"]
    assert not kit.has_ordered(Kill("w2"))


def test_a_fork_that_never_starts_leaves_what_it_inherited() -> None:
    kit = Kit(Scripted(Limits(starting=1)))
    peer = kit.peer()
    peer.begin()
    peer.message("noon")
    peer.end()
    peer.begin()
    peer.asks(2)
    peer.delegate(0)
    kit.is_slow = True
    peer.delegate(1, context="fork")
    kit.tell(Abort("enough"))
    assert "/t2s1b1" not in kit.director.settled, "its seed is not durable yet"
    kit.sync()
    assert kit.director.settled["/t2s1b1"].exit == NOT_STARTED
    assert kit.session(2).durable == len(kit.session(2).log) == 6


def test_a_root_that_waits_for_nobody_starts_at_once() -> None:
    kit = Kit(Scripted(Limits(starting=1)))
    assert launched(kit) == ["w0"]
    kit.tell(Abort("enough"))
    assert kit.has_ordered(Kill("w0"))
