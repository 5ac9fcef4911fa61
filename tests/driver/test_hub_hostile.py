"""A worker that says anything, in any order: the hub never raises, nobody notices.

The hostile one is a child of a replayed tree. Whatever it says, its sibling replays
event for event, and the run comes to its end.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from compose.trees import finished, root_with_fact
from nestling.driver.director import Settlement
from nestling.driver.instructions import Received
from nestling.harness.compose import Tree, fork_call, spawn_call, text
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario
from nestling.harness.tape_runner import TapeRunner
from nestling.session.event import Event
from nestling.session.jsontext import Json, JsonObject, dumps
from nestling.session.log import SessionLog
from nestling.wire.messages import (
    Beat,
    Bye,
    Credit,
    Delegate,
    Events,
    Hello,
    Ready,
    Result,
    Stream,
    ToHub,
    Tool,
)
from support.directors import Scripted, saying
from support.hubs import Kit
from support.replays import contents, scenario_of

# Small numbers often fit, so that what is said gets further than the first check.
SMALL = st.integers(0, 4) | st.sampled_from([12, 2**53 - 1])
SIDS = st.sampled_from([1, 1, 1, 1, 1, 0, 2, 99])
NAMES = st.sampled_from(["", "p", "é"])
PLACES: dict[str, st.SearchStrategy[Any]] = {
    "sid": SIDS,
    "turn": st.sampled_from([0, 1, 1, 2]),
    "step": st.sampled_from([0, 1, 1, 2]),
    "length": SMALL,
}
CHUNK = st.sampled_from(
    [
        {"type": "text-delta", "index": 0, "text": "\ud800"},
        {"type": "finish", "reason": {"kind": "stop"}},
        {"type": "finish", "reason": {}},
        {},
    ]
)
BLOCK = {"type": "tool-call", "id": "c", "name": "subagent", "arguments": "{}"}
PLACE: JsonObject = {"turn": 1, "step": 1}
CALLED = {**PLACE, "callId": "c", "name": "subagent", "arguments": "{}"}
SAID = {**PLACE, "message": {"id": "m", "role": "assistant", "content": [BLOCK]}}
TURN: list[JsonObject] = [
    {"type": "turn/start", "data": {"turn": 1}},
    {"type": "step/start", "data": PLACE},
    {"type": "assistant/message", "data": SAID, "surfaceOp": "append"},
    {"type": "tool/call", "data": CALLED},
]


def request_digest() -> bytes:
    """The digest of the request that these events lead to."""
    log = SessionLog()
    for content in TURN:
        log.add(content, 0)
    return log.surface.request_digest()


DIGEST = request_digest()
SUM = crc32(b"[" + b",".join(saying().chunks.texts) + b"]")
DATA: st.SearchStrategy[Json] = st.one_of(
    st.builds(lambda turn: {"turn": turn}, SMALL),
    st.builds(lambda turn, step: {"turn": turn, "step": step}, SMALL, SMALL),
    st.builds(lambda c: {"turn": 1, "step": 1, "chunk": c}, CHUNK),
    st.just({"turn": 1, "reason": {"kind": "completed"}}),
    st.just({"turn": 1, "step": 1, "callId": "c", "name": "b", "arguments": ""}),
    st.just(
        {
            "turn": 1,
            "step": 1,
            "message": {"id": "m", "role": "assistant", "content": [BLOCK]},
        }
    ),
    st.just({"header": {"config": {"provider": "", "model": ""}}}),
    st.sampled_from([None, 1, [], "x", {"id": "", "role": "user", "content": [1]}]),
)
TYPES = st.sampled_from(
    [
        *("turn/start", "turn/end", "step/start", "step/end", "assistant/chunk"),
        *("assistant/message", "tool/call", "tool/result", "user/message"),
        *("request/header", "session/end-seed", "note", "text-chunks", "\udfff"),
    ]
)
ROW: st.SearchStrategy[Json] = st.one_of(
    st.builds(lambda kind, data: {"type": kind, "data": data}, TYPES, DATA),
    st.builds(
        lambda kind, data, op: {"type": kind, "data": data, "surfaceOp": op},
        TYPES,
        DATA,
        st.sampled_from(["append", "x", {"op": "replace", "start": 0, "end": 0}]),
    ),
    st.builds(
        lambda call, start, end, crc: {
            "call": call,
            "from": start,
            "to": end,
            "crc": crc,
        },
        *(SMALL, SMALL, SMALL),
        st.sampled_from([0, SUM, SUM]),
    ),
    st.sampled_from([None, 1, {}, [], {"type": 1}]),
)
BATCHES = st.lists(ROW, max_size=3)
BODIES = st.one_of(
    BATCHES.map(dumps),
    st.binary(max_size=12),
    st.sampled_from([b"[" * 3000, b"[]", b"{}", b"\xff"]),
    st.builds(
        lambda call_id, prompt: dumps(
            {
                "callId": call_id,
                "name": "n",
                "arguments": "",
                "prompt": prompt,
                "description": "",
            }
        ),
        st.sampled_from(["c", "c", ""]),
        st.sampled_from(["\ud800", "Same."]),
    ),
)
MESSAGES: st.SearchStrategy[ToHub] = st.one_of(
    st.builds(Hello, st.sampled_from([1, 1, 1, 2]), NAMES, SMALL),
    st.builds(Ready, SIDS, SMALL),
    st.builds(Events, SIDS, SMALL, SMALL),
    st.builds(
        Stream,
        call=st.sampled_from([0, 0, 1, 2]),
        purpose=st.sampled_from(["turn", "summary"]),
        provider=NAMES,
        model=NAMES,
        digest=st.sampled_from([DIGEST, DIGEST, bytes(32)]),
        credit_bytes=SMALL,
        credit_frames=SMALL,
        **PLACES,
    ),
    st.builds(Credit, SIDS, SMALL, SMALL, SMALL),
    st.builds(
        Delegate,
        block=st.none() | SMALL,
        n=SMALL,
        key=st.none() | NAMES,
        context=st.sampled_from(["fork", "spawn"]),
        **PLACES,
    ),
    st.builds(Tool, block=SMALL, **PLACES),
    st.builds(Result, SIDS, SMALL),
    st.builds(Beat, SIDS, SMALL),
    st.builds(
        Bye,
        SIDS,
        st.sampled_from(["done", "seed-refused", "loop-refused", "failed"]),
    ),
)
SPEECH = st.lists(st.tuples(MESSAGES, BODIES), max_size=25)


def started(speech: list[tuple[ToHub, bytes]]) -> list[tuple[ToHub, bytes]]:
    """Let the hostile one be polite for a while."""
    return [(Hello(1, "bad", 1), b""), (Ready(1, 0), b""), *speech]


def in_step(speech: list[tuple[ToHub, bytes]]) -> list[tuple[ToHub, bytes]]:
    """Let the hostile one get as far as its first step."""
    return started([(Events(1, 0, len(TURN)), dumps(TURN)), *speech])


SPEECHES = st.one_of(SPEECH, SPEECH.map(started), SPEECH.map(in_step))

# --- a tree with a good and a bad child ----------------------------------------


def composed() -> Scenario:
    root = root_with_fact()
    calls = root.says(
        text("Both."), spawn_call("bad", "Same."), fork_call("good", "Same.")
    )
    root.calls(*calls)
    children = [root.spawn(calls[0]), root.fork(calls[1])]
    for child in children:
        finished(child, f"I am {child.id}")
    for child in children:
        root.returns(child)
    root.end()
    return scenario_of(Tree(root))


SCENARIO = composed()
BAD, GOOD = "w1", "w2"


class Forgiving(ReplayDirector):
    """Tells a parent what was recorded, whatever became of its child.

    Else a parent whose child dies is stopped, because it was told of an error that was
    not recorded, and takes its other child along.
    """

    def on_settled(self, session_id: str, settlement: Settlement) -> JsonObject | None:
        told = super().on_settled(session_id, settlement)
        return told or self._result_for_parent(self.plan_of(session_id))


class Hijacked(TapeRunner):
    """The first child's worker is not ours: it says what it was given."""

    def __init__(
        self, director: ReplayDirector, speech: list[tuple[ToHub, bytes]]
    ) -> None:
        super().__init__(director)
        self.speech = speech

    def _launch(self, launch: str) -> None:
        super()._launch(launch)
        if launch == BAD:
            self._lines[f"from {launch}"].pop()  # its hello
            for message, body in self.speech:
                self._queue(f"from {launch}", Received(launch, message, body))

    def _deliver(self, send: Any) -> None:
        if send.launch != BAD:
            super()._deliver(send)


