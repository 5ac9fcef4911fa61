"""The hub's copy of a log: gaps, duplicates, references, and what is no event."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import pytest

from nestling.driver.instructions import Broken, Kill, Received
from nestling.session.jsontext import Json, JsonObject, dumps
from nestling.wire.messages import Credit, Events, Nack
from support.directors import Scripted, saying
from support.hubs import Kit, Peer, check_killed, shown
from support.session_logs import delta, finish


def note(text: str = "x", **more: Json) -> JsonObject:
    return {"type": "note", "data": text, "time": 50, **more}


@pytest.fixture
def kit() -> Kit:
    return Kit()


@pytest.fixture
def peer(kit: Kit) -> Peer:
    peer = kit.peer()
    peer.begin()
    return peer


@pytest.fixture
def called(kit: Kit, peer: Peer) -> Peer:
    """A worker that was served a call of three chunks, none of them logged."""
    kit.director.answers["root"] = [saying(*ANSWER), saying(*ANSWER)]
    peer.stream()
    return peer


def types(kit: Kit) -> list[str]:
    return [event.type for event in kit.session(0).log.events]


ANSWER = [delta("a"), delta("b"), finish()]
CRC = crc32(dumps(ANSWER))
"""All that is served travels in one message, so this is the sum of every reference."""


def ref(start: int, end: int, call: int = 0, crc: Json = CRC) -> JsonObject:
    return {"call": call, "from": start, "to": end, "crc": crc}


# --- gaps and duplicates -------------------------------------------------------


def test_a_gap_is_asked_for_and_filled(kit: Kit, peer: Peer) -> None:
    assert shown(peer.items(3, 1, note("late"))) == ["Nack"]
    assert kit.sent("w0")[-1].message == Nack(0, 2)
    assert types(kit) == ["turn/start", "step/start"]
    assert shown(peer.items(2, 2, note("first"), note("late"))) == ["Persist", "Ack"]
    events = kit.session(0).log.events
    assert [event.data for event in events[2:]] == ["first", "late"]
    assert [event.seq for event in events] == [0, 1, 2, 3]
    # The same events again, because they were asked for twice.
    assert shown(peer.items(2, 2, note("first"), note("late"))) == []
    assert not kit.has_ordered(Kill("w0"))


def test_a_gap_is_asked_for_once(kit: Kit, peer: Peer) -> None:
    assert shown(peer.items(3, 1, note("b"))) == ["Nack"]
    for first in (3, 4, 9):
        assert shown(peer.items(first, 1, note("later"))) == []
    assert shown(peer.items(2, 1, note("a"))) == ["Persist", "Ack"]
    # The next one is another gap, and so is the same place after it was filled.
    assert shown(peer.items(4, 1, note("c"))) == ["Nack"]
    assert kit.sent("w0")[-1].message == Nack(0, 3)
    assert shown(peer.items(2, 1, note("a"))) == [], "that was there"
    assert shown(peer.items(4, 1, note("c"))) == ["Nack"]


def test_a_request_waits_for_a_gap_and_for_nothing_else(kit: Kit, peer: Peer) -> None:
    peer.asks()
    peer.items(5, 1, note("beyond"))
    assert shown(peer.tool(length=6)) == []
    assert kit.hub.waiting() == [("/", "the result of tool bash")]
    peer.items(4, 2, note("filled"), note("beyond"))
    assert not kit.has_ordered(Kill("w0"))
    peer.tool(length=7)
    check_killed(kit, "a request made from 7 events, the log has 6")


def test_a_request_made_before_a_gap_is_filled_is_served_after_it(kit: Kit) -> None:
    peer = kit.peer()
    peer.log.add({"type": "turn/start", "data": {"turn": 1}}, 50)
    start = {"type": "turn/start", "data": {"turn": 1}, "time": 50}
    step = {"type": "step/start", "data": {"turn": 1, "step": 1}, "time": 50}
    peer.log.add({"type": "step/start", "data": {"turn": 1, "step": 1}}, 50)
    assert shown(peer.items(1, 1, step)) == ["Nack"]
    assert shown(peer.stream()) == []
    assert shown(peer.items(0, 2, start, step)) == ["Persist", "Ack", "Chunks", "End"]


@pytest.mark.parametrize(
    ("again", "is_equal"),
    [
        (note("x"), True),
        (note("x", time=99), True),
        (note("y"), False),
        ({**note("x"), "type": "memo"}, False),
        (note("x", ignorable=True), False),
    ],
)
def test_an_event_that_is_sent_again(
    kit: Kit, peer: Peer, again: JsonObject, is_equal: bool
) -> None:
    peer.items(2, 1, note("x"))
    before = dumps([event.row() for event in kit.session(0).log.events])
    peer.items(2, 1, again)
    if is_equal:
        assert not kit.has_ordered(Kill("w0"))
    else:
        assert dumps([e.row() for e in kit.session(0).log.events]) == before
        check_killed(kit, "event 2 was sent again with other contents")


def test_a_batch_that_is_old_and_new(kit: Kit, peer: Peer) -> None:
    peer.items(2, 1, note("a"))
    assert shown(peer.items(2, 2, note("a"), note("b"))) == ["Persist", "Ack"]
    assert [event.data for event in kit.session(0).log.events[2:]] == ["a", "b"]


def test_chunks_that_are_sent_again(kit: Kit, called: Peer) -> None:
    called.items(2, 2, ref(0, 2))
    assert shown(called.items(2, 2, ref(0, 2))) == []
    assert shown(called.items(2, 3, ref(0, 2), ref(2, 3))) == ["Persist", "Ack"]
    assert types(kit)[2:] == ["assistant/chunk"] * 3


def test_chunks_that_straddle_the_end(kit: Kit, called: Peer) -> None:
    called.items(2, 2, ref(0, 2))
    called.items(2, 3, ref(0, 3))
    check_killed(kit, "event 2 straddles the end of the log")


def test_a_reference_in_the_place_of_other_events(kit: Kit, called: Peer) -> None:
    called.items(0, 2, ref(0, 2))
    check_killed(kit, "event 0 was sent again with other contents")


def test_an_event_in_the_place_of_a_chunk(kit: Kit, called: Peer) -> None:
    called.items(2, 1, ref(0, 1))
    called.items(2, 1, note())
    check_killed(kit, "event 2 was sent again with other contents")


# --- references ----------------------------------------------------------------


def test_fewer_chunks_than_were_served(kit: Kit, called: Peer) -> None:
    called.items(2, 1, ref(0, 1))
    chunk = kit.session(0).log.events[2]
    assert chunk.data == {"turn": 1, "step": 1, "chunk": delta("a")}
    # The next call may be opened with the rest never logged.
    called.log.add({"type": "assistant/chunk", "data": chunk.data}, 50)
    assert shown(called.stream()) == ["Chunks", "End"]
    called.items(3, 1, ref(0, 1, call=1))
    assert types(kit)[2:] == ["assistant/chunk"] * 2
    assert not kit.has_ordered(Kill("w0"))


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ([ref(0, 4)], "chunks 0 to 4 were logged, 0 of 3 served"),
        ([ref(1, 2)], "chunks 1 to 2 were logged, 0 of 3 served"),
        ([ref(0, 1), ref(0, 1)], "chunks 0 to 1 were logged, 1 of 3 served"),
        ([ref(0, 1), ref(2, 3)], "chunks 2 to 3 were logged, 1 of 3 served"),
        ([ref(0, 1, call=1)], "refers to call 1, which is not the last"),
        ([ref(0, 1, call=-1)], 'event 2 refers to chunks as {"call":-1,"from":0'),
        ([ref(0, 0)], '"from":0,"to":0,'),
        ([ref(2, 1)], '"from":2,"to":1,'),
        ([ref(-1, 1)], 'event 2 refers to chunks as {"call":0,"from":-1,"to":1,'),
        ([{**ref(0, 1), "call": "0"}], 'refers to chunks as {"call":"0",'),
        ([{**ref(0, 1), "from": False}], '"from":false,'),
        ([{**ref(0, 1), "to": 1.0}], '"to":1.0,'),
        ([ref(0, 1, crc=-1)], '"crc":-1}'),
        ([ref(0, 1, crc="0")], '"crc":"0"}'),
        ([ref(0, 1, crc=None)], '"crc":null}'),
        ([{**ref(0, 1), "call": "x" * 10_000}], "xxx … xxx"),
        ([{**ref(0, 1), "more": 1}], "an event must have a type"),
        ([{"call": 0, "from": 0, "to": 1}], "an event must have a type"),
        ([ref(0, 1, crc=0)], "call 0: what arrived as chunks 0 to 1 is not what was"),
        (
            [ref(0, 3, crc=CRC ^ 1)],
            "what arrived as chunks 0 to 3 is not what was sent",
        ),
        ([ref(0, 2), ref(2, 3, crc=0)], "what arrived as chunks 2 to 3 is not what"),
        # The message was taken whole: a sum over some of its chunks is another one.
        ([ref(0, 1, crc=crc32(dumps(ANSWER[:1])))], "is not what was sent"),
    ],
)
def test_a_reference_that_is_wrong(
    kit: Kit, called: Peer, items: list[JsonObject], problem: str
) -> None:
    called.items(2, len(items), *items)
    check_killed(kit, problem)


def test_a_reference_before_any_call(kit: Kit, peer: Peer) -> None:
    peer.items(2, 1, ref(0, 1))
    check_killed(kit, "event 2 refers to call 0, which is not the last")


def test_a_reference_to_an_earlier_call(kit: Kit, called: Peer) -> None:
    called.stream()
    called.items(2, 1, ref(0, 1))
    check_killed(kit, "event 2 refers to call 0, which is not the last")


def test_chunks_that_are_not_served_yet(kit: Kit, peer: Peer) -> None:
    peer.stream(credit_bytes=1, credit_frames=1)
    peer.items(2, 2, ref(0, 2))
    check_killed(kit, "chunks 0 to 2 were logged, 0 of 1 served")


def test_the_sum_of_a_reference_goes_on_from_message_to_message(
    kit: Kit, peer: Peer
) -> None:
    kit.director.answers["root"] = [saying(*ANSWER)]
    peer.stream(credit_bytes=1, credit_frames=9)
    bodies = [dumps([chunk]) for chunk in ANSWER]
    for body in bodies:
        peer.say(Credit(0, 0, len(body), 1))
    peer.items(2, 2, ref(0, 2, crc=crc32(bodies[1], crc32(bodies[0]))))
    assert not kit.has_ordered(Kill("w0"))
    # The last chunk is right by itself, but not what came before it.
    peer.items(4, 1, ref(2, 3, crc=crc32(bodies[2])))
    check_killed(kit, "call 0: what arrived as chunks 2 to 3 is not what was sent")


# --- what is no batch ----------------------------------------------------------


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


DEEP = b"[" * 5000 + b"]" * 5000
BODIES: list[tuple[bytes, str]] = [
    (b"", "not readable"),
    (b"\xff", "not readable"),
    (b"[", "not readable"),
    (DEEP, "not readable"),
    (b'[{"type":"x","data":' + nested(201) + b"}]", "nested deeper than 200 levels"),
    (b"[" + nested(202) + b"]", "not readable"),
    (b"[{" + b'"a":{' * 300, "not readable"),
    (b'[{"type":"x","data":1e999}]', "not readable"),
    (b'[{"type":"x","data":NaN}]', "not readable"),
    (b'[{"type":"x","data":%d}]' % 10**30, "not readable"),
    (b"{}", "is no list"),
    (b"null", "is no list"),
    (b"[1]", "event 2 is no object"),
    (b"[null]", "event 2 is no object"),
    (b"[[]]", "event 2 is no object"),
    (b"[]", "a batch of 1 events holds 0 of them"),
    (b"[{}]", "an event must have a type"),
    (b'[{"type":1,"data":1}]', "an event must have a type"),
    (b'[{"type":"x"}]', "x has no data"),
    (b'[{"type":"x","data":1,"seq":7}]', "found seq 7, expected 2"),
    (b'[{"type":"x","data":1,"time":1.5}]', "time must be a safe integer"),
    (b'[{"type":"x","data":1,"surfaceOp":"append"}]', "must not have surface fields"),
    (b'[{"type":"x","data":1,"sourceEventSeqs":[true]}]', "sourceEventSeqs must be"),
    (b'[{"type":"turn/start","data":{}}]', "turn must be an integer"),
    (b'[{"type":"turn/end","data":{"turn":1}}]', "reason must be an object"),
    (b'[{"type":"assistant/chunk","data":{"turn":1,"step":1}}]', "a chunk must be"),
    (b'[{"type":"user/message","data":{}}]', "message id must be"),
    (b'[{"type":"tool/result","data":7}]', "must be an object"),
    (b'[{"type":"text-chunks"}]', "event 2"),
    (b'[{"type":"x","data":1},{"type":"x","data":1}]', "a batch of 1 events holds 2"),
]


@pytest.mark.parametrize(("body", "problem"), BODIES)
def test_a_body_that_is_no_batch(
    kit: Kit, peer: Peer, body: bytes, problem: str
) -> None:
    peer.say(Events(0, 2, 1), body)
    check_killed(kit, problem)


@pytest.mark.parametrize(("body", "_problem"), BODIES)
def test_last_words_that_are_none(
    kit: Kit, peer: Peer, body: bytes, _problem: str
) -> None:
    """A worker that is being ended may say what it likes."""
    kit.director.objections["root"] = "enough"
    peer.items(2, 1, note())
    assert kit.has_ordered(Kill("w0"))
    peer.say(Events(0, 3, 1), body)
    kit.exited("w0")
    assert kit.session(0).log.turns.turn is None
    assert kit.director.settled["root"].ended_by == "director"
    assert kit.director.settled["root"].diagnostic == "enough (SIGKILL)"


def test_the_sound_part_of_a_broken_batch_is_kept(kit: Kit, peer: Peer) -> None:
    peer.items(2, 3, note("a"), note("b"), {"type": "turn/start", "data": {}})
    check_killed(kit, "event 4: ")
    assert types(kit) == [
        *("turn/start", "step/start", "note", "note"),
        *("step/end", "turn/end"),
    ]
    assert kit.director.seen["root"][-1] == "note"
    settled = kit.director.settled["root"]
    assert [event.type for event in settled.closing] == ["step/end", "turn/end"]


def test_a_worker_that_was_ended_is_heard_out(kit: Kit, peer: Peer) -> None:
    """What it had sent before it was killed belongs to its log."""
    kit.director.objections["root"] = "enough"
    peer.items(2, 1, note("a"))
    peer.items(3, 1, note("b"))
    peer.items(9, 1, note("beyond a gap"))
    kit.exited("w0")
    assert types(kit)[2:4] == ["note", "note"]
    assert types(kit)[4:] == ["step/end", "turn/end"]


def test_the_sound_part_of_broken_last_words_is_shown(kit: Kit, peer: Peer) -> None:
    kit.tell(Broken("w0", "no message"))
    peer.items(2, 2, note(), {"type": "turn/start", "data": {}})
    assert kit.director.seen["root"][-1] == "note"
    kit.exited("w0")
    assert types(kit)[2:] == ["note", "step/end", "turn/end"]


def test_data_of_the_deepest_nesting(kit: Kit, peer: Peer) -> None:
    peer.say(Events(0, 2, 1), b'[{"type":"x","data":' + nested(200) + b"}]")
    assert dumps(kit.session(0).log.events[2].data) == nested(200)
    assert not kit.has_ordered(Kill("w0"))


def test_events_for_another_session_are_not_heard(kit: Kit, peer: Peer) -> None:
    peer.asks()
    peer.delegate()
    child = kit.peer(1)
    child.begin()
    kit.director.objections["/t1s1b0"] = "enough"
    child.items(2, 1, note("mine"))
    child.say(Events(0, 3, 1), dumps([note("the parent's")]))
    assert types(kit)[2:] == ["assistant/message", "tool/call"]
    assert [e.type for e in kit.session(1).log.events][2:] == ["note"]


@pytest.mark.parametrize("is_slow", [False, True])
def test_nothing_is_appended_to_a_closed_log(is_slow: bool) -> None:
    kit = Kit(Scripted(), is_slow=is_slow)
    peer = kit.peer()
    peer.begin()
    kit.exited("w0")
    length = len(kit.session(0).log)
    kit.tell(Received("w0", Events(0, length, 1), dumps([note()])))
    kit.tell(Received("w0", Events(0, 0, 1), dumps([note()])))
    kit.sync()
    assert types(kit) == ["turn/start", "step/start", "step/end", "turn/end"]


def test_what_a_worker_may_send_that_no_agent_would(kit: Kit, peer: Peer) -> None:
    """The log is the worker's to write; its rules are not about good sense."""
    sound: list[Callable[[], JsonObject]] = [
        lambda: note("\ud800"),
        lambda: {"type": "\udfff", "data": None, "time": -5},
        lambda: {"type": "session/end-seed", "data": {}},
    ]
    for number, make in enumerate(sound):
        peer.items(2 + number, 1, make())
    assert not kit.has_ordered(Kill("w0"))
    assert len(kit.session(0).log) == 5
