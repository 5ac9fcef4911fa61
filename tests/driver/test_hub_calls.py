"""The hub and calls: durable before served, windows, what is out of order."""

from __future__ import annotations

from typing import Any

import pytest

from nestling.driver.instructions import (
    Durable,
    Kill,
    NotDurable,
    Persist,
    Send,
)
from nestling.session.jsontext import JsonObject, loads
from nestling.wire.messages import Ack, Cancel, Chunks, Credit, End, Fail
from support.directors import Scripted, saying
from support.hubs import Kit, Peer, check_killed, shown
from support.session_logs import delta, finish


def calling(*, is_slow: bool = False, **changes: Any) -> tuple[Kit, Peer]:
    kit = Kit(is_slow=is_slow)
    peer = kit.peer()
    peer.begin()
    peer.stream(**changes)
    return kit, peer


def header(provider: str, model: str) -> JsonObject:
    config = {"provider": provider, "model": model}
    return {"type": "request/header", "data": {"header": {"config": config}}}


# --- durable before served -----------------------------------------------------


def test_a_call_is_served_once_its_log_is_durable() -> None:
    kit = Kit(is_slow=True)
    peer = kit.peer()
    assert shown(kit.sync()) == ["Ack"]  # the header
    assert shown(peer.begin()) == ["Persist"]
    assert shown(peer.stream()) == []
    assert kit.director.calls == []
    orders = kit.sync()
    assert shown(orders) == ["Ack", "Chunks", "End"]
    assert Send("w0", Ack(0, 2), b"") in orders
    (call,) = kit.director.calls
    assert (call.session_id, call.number, call.turn, call.step) == ("root", 0, 1, 1)


def test_a_call_waits_for_the_last_of_its_events() -> None:
    kit = Kit(is_slow=True)
    peer = kit.peer()
    peer.begin()
    peer.message("hi")
    peer.stream()
    assert shown(kit.sync(1)) == ["Ack"]
    assert shown(kit.sync(1)) == ["Ack"]
    assert kit.session(0).durable == 2
    assert shown(kit.tell(Durable(0, 1))) == ["Ack"], "late news changes nothing"
    assert shown(kit.sync(1)) == ["Ack", "Chunks", "End"]


def test_a_call_whose_log_is_durable_is_served_at_once() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    assert shown(peer.stream()) == ["Chunks", "End"]
    chunks, end = (said for said in kit.sent("w0")[-2:])
    assert chunks.message == Chunks(0, 0, 0, 3)
    assert loads(chunks.body) == [delta("h"), delta("i"), finish()]
    assert end.message == End(0, 0, 3)


def test_a_disk_that_fails() -> None:
    kit, _ = calling(is_slow=True)
    kit.tell(NotDurable(0, "the disk is full"))
    assert kit.has_ordered(Kill("w0"))
    kit.sync()
    kit.exited("w0")
    assert kit.director.calls == []
    settled = kit.director.settled["root"]
    assert settled.ended_by == "death"
    assert settled.outcome.stop_reason == "error"
    assert settled.diagnostic == "the disk is full (SIGKILL)"
    assert shown(kit.orders)[-1] == "Done"


def test_a_disk_that_fails_after_the_worker_is_gone() -> None:
    kit, _ = calling(is_slow=True)
    kit.exited("w0")
    assert "root" not in kit.director.settled, "its closers are not durable yet"
    kit.tell(NotDurable(0, "the disk is full"))
    assert kit.director.settled["root"].diagnostic == "the disk is full"
    assert shown(kit.orders)[-1] == "Done"
    kit.tell(NotDurable(0, "an earlier write failed"))
    assert shown(kit.orders).count("Done") == 1


# --- how an answer ends --------------------------------------------------------


