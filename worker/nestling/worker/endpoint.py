"""A worker's half of the protocol, for one session, without I/O.

Messages of the hub go in through ``handle``; what the worker has to say stands in
``outbox`` afterwards. A pilot steers the session in the middle: it calls the verbs
below and looks at the attributes for what it waits for.

Guarantees:

- Every event is uploaded before the request that follows it, on one FIFO connection.
- A tool's body, or a delegation, starts only once its ``tool/call`` is durable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

from nestling.session.delegation import DELEGATION_TOOLS, FORK_TOOL, parse_arguments
from nestling.session.errors import (
    AppendError,
    JsonDomainError,
    LoopError,
    SeedError,
    ToolArgumentError,
    UnreadableError,
    WireError,
)
from nestling.session.event import Event
from nestling.session.jsontext import Json, JsonObject, dumps, loads
from nestling.session.log import END_SEED, SessionLog
from nestling.session.reading import events_from_row
from nestling.wire.codec import create_parts
from nestling.wire.credit import WINDOW_BYTES, WINDOW_FRAMES, Refill
from nestling.wire.messages import (
    Ack,
    Bye,
    ByeReason,
    Cancel,
    Chunks,
    Close,
    Context,
    Create,
    Credit,
    Delegate,
    End,
    Fail,
    Nack,
    Purpose,
    Ready,
    Result,
    Settled,
    Stream,
    ToHub,
    Tool,
    ToolResult,
    ToWorker,
    Welcome,
)
from nestling.worker.incoming import IncomingCall
from nestling.worker.loop import TurnLoop
from nestling.worker.tape import TAPE_WRAPS
from nestling.worker.tool_calls import PendingTool
from nestling.worker.upload import Upload


class Pilot(Protocol):
    """Who decides what the session does next."""

    def advance(self) -> bool:
        """Do all that can be done now; return True once the session is done.

        Raises:
            LoopError: if what happened does not fit what the pilot was told.
        """
        ...


class Endpoint:
    """One session in a worker.

    Attributes:
        outbox: messages for the hub with their bodies, oldest first.
        is_closed: whether the session has said its last word.
        call: the open call's answer, if one is open.
        results: the results of tool calls and delegations, by block, of this step.
    """

    def __init__(
        self,
        pilot_for: Callable[[Endpoint, Create, bytes], Pilot],
        clock: Callable[[], int],
    ) -> None:
        """Prepare for the hub's ``create``.

        Args:
            pilot_for: makes the session's pilot from `create` and the tape.
            clock: returns the time in epoch milliseconds.
        """
        self.outbox: list[tuple[ToHub, bytes]] = []
        self.is_closed = False
        self.call: IncomingCall | None = None
        self.results: dict[int, JsonObject] = {}
        self._cancelled: tuple[int, JsonObject | None] = (0, None)
        self._pilot_for = pilot_for
        self._clock = clock
        self._session: _Session | None = None
        self._sid: int | None = None
        self._is_finished = False

    # --- receive ---------------------------------------------------------------

    def handle(self, message: ToWorker, body: bytes) -> None:
        """Take in a message of the hub and do what follows from it.

        Raises:
            WireError: if the hub broke the protocol.
        """
        try:
            self._receive(message, body)
            self._advance()
        except SeedError as error:
            self._leave("seed-refused", str(error))
        except (LoopError, AppendError, UnreadableError) as error:
            self._leave("loop-refused", str(error))

    def _receive(self, message: ToWorker, body: bytes) -> None:
        if isinstance(message, Welcome) or self.is_closed:
            return
        if isinstance(message, Create):
            self._create(message, body)
            return
        session = self._current
        if message.sid != session.sid:
            raise WireError(f"a message for session {message.sid}, not {session.sid}")
        match message:
            case Ack():
                session.upload.acknowledge(message.length)
            case Nack():
                session.upload.rewind(message.expected)
            case Chunks() | End() | Fail():
                self._answer(message, body)
            case Settled() | ToolResult():
                self._result(message, body)
            case Cancel():
                self._cancel(message, _parsed(body))
            case Close():
                self._leave("done", "")

    def _create(self, create: Create, body: bytes) -> None:
        if self._session is not None:
            raise WireError("a second create for one session")
        self._sid = create.sid
        _, seed, tape = create_parts(create, body)
        self._session = _Session(create, _seeded_log(create, seed), self._clock)
        self._pilot = self._pilot_for(self, create, tape)
        self._say(Ready(create.sid, create.events))

    def _answer(self, message: Chunks | End | Fail, body: bytes) -> None:
        call = self.call
        if call is None or call.number != message.call:
            return  # the rest of a call that was cut here meanwhile
        match message:
            case Chunks():
                chunks = _parsed_list(body)
                if len(chunks) != message.count:
                    raise WireError(
                        f"call {call.number}: {len(chunks)} chunks came, "
                        f"announced were {message.count}"
                    )
                call.receive(message.first, chunks, body)
                self._refill(len(body))
            case End():
                call.end(message.chunks)
            case Fail():
                call.end(message.chunks, _parsed(body))

    def _result(self, message: Settled | ToolResult, body: bytes) -> None:
        session, block = self._current, message.block
        is_here = (message.turn, message.step) == session.loop.place
        if block is None or not is_here or block not in session.unanswered:
            raise WireError(
                f"a result for turn {message.turn}, step {message.step}, "
                f"block {block}, which awaits none"
            )
        session.unanswered.remove(block)
        self.results[block] = _parsed(body)

    def _cancel(self, message: Cancel, cause: JsonObject) -> None:
        if message.call is None:
            self._cancelled = (self.loop.place[0], cause)
        elif self.call is not None and self.call.number == message.call:
            self.call.cut(message.after, cause)

    # --- verbs for the pilot ---------------------------------------------------

    @property
    def sid(self) -> int | None:
        """The session's number on the wire, once it is known."""
        return self._sid

    @property
    def loop(self) -> TurnLoop:
        """The session's turn loop."""
        return self._current.loop

    @property
    def cancelled(self) -> JsonObject | None:
        """Who cancelled the open turn, once somebody did.

        A cancel that comes too late for its turn is none of the next one's.
        """
        turn, cause = self._cancelled
        return cause if turn == self.loop.place[0] else None

    def stream(self, purpose: Purpose) -> IncomingCall:
        """Ask for the answer to the next call."""
        session = self._current
        self._flush()
        session.calls += 1
        self._refiller = Refill(WINDOW_BYTES, WINDOW_FRAMES)
        self.call = IncomingCall(session.calls - 1, purpose)
        self._say(self._stream_message(session, purpose))
        return self.call

    def _stream_message(self, session: _Session, purpose: Purpose) -> Stream:
        turn, step = session.loop.place
        log = session.log
        return Stream(
            sid=session.sid,
            call=session.calls - 1,
            purpose=purpose,
            provider=session.loop.route.provider,
            model=session.loop.route.model,
            turn=turn,
            step=step,
            digest=log.surface.request_digest(),
            length=len(log),
            credit_bytes=WINDOW_BYTES,
            credit_frames=WINDOW_FRAMES,
        )

    def log_chunk(self, chunk: JsonObject) -> None:
        """Log the chunk that was just taken of the open call."""
        call = self.call
        if call is None:
            raise LoopError("a chunk without a call")
        self._queue_events()
        event = self.loop.add_chunk(chunk)
        self._current.queue_chunk(event, call)

    def close_call(self) -> None:
        """Forget the call, which has ended or was cut."""
        self.call = None

    def start_tool(self, tool: PendingTool) -> None:
        """Ask for the result of a tool call, once the hub has it durably."""
        session = self._current
        self._queue_events()
        session.unanswered.add(tool.block)
        session.waiting.append((len(session.log), *self._tool_request(tool)))

    def _tool_request(self, tool: PendingTool) -> tuple[ToHub, bytes]:
        session = self._current
        turn, step = session.loop.place
        length = len(session.log)
        asked: JsonObject = {
            "callId": tool.call_id,
            "name": tool.name,
            "arguments": tool.arguments,
        }
        delegated = _delegated(tool)
        if delegated is None:
            return Tool(session.sid, turn, step, tool.block, length), dumps(asked)
        asked.update(delegated)
        context: Context = "fork" if tool.name == FORK_TOOL else "spawn"
        message = Delegate(
            session.sid, turn, step, tool.block, 0, None, context, length
        )
        return message, dumps(asked)

    # --- inside ----------------------------------------------------------------

    @property
    def _current(self) -> _Session:
        if self._session is None:
            raise WireError("a message for a session before its create")
        return self._session

    def _advance(self) -> None:
        if self._session is None or self.is_closed:
            return
        has_ended = self._pilot.advance()
        self._flush()
        for message, body in self._session.released():
            self._say(message, body)
        # A request that was not answered yet keeps the session going.
        if has_ended and not self._is_finished and not self._session.unanswered:
            self._is_finished = True
            self._say(Result(self._session.sid, len(self._session.log)))

    def _queue_events(self) -> None:
        self._current.queue_events()

    def _flush(self) -> None:
        session = self._current
        session.queue_events()
        self.outbox.extend(session.upload.take())

    def _refill(self, size: int) -> None:
        call = self.call
        grant = self._refiller.consumed(size)
        if grant is not None and call is not None:
            self._say(Credit(self._current.sid, call.number, *grant))

    def _leave(self, reason: ByeReason, detail: str) -> None:
        if self._session is not None and reason != "done":
            self._flush()
        sid = 0 if self._sid is None else self._sid
        self._say(Bye(sid, reason), detail.encode("utf-8", "backslashreplace"))
        self.is_closed = True

    def _say(self, message: ToHub, body: bytes = b"") -> None:
        self.outbox.append((message, body))


