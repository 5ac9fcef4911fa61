"""A worker's half of the protocol, for one session, without I/O.

Messages of the hub go in through ``handle``; what the worker has to say stands in
``outbox`` afterwards. A pilot steers the session in the middle: it calls the verbs
below and looks at the attributes for what it waits for. One that goes on between two
messages says so with ``proceed``.

Guarantees:

- Every event is uploaded before the request that follows it, on one FIFO connection.
- A tool's body starts only once its ``tool/call`` is durable: the hub answers then, and
  an answer that comes before its ack is refused.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from nestling.session.delegation import DELEGATION_TOOLS, FORK_TOOL, parse_arguments
from nestling.session.errors import (
    AgentReferenceError,
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
from nestling.session.place import Place
from nestling.session.reading import events_from_row
from nestling.wire.codec import create_parts
from nestling.wire.credit import WINDOW_BYTES, WINDOW_FRAMES, Refill
from nestling.wire.messages import (
    RUN_TOOL,
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
    Prompt,
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

_TOOL: Final = "tool"
_CHILD: Final = "child"


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
        header: the session's header as JSON, once it was created.
        is_closed: whether the session has said its last word.
        call: the open call's answer, if one is open.
        results: what tool calls came to, by place; None where the tool is to be run
            here.
        settled: what its delegations came to, by place.
        prompts: what the user said and no turn has taken up yet, as content blocks.
    """

    def __init__(
        self,
        pilot_for: Callable[[Endpoint, Create, bytes], Pilot],
        clock: Callable[[], int],
    ) -> None:
        """Prepare for the hub's ``create``.

        Args:
            pilot_for: makes the session's pilot from `create` and the brief.
            clock: returns the time in epoch milliseconds.
        """
        self.outbox: list[tuple[ToHub, bytes]] = []
        self.header = b""
        self.is_closed = False
        self.call: IncomingCall | None = None
        self.results: dict[Place, JsonObject | None] = {}
        self.settled: dict[Place, JsonObject] = {}
        self.prompts: deque[list[JsonObject]] = deque()
        self._cancelled: tuple[int, JsonObject | None] = (0, None)
        self._pilot_for = pilot_for
        self._clock = clock
        self._session: _Session | None = None
        self._sid: int | None = None
        self._has_result = False

    # --- receive ---------------------------------------------------------------

    def handle(self, message: ToWorker, body: bytes) -> None:
        """Take in a message of the hub and do what follows from it.

        Raises:
            WireError: if the hub broke the protocol.
        """
        try:
            self._receive(message, body)
        except SeedError as error:
            self._leave("seed-refused", str(error))
        except AgentReferenceError as error:
            self._leave("failed", str(error))
        except (LoopError, AppendError, UnreadableError) as error:
            self._leave("loop-refused", str(error))
        else:
            self.proceed()

    def proceed(self) -> None:
        """Let the pilot go on, and say what has come of it."""
        try:
            self._advance()
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
            case ToolResult():
                self._tool_result(message, body)
            case Settled():
                self._settled(message, body)
            case Prompt():
                self.prompts.append(_parsed_list(body))
                self._has_result = False
            case Cancel():
                self._cancel(message, _parsed(body))
            case Close():
                self._leave("done", "")

    def _create(self, create: Create, body: bytes) -> None:
        if self._session is not None:
            raise WireError("a second create for one session")
        self._sid = create.sid
        self.header, seed, brief = create_parts(create, body)
        seed_length: int = _parsed(self.header).get("seedLength", 0)
        log = _seeded_log(create, seed, seed_length)
        self._session = _Session(create, log, self._clock)
        self._pilot = self._pilot_for(self, create, brief)
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

    def _tool_result(self, message: ToolResult, body: bytes) -> None:
        place = Place(message.turn, message.step, message.block)
        length = self._answered(_TOOL, place)
        is_live = body == RUN_TOOL
        if is_live and self._current.upload.durable < length:
            raise WireError(
                f"a tool is to be run that was called in the first {length} events, "
                f"of which {self._current.upload.durable} are durable"
            )
        self.results[place] = None if is_live else _parsed(body)

    def _settled(self, message: Settled, body: bytes) -> None:
        place = Place(message.turn, message.step, message.block, message.n, message.key)
        self._answered(_CHILD, place)
        self.settled[place] = _parsed(body)

    def _answered(self, kind: str, place: Place) -> int:
        """Take note that the hub has answered a request that waits for it.

        Returns:
            The length of the log that it was made from.
        """
        unanswered = self._current.unanswered
        if (kind, place) not in unanswered:
            where = f"turn {place.turn}, step {place.step}, block {place.block}"
            raise WireError(f"a result for {where}, which awaits none")
        return unanswered.pop((kind, place))

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
        """Ask for the result of a tool call; it comes once the call is durable.

        The answer comes into ``settled`` for a call that delegates, into ``results``
        for every other one.
        """
        asked = _delegated(tool)
        if asked is None:
            self.ask_tool(tool)
        else:
            turn, step = self.loop.place
            context: Context = "fork" if tool.name == FORK_TOOL else "spawn"
            self.delegate(Place(turn, step, tool.block), context, asked)

    def ask_tool(self, tool: PendingTool) -> None:
        """Ask how a tool call gets its result, which delegates nothing."""
        session = self._current
        turn, step = session.loop.place
        asked: JsonObject = {
            "callId": tool.call_id,
            "name": tool.name,
            "arguments": tool.arguments,
        }
        message = Tool(session.sid, turn, step, tool.block, len(session.log))
        place = Place(turn, step, tool.block)
        self._request(_TOOL, place, message, asked)

    def delegate(self, place: Place, context: Context, asked: JsonObject) -> None:
        """Ask for a child, which is made once all is durable that led to it.

        Args:
            place: where in this session; its answer comes into ``settled`` there.
            context: ``fork`` if the child starts with the completed turns so far.
            asked: ``callId``, ``prompt``, ``description``, maybe ``agent``, ``options``.
        """
        session = self._current
        message = Delegate(session.sid, *place, context, len(session.log))
        self._request(_CHILD, place, message, asked)

    def _request(
        self, kind: str, place: Place, message: ToHub, asked: JsonObject
    ) -> None:
        # At once: the step that it stands in may end before anything else is said.
        self._flush()
        session = self._current
        session.unanswered[kind, place] = len(session.log)
        self._say(message, dumps(asked))

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
        # A request that was not answered yet keeps the session going.
        if has_ended and not self._has_result and not self._session.unanswered:
            self._has_result = True
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
        self.calls = create.calls
        self.unanswered: dict[tuple[str, Place], int] = {}
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


def _delegated(tool: PendingTool) -> JsonObject | None:
    """Return what a tool call delegates; None if no child can be made of it."""
    if tool.name not in DELEGATION_TOOLS:
        return None
    try:
        arguments = parse_arguments(tool.arguments)
    except ToolArgumentError:
        return None
    return {
        "callId": tool.call_id,
        "name": tool.name,
        "arguments": tool.arguments,
        "description": arguments.description,
        "prompt": arguments.prompt,
    }


def _seeded_log(create: Create, seed: bytes, seed_length: int) -> SessionLog:
    """Build the log that a session starts with, after checking its seed.

    A new session is given what it inherits, up to its boundary, which is marked then; a
    resumed one is given all of its log, which holds the mark if it has a boundary.

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
    if events and len(events) == seed_length:
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
