"""A hub driven by hand, and workers that say what a test wants."""

from __future__ import annotations

from typing import Any, NamedTuple

from nestling.driver.exits import Exit
from nestling.driver.hub import Hub
from nestling.driver.hub_session import HubSession
from nestling.driver.instructions import (
    Durable,
    Exited,
    Flush,
    HubEvent,
    Instruction,
    Kill,
    Notice,
    Persist,
    Received,
    Release,
    Send,
)
from nestling.driver.tree import Now
from nestling.session.jsontext import Json, JsonObject, dumps
from nestling.session.log import SessionLog
from nestling.wire.chunk_sums import ChunkSums
from nestling.wire.messages import (
    PROTOCOL,
    Bye,
    Chunks,
    Context,
    Delegate,
    Events,
    Hello,
    Ready,
    Result,
    Stream,
    ToHub,
    Tool,
    ToWorker,
)
from support.directors import Scripted
from support.session_logs import call_block

GONE = Exit(None, "SIGKILL")


def shown(orders: list[Instruction]) -> list[str]:
    """Name instructions, and the messages in them."""
    return [
        type(o.message).__name__ if isinstance(o, Send) else type(o).__name__
        for o in orders
        if not isinstance(o, Notice | Flush | Release)
    ]


class Said(NamedTuple):
    """What a worker was sent."""

    message: ToWorker
    body: bytes


class Kit:
    """A hub, its clock, and what it ordered.

    Attributes:
        orders: every instruction so far.
        fresh: those of the last event.
        is_slow: the disk answers only when ``sync`` is called.
    """

    def __init__(
        self, director: Scripted | None = None, *, is_slow: bool = False
    ) -> None:
        self.director = Scripted() if director is None else director
        self.hub = Hub(self.director)
        self.orders: list[Instruction] = []
        self.fresh: list[Instruction] = []
        self.is_slow = is_slow
        self.seconds = 0.0
        self._unsynced: list[Durable] = []
        self._take(self.hub.start(self._now()))

    def _now(self) -> Now:
        return Now(self.seconds, int(self.seconds * 1000))

    def _take(self, orders: list[Instruction]) -> None:
        self.fresh = orders
        self.orders += orders
        for order in orders:
            if isinstance(order, Persist):
                self._unsynced.append(Durable(order.sid, order.length))
        if not self.is_slow:
            self.sync()

    def tell(self, event: HubEvent) -> list[Instruction]:
        """Tell the hub; return all that it ordered, the disk's answers included."""
        before = len(self.orders)
        self._take(self.hub.handle(event, self._now()))
        return self.orders[before:]

    def sync(self, count: int | None = None) -> list[Instruction]:
        """Let what was ordered to be written become durable, or the first `count`."""
        before = len(self.orders)
        due = self._unsynced[:count]
        self._unsynced = self._unsynced[len(due) :]
        for durable in due:
            self._take(self.hub.handle(durable, self._now()))
        return self.orders[before:]

    def exited(self, launch: str, exit: Exit = GONE) -> list[Instruction]:
        """Tell the hub that a process is gone."""
        return self.tell(Exited(launch, exit))

    def session(self, sid: int) -> HubSession:
        """Return what the hub knows of a session."""
        return self.hub.tree.of_sid(sid)

    def sent(self, launch: str) -> list[Said]:
        """Return all that a worker was sent."""
        return [
            Said(order.message, order.body)
            for order in self.orders
            if isinstance(order, Send) and order.launch == launch
        ]

    def has_ordered(self, order: Instruction) -> bool:
        """Whether the hub ordered that."""
        return order in self.orders

    def peer(self, sid: int = 0) -> Peer:
        """Return a worker of a session, that has said hello and is ready."""
        peer = Peer(self, sid)
        peer.start()
        return peer


