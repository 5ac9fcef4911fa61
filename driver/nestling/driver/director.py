"""The director: the pure object that decides what the driver cannot know.

What a new session is called and gets, whether a delegation is real, who answers a
call, where a session is cancelled or killed, what a parent is told of its child. A
replay is a director; the driver has no branch of its own for it.

Where a session stops is said ahead (``Stops``, ``Answer.cut``) instead of being asked
after every chunk: the hub then stops at exactly that place, on every schedule, and a
call costs one decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from nestling.driver.exits import Exit
from nestling.session.event import Event
from nestling.session.header import Header, SpawnedBy
from nestling.session.jsontext import JsonObject, dumps, is_int0
from nestling.session.outcome import Outcome
from nestling.session.repair import OpenCall
from nestling.wire.messages import Purpose

DEFAULT_MAX_DEPTH = 3
DEFAULT_START_TIMEOUT = 30.0
DEFAULT_STARTING = 8
DEFAULT_SILENCE = 10.0
DEFAULT_FIRST_TOKEN_TIMEOUT = 600.0
DEFAULT_STREAM_IDLE_TIMEOUT = 300.0


_SECONDS = (
    "start_timeout",
    "silence",
    "first_token_timeout",
    "stream_idle_timeout",
    "turn_timeout",
    "tool_timeout",
    "restart_window",
)


class Limits(NamedTuple):
    """Bounds that hold for a whole run.

    Attributes:
        max_depth: how many delegations may lie between the root and a session.
        start_timeout: seconds from a worker's launch until it must be ready.
        starting: so many workers may be starting at once; the others wait their turn.
        silence: seconds without a sign of life after which a worker is suspected; it
            gives one every two seconds. Ten more, and it is ended.
        first_token_timeout: seconds until a provider's first chunk must come.
        stream_idle_timeout: seconds until its next one must.
        turn_timeout: seconds that a turn may take; then it is cancelled.
        tool_timeout: seconds that a tool may take; then its result is an error.
        restarts: so often a session whose worker died goes on in a new one, and is told
            again what it had not finished. Never by default: tools have side effects.
        restart_window: seconds; older restarts do not count.
    """

    max_depth: int = DEFAULT_MAX_DEPTH
    start_timeout: float = DEFAULT_START_TIMEOUT
    starting: int = DEFAULT_STARTING
    silence: float = DEFAULT_SILENCE
    first_token_timeout: float = DEFAULT_FIRST_TOKEN_TIMEOUT
    stream_idle_timeout: float = DEFAULT_STREAM_IDLE_TIMEOUT
    turn_timeout: float = inf
    tool_timeout: float = inf
    restarts: int = 0
    restart_window: float = 60.0

    @property
    def tool_seconds(self) -> float | None:
        """How long a tool may take, as JSON has it; None for any time."""
        return None if self.tool_timeout == inf else self.tool_timeout

    def checked(self) -> Limits:
        """Return these limits, which a run can be carried out with.

        Raises:
            ValueError: naming the one that makes no sense.
        """
        for name, least in (("max_depth", 0), ("starting", 1), ("restarts", 0)):
            found = getattr(self, name)
            if not is_int0(found) or found < least:
                raise ValueError(f"{name} must be at least {least}, found {found!r}")
        for name in _SECONDS:
            found = getattr(self, name)
            if not isinstance(found, int | float) or not found > 0:
                raise ValueError(f"{name} must be more than 0, found {found!r}")
        return self


class CancelAt(NamedTuple):
    """Cancel the open turn once the log is `length` events long.

    Attributes:
        children: and not before so many children of the session have ended.
    """

    length: int
    cause: JsonObject
    children: int = 0


class KillAt(NamedTuple):
    """Kill the worker once `length` events are durable.

    What it says after those is lost with it.

    Attributes:
        children: not before so many children of the session have ended.
    """

    length: int
    children: int = 0


class Stops(NamedTuple):
    """Where a session is stopped from outside.

    Attributes:
        cancels: turns that are cancelled while no call is open.
        kills: where its workers are killed, one after the other.
    """

    cancels: tuple[CancelAt, ...] = ()
    kills: tuple[KillAt, ...] = ()


Prompt: TypeAlias = Sequence[JsonObject]
"""What a user says: content blocks."""


class Creation(NamedTuple):
    """What a new session is called and gets.

    Attributes:
        header: without ``seedLength`` and ``seedDigest``, which the hub counts.
        agent: the agent reference; ``tape`` for a tape agent.
        brief: what the agent is told, as bytes, which only the agent reads.
        stops: where the session is stopped from outside.
        prompts: what the user says, turn by turn; none to a tape agent.
        is_open: more prompts may come: the session waits for them until it is closed.
        stored: the log of a session that is stored already and goes on; its header is
            then complete. None for a new one.
    """

    header: Header
    agent: str
    brief: bytes = b""
    stops: Stops = Stops()
    prompts: tuple[Prompt, ...] = ()
    is_open: bool = False
    stored: Sequence[Event] | None = None


class Delegation(NamedTuple):
    """A session asks for a child.

    Attributes:
        path: the spawn path that the child would have.
        depth: how many delegations would lie between the root and the child.
        seed_length: how many events of its parent the child would inherit.
        agent: the agent reference that the parent asks for.
        options: what else the parent's code tells the child's.
    """

    parent_id: str
    path: str
    spawned_by: SpawnedBy
    depth: int
    prompt: str
    description: str
    seed_length: int
    agent: str
    options: JsonObject


class Real(NamedTuple):
    """The child is created."""

    creation: Creation


class Recorded(NamedTuple):
    """This result is served instead: ``{"block", "error"?, "meta"?}``."""

    result: JsonObject


class Refused(NamedTuple):
    """No child; the parent's model is told why."""

    message: str