@pytest.mark.parametrize("chunks", [(), (delta("a"),), (delta("a"), delta("b"))])
def test_an_answer_that_is_cut(chunks: tuple[Any, ...]) -> None:
    director = Scripted()
    answer = saying(*chunks, cut={"kind": "user"})
    if not chunks:
        answer = answer._replace(chunks=type(answer.chunks)(()))
    director.answers["root"] = [answer]
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    expected = ["Chunks", "Cancel"] if chunks else ["Cancel"]
    assert shown(peer.stream()) == expected
    said = kit.sent("w0")[-1]
    assert said.message == Cancel(0, 0, len(chunks))
    assert loads(said.body) == {"kind": "user"}


def test_an_answer_that_fails() -> None:
    director = Scripted()
    failure = {"message": "m", "code": "c"}
    director.answers["root"] = [saying(delta("a"), failure=failure)]
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    assert shown(peer.stream()) == ["Chunks", "Fail"]
    said = kit.sent("w0")[-1]
    assert (said.message, loads(said.body)) == (Fail(0, 0, 1), failure)
    # The call is over for the hub, and the worker may try again.
    assert shown(peer.stream()) == ["Chunks", "End"]


def test_an_answer_that_hangs() -> None:
    director = Scripted()
    director.answers["root"] = [saying(delta("a"), hangs=True)]
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    assert shown(peer.stream()) == ["Chunks"]
    assert kit.hub.waiting() == [("/", "call 1")]
    peer.stream()
    check_killed(kit, "a second stream request while a call is open")


# --- windows -------------------------------------------------------------------


def test_one_byte_and_one_frame_at_a_time() -> None:
    kit, peer = calling(credit_bytes=1, credit_frames=1)
    then = [["Chunks"], ["Chunks", "End"], []]
    for number, expected in enumerate(then):
        said = kit.sent("w0")
        batch = next(s for s in reversed(said) if isinstance(s.message, Chunks))
        assert batch.message == Chunks(0, 0, number, 1)
        # The window went below zero by this message: all of it has to come back.
        assert shown(peer.say(Credit(0, 0, len(batch.body) - 1, 1))) == []
        assert shown(peer.say(Credit(0, 0, 1, 0))) == expected


def test_a_window_of_frames() -> None:
    director = Scripted()
    director.answers["root"] = [saying(*(delta("x" * 300_000) for _ in range(5)))]
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    # Each message holds one of these, and takes the whole window of bytes.
    assert shown(peer.stream(credit_frames=2)) == ["Chunks"]
    size = len(kit.sent("w0")[-1].body)
    assert shown(peer.say(Credit(0, 0, size, 0))) == ["Chunks"]
    assert shown(peer.say(Credit(0, 0, size, 0))) == []  # no frame is left
    assert shown(peer.say(Credit(0, 0, 0, 1))) == ["Chunks"]


def test_no_more_than_the_usual_window_is_granted() -> None:
    director = Scripted()
    director.answers["root"] = [saying(*(delta("x" * 300_000) for _ in range(5)))]
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    asked = peer.stream(credit_bytes=1 << 30, credit_frames=1 << 20)
    assert shown(asked) == ["Chunks"]
    assert kit.session(0).state.value == "running"


def test_many_small_chunks_travel_together() -> None:
    director = Scripted()
    director.answers["root"] = [saying(*(delta("x") for _ in range(1000)))]
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    assert shown(peer.stream()) == ["Chunks", "End"]
    assert kit.sent("w0")[-2].message == Chunks(0, 0, 0, 1000)


def test_credit_for_a_call_that_was_not_opened() -> None:
    for number, calls in ((0, 0), (1, 1), (7, 1)):
        kit = Kit()
        peer = kit.peer()
        peer.begin()
        for _ in range(calls):
            peer.stream()
        peer.say(Credit(0, number, 1, 1))
        check_killed(kit, f"credit for call {number}, which was not opened")


def test_credit_for_a_call_that_is_over() -> None:
    kit, peer = calling()
    peer.log_chunks(0, 0, 3)
    peer.stream()
    assert shown(peer.say(Credit(0, 0, 1 << 40, 1 << 40))) == []
    assert not kit.has_ordered(Kill("w0"))


