"""Answers that are served in time, and gates, in the hub's core."""

from __future__ import annotations

from nestling.driver.director import Answer, Pace
from nestling.driver.instructions import Fed, Feed
from nestling.wire.messages import Chunks, End, Fail
from support.directors import Scripted, saying
from support.hubs import Kit, Peer, shown


def paced(answer: Answer, *gates: int) -> tuple[Kit, Peer]:
    director = Scripted()
    director.answers["root"] = [answer._replace(pace=Pace(1, (), gates))]
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    peer.stream()
    return kit, peer


def test_nothing_is_served_before_its_time() -> None:
    kit, _ = paced(saying())
    assert kit.has_ordered(Feed(0, "/", 0, 3, Pace(1)))
    assert not any(isinstance(said.message, Chunks) for said in kit.sent("w0"))
    assert shown(kit.tell(Fed(0, 0, 2))) == ["Chunks"]
    assert kit.sent("w0")[-1].message == Chunks(0, 0, 0, 2)
    assert shown(kit.tell(Fed(0, 0, 3))) == ["Chunks"], "not its end"
    assert shown(kit.tell(Fed(0, 0, 4))) == ["End"]
    assert kit.sent("w0")[-1].message == End(0, 0, 3)


def test_how_it_ends_waits_for_its_time_too() -> None:
    kit, _ = paced(saying(failure={"message": "no", "code": "SERVER"}))
    assert shown(kit.tell(Fed(0, 0, 3))) == ["Chunks"]
    assert shown(kit.tell(Fed(0, 0, 4))) == ["Fail"]
    assert kit.sent("w0")[-1].message == Fail(0, 0, 3)


def test_a_gate_is_named_by_what_waits_for_it() -> None:
    kit, _ = paced(saying(), 2)
    kit.tell(Fed(0, 0, 2, gate=True))
    assert kit.hub.waiting() == [("/", "the gate at chunk 2 of call 1")]
    assert not kit.hub.is_pacing(), "it may stall"
    kit.tell(Fed(0, 0, 2))
    assert kit.hub.waiting() == [("/", "call 1")]
    assert kit.hub.is_pacing()
    kit.tell(Fed(0, 0, 4))
    assert not kit.hub.is_pacing()


def test_what_comes_too_late() -> None:
    """For a call that is over, or another one than is open."""
    kit, _ = paced(saying())
    assert shown(kit.tell(Fed(0, 1, 3))) == []
    kit.tell(Fed(0, 0, 4))
    assert shown(kit.tell(Fed(0, 0, 4))) == []