def too_deep(delegation: Delegation, limit: int) -> Refused:
    """Refuse a delegation that lies deeper than a run may go."""
    return Refused(f"depth {delegation.depth} exceeds the limit of {limit}")


class Unanswered(NamedTuple):
    """No answer comes: the worker dies waiting for it, or its turn is cancelled."""


class Run(NamedTuple):
    """The worker runs the tool."""


class CancelInstead(NamedTuple):
    """The tool is not run: the turn of the session at `path` is cancelled now."""

    path: str
    cause: JsonObject


DelegationDecision: TypeAlias = Real | Recorded | Refused | Unanswered
ToolDecision: TypeAlias = Recorded | Run | Unanswered | CancelInstead


class CallRequest(NamedTuple):
    """A session asks for the answer to its call number `number`.

    Attributes:
        provider: who is to answer, as the session's log says.
        model: which of its models is.
        messages: rebuilds what the call sends to a model, from the hub's own log.
    """

    session_id: str
    number: int
    purpose: Purpose
    provider: str
    model: str
    turn: int
    step: int
    messages: Callable[[], Sequence[JsonObject]] = list


class ToolRequest(NamedTuple):
    """A session asks for the result of a tool call."""

    session_id: str
    turn: int
    step: int
    block: int
    call_id: str
    name: str
    arguments: str


class EncodedChunks:
    """The chunks of an answer, encoded once however often they are served."""

    def __init__(self, objects: Sequence[JsonObject]) -> None:
        self.objects = list(objects)
        self.texts = [dumps(chunk) for chunk in objects]

    def append(self, chunk: JsonObject) -> None:
        """Add one, which is left alone if it cannot be encoded.

        Raises:
            JsonDomainError: if it cannot.
        """
        self.texts.append(dumps(chunk))
        self.objects.append(chunk)

    def __len__(self) -> int:
        return len(self.texts)


class Pace(NamedTuple):
    """When the chunks of an answer may be served, instead of at once.

    Attributes:
        call: which of its session's answers this is, from 1, as gates count them.
        waits: seconds before each chunk, counted from the one before; fewer than there
            are chunks: none before the others.
        gates: after so many chunks it is held until somebody lets it go on, ascending;
            the length of the answer holds back its end.
    """

    call: int
    waits: Sequence[float] = ()
    gates: Sequence[int] = ()


class Answer(NamedTuple):
    """The answer to a call.

    Attributes:
        chunks: what is served.
        failure: the stream fails after the chunks, with ``message`` and ``code``.
        cut: the call is cancelled after exactly the chunks, by this cause.
        hangs: nothing follows the chunks, not even an end.
        pace: when they may be served; at once by default.
    """

    chunks: EncodedChunks
    failure: JsonObject | None = None
    cut: JsonObject | None = None
    hangs: bool = False
    pace: Pace | None = None


class Cut(NamedTuple):
    """Where a provider's answer is cut short, because a turn is cancelled there.

    Attributes:
        after: once exactly so many chunks were served, the last of them no finish.
        path: the session whose turn is cancelled, with all below it.
        cause: why, as its log will hold it.
    """

    after: int
    path: str
    cause: JsonObject


