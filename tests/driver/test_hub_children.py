"""Children at the hub: who they become, what they inherit, who is none."""

from __future__ import annotations

import hashlib

import pytest

from nestling.driver.director import Limits, Recorded, Refused, Unanswered
from nestling.driver.instructions import (
    Abort,
    Kill,
    Launch,
    Persist,
)
from nestling.session.digest import seed_digest
from nestling.session.jsontext import JsonObject, loads
from nestling.session.writing import encode_rows
from nestling.wire.agent_reference import TAPE
from nestling.wire.codec import create_parts
from nestling.wire.messages import Create, Settled
from support.directors import Scripted
from support.hubs import Kit, Peer, shown

CHILD = "/t1s1b0"


def delegated(kit: Kit) -> tuple[Peer, Peer]:
    """A parent in its first step, and the child that it waits for."""
    peer = kit.peer()
    peer.begin()
    peer.asks()
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


# --- creating ------------------------------------------------------------------


def test_a_child_is_created_once_the_request_is_durable() -> None:
    kit = Kit(is_slow=True)
    peer = kit.peer()
    kit.sync()
    peer.begin()
    peer.asks()
    assert shown(kit.sync(1)) == ["Ack"]
    assert shown(peer.delegate()) == []
    # The child's header is on its way to disk before its worker starts.
    assert shown(kit.sync()) == ["Ack", "Persist", "Launch"]
    assert kit.has_ordered(Launch("w1", CHILD, TAPE))
    (delegation,) = kit.director.delegations
    assert (delegation.parent_id, delegation.path, delegation.depth) == (
        *("root", CHILD),
        1,
    )
    assert (delegation.prompt, delegation.seed_length) == ("go", 0)
    assert kit.hub.waiting() == [
        ("/", f"its child {CHILD}"),
        (CHILD, "its worker to start"),
    ]


def test_a_fork_inherits_the_completed_turns() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.message("noon")
    peer.end()
    peer.begin()
    peer.asks()
    peer.delegate(context="fork")
    log = kit.session(0).log
    session = kit.session(1)
    assert session.seed_length == 5
    assert [event.type for event in session.log.events] == [
        *("turn/start", "step/start", "assistant/message", "step/end", "turn/end"),
        "session/end-seed",
    ]
    assert session.header.seed_digest == seed_digest(log.events[:5])
    written = [o for o in kit.orders if isinstance(o, Persist) and o.sid == 1]
    assert [(o.length, len(o.events)) for o in written] == [(6, 6)]
    kit.peer(1)
    create = kit.sent("w1")[1]
    assert isinstance(create.message, Create)
    header, seed, _ = create_parts(create.message, create.body)
    assert loads(header)["seedLength"] == create.message.events == 5
    assert seed == encode_rows(log.events[:5])
    assert create.message.sha256 == hashlib.sha256(seed).digest()


def test_a_spawn_inherits_nothing() -> None:
    kit = Kit()
    peer = kit.peer()
    answer_turn(peer)
    peer.begin()
    peer.asks()
    peer.delegate(context="spawn")
    assert kit.director.delegations[0].seed_length == 0
    assert len(kit.session(1).log) == 0


def test_a_fork_of_a_first_turn_inherits_nothing() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks()
    peer.delegate(context="fork")
    assert len(kit.session(1).log) == 0
    fields = kit.session(1).header.fields
    assert "seedLength" not in fields
    assert "seedDigest" not in fields


def test_a_fork_of_a_fork_inherits_both() -> None:
    kit = Kit()
    peer = kit.peer()
    answer_turn(peer)
    peer.begin()
    peer.asks()
    peer.delegate(context="fork")
    child = kit.peer(1)
    answer_turn(child)
    child.begin()
    child.asks()
    child.delegate(context="fork")
    assert [kit.session(sid).seed_length for sid in range(3)] == [0, 5, 11]
    assert kit.session(2).path == "/t2s1b0/t3s1b0"
    assert kit.session(2).depth == 2


def answer_turn(peer: Peer) -> None:
    peer.begin()
    peer.message("x")
    peer.end()


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ({"block": 4}, "/t1s1b4"),
        ({"block": 4, "n": 2}, "/t1s1b4.2"),
        ({"block": None, "key": "a b"}, "/t1s1ka%20b"),
        ({"block": None, "n": 0}, "/t1s1d0"),
    ],
)
def test_where_a_child_sits(place: JsonObject, path: str) -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.asks(5)
    earlier = place.get("n", 0) if place["block"] is not None else 0
    for n in range(earlier):
        peer.delegate(**{**place, "n": n})
    peer.delegate(**place)
    sid = 1 + earlier
    assert kit.session(sid).path == path
    child = kit.peer(sid)
    answer(child)
    (said,) = (s for s in kit.sent("w0") if isinstance(s.message, Settled))
    message = said.message
    assert isinstance(message, Settled)
    asked = {"block": message.block, "n": message.n, "key": message.key}
    assert asked == {"block": None, "n": 0, "key": None, **place}


# --- not creating --------------------------------------------------------------


def decided(kit: Kit) -> JsonObject:
    peer = kit.peer()
    peer.begin()
    peer.asks()
    peer.delegate()
    assert len(list(kit.hub.tree)) == 1
    return told(kit)


def test_a_recorded_result_is_passed_on() -> None:
    director = Scripted()
    result = {"block": {"type": "tool-result", "content": []}}
    director.decisions[CHILD] = Recorded(result)
    assert decided(Kit(director)) == result["block"]


def test_a_refusal_is_a_result() -> None:
    director = Scripted()
    director.decisions[CHILD] = Refused("not today")
    block = decided(Kit(director))
    assert (block["isError"], block["toolCallId"]) == (True, "c0")
    assert texts(block) == ["Error: the delegation was refused: not today"]


def test_a_delegation_that_is_never_answered() -> None:
    director = Scripted()
    director.decisions[CHILD] = Unanswered()
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    peer.asks()
    assert peer.delegate() == []
    assert kit.hub.waiting() == [("/", f"its child {CHILD}")]


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_too_deep_is_refused_whatever_the_director_says(limit: int) -> None:
    kit = Kit(Scripted(Limits(max_depth=limit)))
    peer = kit.peer()
    for depth in range(limit):
        peer.begin()
        peer.asks()
        peer.delegate()
        peer = kit.peer(depth + 1)
    peer.begin()
    peer.asks()
    peer.delegate()
    assert len(list(kit.hub.tree)) == limit + 1
    block = told(kit, f"w{limit}")
    assert block["isError"] is True
    expected = f"depth {limit + 1} exceeds the limit of {limit}"
    assert texts(block) == [f"Error: the delegation was refused: {expected}"]
    assert not any(kit.has_ordered(Kill(f"w{n}")) for n in range(limit + 1))


def test_a_child_that_the_director_stops_at_once() -> None:
    director = Scripted()
    director.objections[f"{CHILD} created"] = "not this one"
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    peer.asks()
    peer.delegate()
    assert not kit.has_ordered(Launch("w1", CHILD, TAPE))
    block = told(kit)
    assert block["isError"] is True
    assert texts(block)[-1] == "Diagnostic: it was stopped: not this one"


def test_nothing_is_created_once_the_run_ends() -> None:
    kit = Kit(is_slow=True)
    peer = kit.peer()
    peer.begin()
    peer.asks()
    peer.delegate()
    kit.tell(Abort("enough"))
    kit.sync()
    assert kit.director.delegations == []
    assert len(list(kit.hub.tree)) == 1