class _Session:
    """What an endpoint holds once its session was created."""

    def __init__(
        self, create: Create, log: SessionLog, clock: Callable[[], int]
    ) -> None:
        self.sid = create.sid
        self.log = log
        self.loop = TurnLoop(log, clock)
        self.upload = Upload(create.sid, len(log))
        self.calls = 0
        self.waiting: list[tuple[int, ToHub, bytes]] = []
        self.unanswered: set[int] = set()
        self._queued = len(log)

    def queue_events(self) -> None:
        """Queue the events that were appended since the last time."""
        for event in self.log.events[self._queued :]:
            self.upload.add(event)
        self._queued = len(self.log)

    def queue_chunk(self, event: Event, call: IncomingCall) -> None:
        """Queue the event that was just appended as a reference to a chunk."""
        index = call.taken - 1
        self.upload.add_chunk(event, call.number, index, call.sum_taken)
        self._queued = len(self.log)

    def released(self) -> list[tuple[ToHub, bytes]]:
        """Return the requests whose events have become durable."""
        durable = self.upload.durable
        ready = [(message, body) for n, message, body in self.waiting if n <= durable]
        self.waiting = [entry for entry in self.waiting if entry[0] > durable]
        return ready


def _delegated(tool: PendingTool) -> JsonObject | None:
    """Return what a tool call delegates; None if no child can be made of it."""
    if tool.name not in DELEGATION_TOOLS:
        return None
    try:
        arguments = parse_arguments(tool.arguments)
    except ToolArgumentError:
        return None
    return {"description": arguments.description, "prompt": arguments.prompt}