class Asked(NamedTuple):
    """A provider answers the call, chunk by chunk.

    Attributes:
        cut: where its answer is cut short, if it comes so far.
    """

    provider: str
    cut: Cut | None = None


class Stop(NamedTuple):
    """Stop the session: it has gone where it must not go."""

    reason: str


CallDecision: TypeAlias = Answer | Asked | Stop


class Loss(NamedTuple):
    """A session's worker has ended before its last word.

    Attributes:
        exit: how its process ended.
        calls: the tool calls that its open turn has left without results.
        has_begun: whether its log holds an event of its own.
    """

    exit: Exit
    calls: Sequence[OpenCall]
    has_begun: bool = True


class Resume(NamedTuple):
    """The session goes on in a new process, which is given the whole of its log.

    Attributes:
        brief: what its agent is told; None for what it was told before.
        is_told_again: what it was told last, and did not finish, begins its next turn.
    """

    brief: bytes | None = None
    is_told_again: bool = False


_NO_RESULTS: Final[Mapping[OpenCall, JsonObject]] = MappingProxyType({})


class Lost(NamedTuple):
    """What becomes of a session whose worker is gone.

    Attributes:
        results: what is known of the calls that it has left without results, as
            ``repair.closers`` takes them.
        resume: how it goes on once its turn is closed and its children have ended; None
            if it does not: then it has settled.
        is_orderly: its children are cancelled, and close their turns themselves; else
            they are ended at once.
    """

    results: Mapping[OpenCall, JsonObject] = _NO_RESULTS
    resume: Resume | None = None
    is_orderly: bool = False


EndedBy: TypeAlias = Literal["itself", "director", "abort", "cancel", "death"]
"""What ended a session: its last word, a ``Stop`` of the director or a refusal, the
end of the run or of its parent, a cancel, or the death of its worker."""


class Settlement(NamedTuple):
    """How a session ended.

    Attributes:
        ended_by: what ended it.
        outcome: told from its own events.
        exit: how its process ended, where that came before its last word.
        diagnostic: why it ended, if it did not end by itself.
        last_event: after which of its events a worker died.
        closing: what closed the turn that a lost worker left open; no ``on_events``
            told of it, because no worker said it.
        lost: how the processes that it was resumed after had ended, oldest first.
    """

    ended_by: EndedBy
    outcome: Outcome
    exit: Exit | None
    diagnostic: str | None
    last_event: str = ""
    closing: Sequence[Event] = ()
    lost: Sequence[Exit] = ()

    @property
    def death(self) -> str:
        """The diagnostic with the place where it happened, for whoever is told."""
        return f"{self.diagnostic or ''} {self.last_event}".strip()


class Director(Protocol):
    """Decides; every method is pure but for what the director keeps in memory."""

    limits: Limits

    def on_root(self) -> Creation:
        """Say what the root session is called and gets."""
        ...

    def on_delegate(self, delegation: Delegation) -> DelegationDecision:
        """Decide whether a delegation is real."""
        ...

    def on_created(
        self, session_id: str, header: Header, events: Sequence[Event]
    ) -> Stop | None:
        """Learn of a session's header and of the events that it starts with."""
        ...

    def on_stream(self, call: CallRequest) -> CallDecision:
        """Decide who answers a call."""
        ...

    def on_tool(self, request: ToolRequest) -> ToolDecision:
        """Decide how a tool call gets its result."""
        ...

    def on_events(self, session_id: str, events: Sequence[Event]) -> Stop | None:
        """Learn of events that a session's log has grown by."""
        ...

    def on_idle(self, session_id: str, prompts: int, outcome: Outcome) -> None:
        """Learn that a session has done its `prompts` so far, and waits for more."""
        ...

    def on_refused(self, session_id: str, reason: str, detail: str) -> None:
        """Learn that a worker refused its seed or could not go on."""
        ...

    def on_lost(self, session_id: str, loss: Loss) -> Lost:
        """Decide what becomes of a session whose worker died, nobody having ended it.

        If it is resumed, ``on_events`` tells what closed its turn.
        """
        ...

    def on_settled(
        self, session_id: str, settlement: Settlement
    ) -> JsonObject | Unanswered | None:
        """Learn of a session's end; return what its parent is told instead, if so."""
        ...
