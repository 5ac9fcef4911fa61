"""One session at the hub: how it starts, and what it may say when."""

from __future__ import annotations

import pytest

from nestling.driver.director import Limits
from nestling.driver.exits import Exit
from nestling.driver.hub_session import State
from nestling.driver.instructions import (
    Broken,
    Kill,
    Launch,
    Launched,
    NotLaunched,
    Persist,
    Received,
    Tick,
)
from nestling.session.jsontext import loads
from nestling.wire.agent_reference import TAPE
from nestling.wire.codec import create_parts
from nestling.wire.messages import (
    PROTOCOL,
    Beat,
    Bye,
    Create,
    Credit,
    Delegate,
    Events,
    Hello,
    Ready,
    Result,
    Stream,
    ToHub,
    Tool,
    Welcome,
)
from support.directors import Scripted
from support.hubs import Kit, check_killed, shown

HELLO = Hello(PROTOCOL, "test", 1)
STREAM = Stream(0, 0, "turn", "p", "m", 0, 0, bytes(32), 0, 1, 1)
DELEGATE = Delegate(0, 0, 0, 0, 0, None, "spawn", 0)
CREDIT, BEAT = Credit(0, 0, 1, 1), Beat(0, 5)


# --- starting ------------------------------------------------------------------


def test_a_session_is_written_down_before_its_worker_starts() -> None:
    kit = Kit(is_slow=True)
    assert shown(kit.orders) == ["Persist", "Launch"]
    first = kit.orders[0]
    assert isinstance(first, Persist)
    assert (first.sid, first.length, first.events) == (0, 0, ())
    assert first.header is not None
    assert first.header.id == "root"
    assert kit.has_ordered(Launch("w0", "/", TAPE))
    kit.tell(Launched("w0", 4711))
    assert kit.session(0).pid == 4711


def test_a_worker_is_sent_nothing_before_its_hello() -> None:
    kit = Kit()
    assert kit.sent("w0") == []
    kit.tell(Received("w0", HELLO, b""))
    welcome, create = kit.sent("w0")
    assert welcome.message == Welcome(PROTOCOL)
    assert isinstance(create.message, Create)
    header, seed, tape = create_parts(create.message, create.body)
    assert loads(header)["id"] == "root"
    assert (seed, tape, create.message.events) == (b"", b"[]", 0)


def test_another_protocol() -> None:
    kit = Kit()
    kit.tell(Received("w0", Hello(9, "test", 1), b""))
    assert kit.sent("w0") == []
    check_killed(kit, "it speaks protocol 9, expected 2")


def test_frames_that_are_no_message() -> None:
    kit = Kit()
    kit.tell(Broken("w0", "a header of 9 bytes"))
    check_killed(kit, "a header of 9 bytes")
    assert shown(kit.tell(Broken("w0", "again"))) == []


EARLY: list[tuple[ToHub, str]] = [
    (Ready(0, 0), "a ready from a session that is starting"),
    (Events(0, 0, 0), "events from a session that is starting"),
    (STREAM, "a stream request from a session that is starting"),
    (Tool(0, 0, 0, 0, 0), "a tool request from a session that is starting"),
    (DELEGATE, "a delegation from a session that is starting"),
    (Result(0, 0), "a result from a session that is starting"),
    (Bye(0, "done"), "a goodbye from a session that is starting"),
    (CREDIT, "credit for call 0, which was not opened"),
]


@pytest.mark.parametrize(("message", "problem"), EARLY)
def test_a_message_before_the_hello(message: ToHub, problem: str) -> None:
    kit = Kit()
    kit.tell(Received("w0", message, b"[]"))
    check_killed(kit, problem)
    assert kit.sent("w0") == []


@pytest.mark.parametrize(("message", "problem"), EARLY[1:])
def test_a_message_before_the_ready(message: ToHub, problem: str) -> None:
    kit = Kit()
    kit.tell(Received("w0", HELLO, b""))
    kit.tell(Received("w0", message, b"[]"))
    check_killed(kit, problem.replace("starting", "creating"))


def test_a_beat_may_come_at_any_time() -> None:
    kit = Kit()
    assert kit.tell(Received("w0", BEAT, b"")) == []


@pytest.mark.parametrize("message", [HELLO, Ready(0, 0), Bye(0, "done")])
def test_a_message_that_is_over(message: ToHub) -> None:
    kit = Kit()
    kit.peer().say(message)
    check_killed(kit, "from a session that is running")


@pytest.mark.parametrize(
    "message",
    [
        Ready(1, 0),
        Events(1, 0, 0),
        Tool(1, 0, 0, 0, 0),
        Result(1, 0),
        Bye(1, "done"),
        Beat(1, 0),
        Credit(1, 0, 0, 0),
    ],
)
def test_a_message_for_another_session(message: ToHub) -> None:
    kit = Kit()
    kit.peer().say(message, b"[]")
    check_killed(kit, "it spoke for session 1, not 0")


def test_a_seed_of_another_length() -> None:
    kit = Kit()
    kit.tell(Received("w0", HELLO, b""))
    kit.tell(Received("w0", Ready(0, 3), b""))
    check_killed(kit, "it took a seed of 3 events, expected 0")


# --- a worker that does not start ----------------------------------------------


def test_a_start_takes_too_long() -> None:
    kit = Kit(Scripted(Limits(start_timeout=2.0)))
    kit.seconds = 2.0
    assert kit.tell(Tick()) == []
    kit.tell(Received("w0", HELLO, b""))
    kit.seconds = 2.1
    assert kit.tell(Tick()) == [Kill("w0")]
    assert kit.tell(Tick()) == []
    kit.exited("w0", Exit(None, "SIGKILL", "Traceback: no module"))
    settled = kit.director.settled["root"]
    assert (settled.ended_by, settled.outcome.stop_reason) == ("death", "error")
    assert settled.diagnostic == (
        "its worker did not start within 2 s (SIGKILL: Traceback: no module)"
    )
    assert shown(kit.orders)[-1] == "Done"


def test_a_worker_that_has_started_may_take_its_time() -> None:
    kit = Kit(Scripted(Limits(start_timeout=2.0)))
    peer = kit.peer()
    kit.seconds = 1e6
    peer.say(Beat(0, 0))
    assert kit.tell(Tick()) == []


def test_a_worker_that_cannot_be_started() -> None:
    kit = Kit()
    kit.tell(NotLaunched("w0", "no such file"))
    settled = kit.director.settled["root"]
    assert settled.diagnostic == "its worker ended (not started: no such file)"
    assert settled.ended_by == "death"
    assert shown(kit.orders)[-1] == "Done"


@pytest.mark.parametrize(
    ("exit", "text"),
    [
        (Exit(0, None), "exit code 0"),
        (Exit(7, None, "boom"), "exit code 7: boom"),
        (Exit(None, "SIGTERM"), "SIGTERM"),
        (Exit(None, None), "not started"),
    ],
)
def test_an_exit_in_words(exit: Exit, text: str) -> None:
    assert str(exit) == text


def test_a_session_that_the_director_does_not_want() -> None:
    director = Scripted()
    director.objections["root created"] = "another tree"
    kit = Kit(director)
    assert shown(kit.orders) == ["Persist", "Done"]
    settled = director.settled["root"]
    assert settled.ended_by == "director"
    assert settled.diagnostic == "it was stopped: another tree"
    assert kit.session(0).state is State.REAPED