@pytest.mark.parametrize("grant", [(1, 0), (0, 1), (1 << 50, 1 << 50)])
def test_more_credit_than_was_spent(grant: tuple[int, int]) -> None:
    director = Scripted()
    director.answers["root"] = [saying(delta("x"), hangs=True)]
    kit = Kit(director)
    peer = kit.peer()
    peer.begin()
    peer.stream()
    batch = kit.sent("w0")[-1]
    peer.say(Credit(0, 0, len(batch.body), 1))
    assert not kit.has_ordered(Kill("w0"))
    peer.say(Credit(0, 0, *grant))
    check_killed(kit, "credit for")


@pytest.mark.parametrize("name", ["credit_bytes", "credit_frames"])
def test_a_window_through_which_nothing_fits(name: str) -> None:
    changes: dict[str, Any] = {name: 0}
    kit, _ = calling(**changes)
    check_killed(kit, "a window of")


# --- requests that are not the log's -------------------------------------------


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"call": 1}, "call 1 was opened, expected 0"),
        ({"digest": b"\0" * 32}, "is not the one the log leads to"),
        ({"length": 1}, "was made from 1 events, the log has 3"),
        ({"turn": 2}, "of turn 2, step 1; the log is at 1, 1"),
        ({"step": 0}, "of turn 1, step 0; the log is at 1, 1"),
        ({"provider": "q"}, "call 0 names q/m, the log says p/m"),
        ({"model": "n"}, "call 0 names p/n, the log says p/m"),
        ({"provider": "p/m", "model": ""}, "call 0 names p/m/, the log says p/m"),
    ],
)
def test_a_request_that_does_not_fit(
    changes: dict[str, Any], problem: str, is_slow: bool
) -> None:
    kit = Kit(is_slow=is_slow)
    peer = kit.peer()
    peer.begin()
    peer.add(header("p", "m"))
    peer.stream(**{"length": 3, **changes})
    kit.sync()
    assert kit.director.calls == []
    kit.is_slow = False
    check_killed(kit, problem)


def test_a_second_request_while_the_first_waits_for_the_disk() -> None:
    kit, peer = calling(is_slow=True)
    peer.stream()
    kit.is_slow = False
    check_killed(kit, "a second stream request")
    assert kit.director.calls == []


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_request_for_more_than_was_uploaded(is_slow: bool) -> None:
    kit, _ = calling(is_slow=is_slow, length=3)
    kit.is_slow = False
    kit.sync()
    assert kit.director.calls == []
    check_killed(kit, "a request made from 3 events, the log has 2")


def test_a_call_goes_where_the_last_request_header_says() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.add(header("p", "m"), header("q", "n"))
    assert shown(peer.stream(provider="q", model="n")) == ["Chunks", "End"]
    peer.add(header("p", "m"))
    peer.stream(provider="q", model="n")
    check_killed(kit, "call 1 names q/n, the log says p/m")


def test_a_log_without_a_request_header_names_nobody() -> None:
    assert calling(provider="", model="")[0].director.calls
    kit, _ = calling(provider="p", model="m")
    check_killed(kit, "call 0 names p/m, the log says /")


def test_a_fork_calls_where_its_parent_did() -> None:
    kit = Kit()
    peer = kit.peer()
    peer.begin()
    peer.add(header("p", "m"))
    peer.end()
    peer.begin()
    peer.asks()
    peer.delegate(context="fork")
    child = kit.peer(1)
    child.begin()
    assert shown(child.stream(provider="p", model="m")) == ["Chunks", "End"]


def test_the_order_of_what_is_written() -> None:
    kit, peer = calling()
    peer.log_chunks(0, 0, 3)
    peer.message("hi")
    written = [o for o in kit.orders if isinstance(o, Persist)]
    assert [o.length for o in written] == [0, 2, 5, 6]
    assert [o.header is not None for o in written] == [True, False, False, False]
    events = [event for order in written for event in order.events]
    assert [event.seq for event in events] == list(range(6))
    # The hub says when a chunk was served; a worker cannot.
    assert [event.time for event in events] == [50, 50, 0, 0, 0, 50]