def _seeded_log(create: Create, seed: bytes) -> SessionLog:
    """Build the log that a session starts with, after checking its seed.

    Raises:
        SeedError: if the seed is not the one that the hub announced, or leaves a
            turn open.
    """
    if hashlib.sha256(seed).digest() != create.sha256:
        raise SeedError("the seed's bytes do not fit their hash")
    events: list[Event] = []
    for line in seed.split(b"\n"):
        if not line:
            continue
        try:
            events.extend(events_from_row(_parsed(line), len(events)))
        except UnreadableError as error:
            raise SeedError(f"seed event {len(events)}: {error}") from None
    if len(events) != create.events:
        raise SeedError(f"the seed has {len(events)} events, announced {create.events}")
    log = SessionLog(events)
    if events:
        log.add(END_SEED, events[-1].time)
    return log


def _parsed(text: bytes) -> JsonObject:
    value = _loaded(text)
    if type(value) is not dict:
        raise WireError("expected a JSON object from the hub")
    return value


def _parsed_list(text: bytes) -> list[JsonObject]:
    value = _loaded(text)
    if type(value) is not list:
        raise WireError("expected a JSON array from the hub")
    return value


def _loaded(text: bytes) -> Json:
    try:
        return loads(text, TAPE_WRAPS)
    except JsonDomainError as error:
        raise WireError(f"the hub sent what is no JSON: {error}") from None
