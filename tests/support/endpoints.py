"""A worker's endpoint with a tape, and a hub that says what a test wants."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

from nestling.session.event import Event
from nestling.session.jsontext import Json, JsonObject, dumps, loads
from nestling.session.writing import encode_rows
from nestling.wire.agent_reference import TAPE
from nestling.wire.messages import (
    Ack,
    Cancel,
    Chunks,
    Create,
    End,
    Events,
    Message,
    Settled,
    ToHub,
    ToolResult,
    ToWorker,
    Welcome,
)
from nestling.worker.agents import pilot_for
from nestling.worker.endpoint import Endpoint
from nestling.worker.tape import (
    Call,
    Item,
    StepEnd,
    StepStart,
    TurnEnd,
    TurnStart,
    encode_tape,
)

SID = 3
M = TypeVar("M", bound=Message)


def turn(*items: Item, number: int = 1) -> list[Item]:
    """The tape of a turn of one step."""
    start: list[Item] = [TurnStart(number), StepStart(number, 1)]
    return [*start, *items, StepEnd(), TurnEnd()]


def one_call(*items: Item) -> list[Item]:
    """The tape of a turn with one call, and what follows it in its step."""
    return turn(Call(), *items)


class Worker:
    """An endpoint whose outbox is kept.

    Attributes:
        said: all that it said, oldest first.
    """

    def __init__(self, tape: Sequence[Item], seed: Sequence[Event] = ()) -> None:
        self.endpoint = Endpoint(pilot_for, lambda: 1234)
        self.tape = encode_tape(tape)
        self.seed = encode_rows(seed)
        self.seed_length = len(seed)
        self.header = dumps({"seedLength": len(seed)} if seed else {})
        self.said: list[tuple[ToHub, bytes]] = []

    def tell(self, message: ToWorker, body: bytes = b"") -> list[ToHub]:
        """Say something to it; return what it says then."""
        try:
            self.endpoint.handle(message, body)
        finally:
            fresh = list(self.endpoint.outbox)
            self.endpoint.outbox.clear()
            self.said.extend(fresh)
        return [said for said, _ in fresh]

    def create(self, **changes: Any) -> list[ToHub]:
        """Create its session."""
        self.tell(Welcome(1))
        fields: dict[str, Any] = {
            "sid": SID,
            "agent": TAPE,
            "events": self.seed_length,
            "sha256": hashlib.sha256(self.seed).digest(),
            "header_size": len(self.header),
            "seed_size": len(self.seed),
            "brief_size": len(self.tape),
        }
        message = Create(**{**fields, **changes})
        return self.tell(message, self.header + self.seed + self.tape)

    # --- what a hub says -------------------------------------------------------

    def chunks(self, *chunks: JsonObject, first: int = 0, call: int = 0) -> list[ToHub]:
        """Serve chunks."""
        return self.tell(Chunks(SID, call, first, len(chunks)), dumps(list(chunks)))

    def answer(self, *chunks: JsonObject, call: int = 0) -> list[ToHub]:
        """Serve a whole answer."""
        said = self.chunks(*chunks, call=call)
        return said + self.tell(End(SID, call, len(chunks)))

    def ack(self, length: int | None = None) -> list[ToHub]:
        """Acknowledge; all that there is by default."""
        length = len(self.log) if length is None else length
        return self.tell(Ack(SID, length))

    def result(self, block: int, result: JsonObject) -> list[ToHub]:
        """Answer a tool call of turn 1, step 1."""
        return self.tell(ToolResult(SID, 1, 1, block), dumps(result))

    def settle(self, block: int | None, result: JsonObject) -> list[ToHub]:
        """Answer a delegation of turn 1, step 1."""
        return self.tell(Settled(SID, 1, 1, block, 0, None), dumps(result))

    def cancel(
        self, call: int | None, after: int | None, cause: JsonObject | None = None
    ) -> list[ToHub]:
        """Cancel a call, or what is going on."""
        cause = {"kind": "user"} if cause is None else cause
        return self.tell(Cancel(SID, call, after), dumps(cause))

    # --- what it did -----------------------------------------------------------

    @property
    def log(self) -> Sequence[Event]:
        """Its log."""
        return self.endpoint.loop.log.events

    @property
    def types(self) -> list[str]:
        """The types of the events in its log, its seed left out."""
        return [event.type for event in self.log[self.seed_length :]]

    def last(self, kind: type[M]) -> tuple[M, bytes]:
        """Return the last message of a kind that it said, with its body."""
        for message, body in reversed(self.said):
            if isinstance(message, kind):
                return message, body
        raise AssertionError(f"it said no {kind.__name__}")

    def uploaded(self) -> list[Json]:
        """Return all items that it uploaded."""
        items: list[Json] = []
        for message, body in self.said:
            if isinstance(message, Events):
                items.extend(loads(body))
        return items
