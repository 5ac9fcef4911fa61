"""What counts as progress: that a run comes closer to its end, not that somebody talks.

A run that makes none for a while is ended, so a worker that merely talks must not
keep it alive, and one that is served must not look idle.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nestling.driver.director import Recorded
from nestling.driver.exits import Exit
from nestling.driver.instructions import Durable, Launched, Received, Tick
from nestling.session.jsontext import JsonObject
from nestling.wire.messages import PROTOCOL, Beat, Credit, Events, Hello, Ready
from support.directors import Scripted, saying
from support.hubs import Kit, Peer
from support.session_logs import delta, finish

NOTE: JsonObject = {"type": "note", "data": 1, "time": 50}


def made(kit: Kit, act: Callable[[], object]) -> int:
    """How much progress something makes, the disk's answers left out."""
    kit.is_slow = True
    before = kit.hub.tree.progress
    act()
    return kit.hub.tree.progress - before


def asking() -> tuple[Kit, Peer]:
    """A worker in its first step, with two tool calls, whose log is durable."""
    kit = Kit(Scripted())
    kit.director.tools["c0"] = Recorded({"block": {"type": "tool-result"}})
    peer = kit.peer()
    peer.begin()
    peer.asks(3)
    return kit, peer


IDLE: dict[str, Callable[[Kit, Peer], object]] = {
    "a beat": lambda _, peer: peer.say(Beat(0, 5)),
    "a tick": lambda kit, _: kit.tell(Tick()),
    "news of its process": lambda kit, _: kit.tell(Launched("w0", 7)),
    "events beyond a gap": lambda _, peer: peer.items(99, 1, NOTE),
    "events again": lambda _, peer: peer.items(
        0, 1, {"type": "turn/start", "data": {"turn": 1}, "time": 50}
    ),
    "no events": lambda _, peer: peer.say(Events(0, 5, 0), b"[]"),
    "a tool that is answered": lambda _, peer: peer.tool(0),
    "a tool that is not": lambda _, peer: peer.tool(1),
}


@pytest.mark.parametrize("what", IDLE)
def test_talk_is_no_progress(what: str) -> None:
    kit, peer = asking()
    for _ in range(1 if what.startswith("a tool") else 3):
        assert made(kit, lambda: IDLE[what](kit, peer)) == 0
    assert kit.session(0).stop_reason is None


def test_a_request_that_waits_for_the_disk_is_no_progress() -> None:
    kit, peer = asking()
    assert made(kit, lambda: peer.items(6, 1, NOTE)) == 1
    assert made(kit, lambda: peer.stream(length=7)) == 0
    assert made(kit, lambda: peer.delegate(0, length=7)) == 0
    assert kit.session(0).stop_reason is None


def test_what_was_said_grows_by_as_many() -> None:
    kit, peer = asking()
    assert made(kit, lambda: peer.items(6, 3, NOTE, NOTE, NOTE)) == 3
    assert made(kit, kit.sync) == 1, "and it is on disk"


def test_what_is_served_is_progress() -> None:
    kit, peer = asking()
    kit.director.answers["root"] = [saying(delta("a"), delta("b"), finish())]
    # The call is opened, and one message of it sent.
    opened = made(kit, lambda: peer.stream(credit_bytes=1, credit_frames=9))
    assert opened == 2
    size = len(kit.sent("w0")[-1].body)
    assert made(kit, lambda: peer.say(Credit(0, 0, size - 1, 1))) == 0
    assert made(kit, lambda: peer.say(Credit(0, 0, 1, 0))) == 1


def test_starting_is_progress() -> None:
    kit = Kit()
    before = kit.hub.tree.progress
    assert before > 0, "its worker was launched"
    hello = Received("w0", Hello(PROTOCOL, "test", 1), b"")
    assert made(kit, lambda: kit.tell(hello)) == 1
    assert made(kit, lambda: kit.tell(Received("w0", Ready(0, 0), b""))) == 1


def test_a_child_is_progress() -> None:
    kit, peer = asking()
    assert made(kit, lambda: peer.delegate(0)) == 1
    assert made(kit, lambda: kit.tell(Durable(1, 0))) == 1


def test_ending_is_progress() -> None:
    kit, peer = asking()
    peer.end()
    assert made(kit, peer.finish) == 1, "it has settled"
    assert made(kit, lambda: kit.exited("w0", Exit(0, None))) == 1, "it is reaped"