@settings(max_examples=150, deadline=None)
@given(SPEECHES)
def test_a_sibling_does_not_notice(speech: list[tuple[ToHub, bytes]]) -> None:
    director = Forgiving(SCENARIO)
    runner = Hijacked(director, speech)
    runner.run()
    good = SCENARIO.by_path["/t2s1b2"]
    account = director.ledger.accounts["/t2s1b2"]
    assert account.has_settled
    assert not account.is_different
    live = runner.logs()["/t2s1b2"]
    assert contents(live) == contents(good.recording.events)
    assert not [p for p in director.ledger.problems if p.path == "/t2s1b2"]
    assert runner.hub.waiting() == []
    for session in runner.hub.tree:
        assert session.log.turns.turn is None


@settings(max_examples=150, deadline=None)
@given(SPEECHES, st.booleans())
def test_the_hub_never_raises(speech: list[tuple[ToHub, bytes]], is_slow: bool) -> None:
    """With a director that believes everything, and a slow disk or a fast one."""
    kit = Kit(Scripted(), is_slow=is_slow)
    peer = kit.peer()
    kit.sync()
    peer.begin()
    peer.asks()
    kit.sync()
    peer.delegate()
    kit.sync()
    for message, body in speech:
        kit.tell(Received(BAD, message, body))
    kit.sync()
    for message, body in speech:
        kit.tell(Received(BAD, message, body))
    kit.is_slow = False
    kit.sync()
    check_contiguous(kit.session(1).log.events)
    paths = [session.path for session in kit.hub.tree]
    assert len(set(paths)) == len(paths), "each path has one session"
    assert kit.session(0).stop_reason is None, "its parent is none the worse"
    kit.exited("w0")
    for session in list(kit.hub.tree)[1:]:
        kit.exited(session.launch)
    assert kit.hub.waiting() == []
    written = [len(kit.session(n).log) for n in range(len(list(kit.hub.tree)))]
    assert written == [kit.session(n).durable for n in range(len(written))]


def check_contiguous(events: list[Event]) -> None:
    assert [event.seq for event in events] == list(range(len(events)))