class Peer:
    """One worker, which says what a test makes it say.

    Attributes:
        log: its own copy of its log.
    """

    def __init__(self, kit: Kit, sid: int) -> None:
        self.kit = kit
        self.sid = sid
        self.launch = kit.session(sid).launch
        self.log = SessionLog(kit.session(sid).log.events)
        self.calls = kit.session(sid).calls_started

    def say(self, message: ToHub, body: bytes = b"") -> list[Instruction]:
        """Say something to the hub."""
        return self.kit.tell(Received(self.launch, message, body))

    def start(self) -> None:
        """Say hello and be ready."""
        self.say(Hello(PROTOCOL, "test", 1))
        self.say(Ready(self.sid, self.kit.session(self.sid).given))

    def items(self, first: int, count: int, *items: Json) -> list[Instruction]:
        """Upload a batch as it is."""
        return self.say(Events(self.sid, first, count), dumps(list(items)))

    def add(self, *contents: JsonObject) -> list[Instruction]:
        """Log and upload events."""
        first = len(self.log)
        rows = []
        for content in contents:
            event = self.log.add(content, 50)
            rows.append({**event.content(), "time": event.time})
        return self.items(first, len(contents), *rows)

    def begin(self) -> list[Instruction]:
        """Start a turn and its first step."""
        turn = self.log.turns.last_turn + 1
        return self.add(
            {"type": "turn/start", "data": {"turn": turn}},
            {"type": "step/start", "data": {"turn": turn, "step": 1}},
        )

    def end(self, kind: str = "completed") -> list[Instruction]:
        """End the step and the turn."""
        turn, step = self.log.turns.turn, self.log.turns.step
        return self.add(
            {"type": "step/end", "data": {"turn": turn, "step": step}},
            {"type": "turn/end", "data": {"turn": turn, "reason": {"kind": kind}}},
        )

    def end_step(self) -> list[Instruction]:
        """End the step alone."""
        return self.add({"type": "step/end", "data": self.place})

    def next_step(self) -> list[Instruction]:
        """End the step and start the next."""
        place = self.place
        self.end_step()
        following = {**place, "step": place["step"] + 1}
        return self.add({"type": "step/start", "data": following})

    def message(self, text: str) -> list[Instruction]:
        """Log and upload an assistant message."""
        return self.message_of({"type": "text", "text": text})

    def asks(self, count: int = 1) -> list[Instruction]:
        """Log and upload a message of tool calls c0, c1 ..., and that they start."""
        ids = [f"c{number}" for number in range(count)]
        called = {"name": "bash", "arguments": "{}", **self.place}
        return self.add(
            self._message(*map(call_block, ids)),
            *({"type": "tool/call", "data": {**called, "callId": id_}} for id_ in ids),
        )

    def message_of(self, *blocks: JsonObject, **fields: Any) -> list[Instruction]:
        """Log and upload an assistant message of these blocks."""
        return self.add({**self._message(*blocks), **fields})

    def _message(self, *blocks: JsonObject) -> JsonObject:
        message = {
            "id": f"m{len(self.log)}",
            "role": "assistant",
            "content": list(blocks),
        }
        data = {**self.place, "message": message}
        return {"type": "assistant/message", "data": data, "surfaceOp": "append"}

    @property
    def place(self) -> JsonObject:
        """The open turn and step."""
        return {"turn": self.log.turns.turn or 0, "step": self.log.turns.step or 0}

    def stream(self, **changes: Any) -> list[Instruction]:
        """Open the next call."""
        fields: dict[str, Any] = {
            "sid": self.sid,
            "call": self.calls,
            "purpose": "turn",
            "provider": self.log.surface.route[0],
            "model": self.log.surface.route[1],
            **self.place,
            "digest": self.log.surface.request_digest(),
            "length": len(self.log),
            "credit_bytes": 1 << 18,
            "credit_frames": 64,
        }
        self.calls += 1
        return self.say(Stream(**{**fields, **changes}))

    def log_chunks(self, call: int, start: int, end: int) -> list[Instruction]:
        """Log chunks that were served and upload the reference."""
        first = len(self.log)
        session = self.kit.session(self.sid)
        assert session.call is not None
        reference = self.reference(call, start, end)
        for chunk in session.call.chunks.objects[start:end]:
            data = {**self.place, "chunk": chunk}
            self.log.add({"type": "assistant/chunk", "data": data}, 50)
        return self.items(first, end - start, reference)

    def reference(self, call: int, start: int, end: int) -> JsonObject:
        """The reference to chunks of a call, as a worker that got them writes it."""
        sums = ChunkSums()
        for said in self.kit.sent(self.launch):
            message = said.message
            if isinstance(message, Chunks) and message.call == call:
                sums.add(message.first + message.count, said.body)
        return {"call": call, "from": start, "to": end, "crc": sums.at(end)}

    def tool(
        self, block: int = 0, call_id: str | None = None, **more: Any
    ) -> list[Instruction]:
        """Ask for the result of a tool call."""
        call_id = f"c{block}" if call_id is None else call_id
        fields: dict[str, Any] = {
            "sid": self.sid,
            **self.place,
            "block": block,
            "length": len(self.log),
        }
        asked = {"callId": call_id, "name": "bash", "arguments": "{}"}
        return self.say(Tool(**{**fields, **more}), dumps(asked))

    def delegate(
        self,
        block: int | None = 0,
        context: Context = "spawn",
        prompt: str = "go",
        call_id: str | None = None,
        **more: Any,
    ) -> list[Instruction]:
        """Ask for a child."""
        by_code = "" if block is None else f"c{block}"
        call_id = by_code if call_id is None else call_id
        fields: dict[str, Any] = {
            "sid": self.sid,
            **self.place,
            "block": block,
            "n": 0,
            "key": None,
            "context": context,
            "length": len(self.log),
        }
        asked = {"callId": call_id, "prompt": prompt, "description": ""}
        return self.say(Delegate(**{**fields, **more}), dumps(asked))

    def finish_turn(self) -> list[Instruction]:
        """Say the result."""
        return self.say(Result(self.sid, len(self.log)))

    def finish(self) -> list[Instruction]:
        """Say the result, then goodbye."""
        said = self.finish_turn()
        return said + self.say(Bye(self.sid, "done"))


def check_killed(kit: Kit, problem: str, launch: str = "w0") -> None:
    """The worker was ended for a breach of the protocol, and it is recorded."""
    assert kit.has_ordered(Kill(launch))
    session = kit.hub.tree.of_launch(launch)
    assert session.stop_reason is not None
    assert session.stop_reason.startswith("protocol: ")
    assert problem in session.stop_reason
    kit.exited(launch)
    assert session.log.turns.turn is None
    assert kit.director.settled[session.id].ended_by == "death"
