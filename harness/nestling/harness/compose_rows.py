"""The rows of one composed session: ids, times, and the shape of each kind of row.

``nestling.harness.compose`` says which rows follow which; here is what they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nestling.harness.compose_stream import text
from nestling.session.boundary import own_events
from nestling.session.errors import AppendError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import Json, JsonObject
from nestling.session.log import SessionLog


class Clock:
    """A clock that advances by a fixed step each time it is read.

    Args:
        now: what it shows first, epoch milliseconds.
        step_ms: how far it advances, milliseconds.
    """

    def __init__(self, now: int, step_ms: int = 10) -> None:
        self.now = now
        self.step_ms = step_ms

    def tick(self) -> int:
        """Return the time and advance."""
        now = self.now
        self.now += self.step_ms
        return now


class Call(NamedTuple):
    """A tool call that a composed model made.

    Attributes:
        block: its 0-based position in the message's content.
    """

    id: str
    name: str
    arguments: str
    turn: int
    step: int
    block: int


class Route(NamedTuple):
    """Whom a session asks, and with which system prompt."""

    provider: str
    model: str
    system: str

    def row(self) -> JsonObject:
        """Return the part that requests and messages name."""
        return {"provider": self.provider, "model": self.model}


class SessionRows:
    """One session's log, and the rows that are appended to it.

    Attributes:
        header: the session's header.
        log: its log so far.
        route: whom it asks.
        clock: where its times come from.
    """

    def __init__(
        self, header: Header, seed: Sequence[Event], route: Route, clock: Clock
    ) -> None:
        self.header = header
        self.log = SessionLog(seed)
        self.route = route
        self.clock = clock
        self._counts: dict[str, int] = {}
        self._call_seqs: dict[str, int] = {}
        self._unanswered: dict[str, Call] = {}

    @property
    def id(self) -> str:
        """The session's id."""
        return self.header.id

    @property
    def own(self) -> Sequence[Event]:
        """The events that the session did not inherit."""
        return own_events(self.log.events, self.header.seed_length)

    def add(self, kind: str, data: Json, **fields: Json) -> Event:
        """Append any event.

        Args:
            kind: its type.
            data: its data.
            fields: its ``surfaceOp``, ``sourceEventSeqs`` or ``ignorable``.
        """
        return self.log.add({"type": kind, "data": data, **fields}, self.clock.tick())

    def user(self, prompt: str, source: JsonObject | None = None) -> None:
        """Append a user message.

        Args:
            prompt: its text.
            source: who it is from; the user by default.
        """
        source = {"kind": "user"} if source is None else source
        message = self._user_message([text(prompt)], source)
        self.add("user/message", message, surfaceOp="append")

    def result(
        self,
        call: Call,
        content: str | list[JsonObject],
        *,
        is_error: bool = False,
        error: JsonObject | None = None,
        meta: Json = None,
    ) -> None:
        """Append the result of a tool call, and before it the call if it is missing.

        Args:
            call: the call it answers.
            content: a text, or content blocks.
            is_error: the tool failed.
            error: the failure's ``name`` and ``code``.
            meta: what the tool reports beside the content.

        Raises:
            AppendError: if no call of this step waits for this result.
        """
        call_seq = self._start(call)
        del self._unanswered[call.id]
        block = {
            "type": "tool-result",
            "toolCallId": call.id,
            "content": [text(content)] if isinstance(content, str) else content,
            "isError": is_error,
        }
        message = self._user_message([block], {"kind": "tool", "callId": call.id})
        data = {**self._place(), "message": message}
        data |= {} if error is None else {"error": error}
        data |= {} if meta is None else {"meta": meta}
        self.add("tool/result", data, surfaceOp="append", sourceEventSeqs=[call_seq])

    # --- where we are ----------------------------------------------------------

    def _new_id(self, kind: str) -> str:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{self.id}-{kind}{self._counts[kind]}"

    def _place(self) -> JsonObject:
        turns = self.log.turns
        if turns.turn is None or turns.step is None:
            raise AppendError(f"no step is open in {self.id}")
        return {"turn": turns.turn, "step": turns.step}

    def _check_turn(self) -> int:
        turn = self.log.turns.turn
        if turn is None:
            raise AppendError(f"no turn is open in {self.id}")
        return turn

    def _turn_events(self) -> Sequence[Event]:
        """Return the events since the last turn ended; those of the open turn."""
        return self.log.events[self.log.turns.balanced_length :]

    # --- rows ------------------------------------------------------------------

    def _request(self) -> None:
        """Append what a request logs: a header before the first of the session's own
        requests, a context where it differs from the last one in the log."""
        route = self.route.row()
        if not any(event.type == "request/header" for event in self.own):
            is_new = not self.header.seed_length
            header = {"config": route, "system": self.route.system}
            reason = "initial" if is_new else "resume"
            self.add("request/header", {"header": header, "reason": reason})
        contexts = [e.data for e in self.log.events if e.type == "request/context"]
        if contexts[-1:] != [route]:
            self.add("request/context", route)

    def _retry(self, delay_ms: int, failure: JsonObject, max_retries: int) -> None:
        place = self._place()
        earlier = [e.data for e in self._turn_events() if e.type == "llm/retry"]
        number = 1 + sum(data["step"] == place["step"] for data in earlier)
        trace = {"retryId": self._new_id("r"), **place}
        policy = {
            "provider": self.route.provider,
            "mode": "normal",
            "policyKey": "composed",
            "retry": number,
            "maxRetries": max_retries,
            "delayMs": delay_ms,
            "failure": failure,
        }
        self.add("llm/retry", {**trace, **policy})
        self.add("llm/retry-started", {**trace, "retry": number})

    def _message(
        self, content: list[JsonObject], chunks: Sequence[Event], fields: JsonObject
    ) -> None:
        message = {
            "id": self._new_id("m"),
            "role": "assistant",
            "content": content,
            "source": {"kind": "model", **self.route.row()},
        }
        self.add(
            "assistant/message",
            {**self._place(), "message": message, **fields},
            surfaceOp="append",
            sourceEventSeqs=[event.seq for event in chunks],
        )

    def _user_message(
        self, content: list[JsonObject], source: JsonObject
    ) -> JsonObject:
        return {
            "id": self._new_id("m"),
            "role": "user",
            "content": content,
            "source": source,
        }

    def _start(self, call: Call) -> int:
        """Return the seq of a call's ``tool/call``, appending it if it is missing."""
        if call.id not in self._unanswered:
            raise AppendError(f"{self.id} awaits no result of the call {call.id}")
        if call.id not in self._call_seqs:
            named = {"callId": call.id, "name": call.name, "arguments": call.arguments}
            event = self.add("tool/call", {**self._place(), **named})
            self._call_seqs[call.id] = event.seq
        return self._call_seqs[call.id]
