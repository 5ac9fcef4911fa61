"""What running sessions ask for: answers to calls, tool results, children."""

from __future__ import annotations

from nestling.driver.director import (
    CallRequest,
    Creation,
    Delegation,
    DelegationDecision,
    Real,
    Recorded,
    Refused,
    ToolRequest,
)
from nestling.driver.endings import Endings
from nestling.driver.hub_session import HubSession, Parentage, State
from nestling.driver.streams import OpenCall
from nestling.driver.tree import Tree
from nestling.session.errors import JsonDomainError, SeedError, WireError
from nestling.session.header import SpawnedBy
from nestling.session.jsontext import JsonObject, dumps, loads
from nestling.session.spawn_path import child_path
from nestling.wire.credit import WINDOW_BYTES, WINDOW_FRAMES, Window
from nestling.wire.messages import (
    Cancel,
    Chunks,
    Close,
    Credit,
    Delegate,
    End,
    Fail,
    Result,
    Stream,
    Tool,
    ToolResult,
)


class Requests:
    """Answers the requests of running sessions.

    Every request names the length of the log that it was made from; it is answered
    once that much is durable, and never before.
    """

    def __init__(self, tree: Tree, endings: Endings) -> None:
        self._tree = tree
        self._endings = endings

    # --- calls -----------------------------------------------------------------

    def stream(self, session: HubSession, message: Stream) -> None:
        """Open a call once the events before it are durable."""
        session.require("a stream request", State.RUNNING)
        call = session.call
        if session.is_opening or (call is not None and not call.is_closed):
            raise WireError("a second stream request while a call is open")
        if message.call != session.calls_started:
            raise WireError(
                f"call {message.call} was opened, expected {session.calls_started}"
            )
        session.is_opening = True
        session.waits_for = f"call {message.call + 1}"
        session.when_asked(message.length, lambda: self._open(session, message))

    def _open(self, session: HubSession, message: Stream) -> None:
        if session.state is not State.RUNNING:
            return
        self._check_request(session, message)
        session.is_opening = False
        session.calls_started += 1
        request = CallRequest(
            session.id, message.call, message.purpose, message.turn, message.step
        )
        answer = self._tree.director.on_stream(request)
        # A worker may ask for less than the usual window, not for more.
        window = Window(
            min(message.credit_bytes, WINDOW_BYTES),
            min(message.credit_frames, WINDOW_FRAMES),
        )
        session.call = OpenCall(request, answer, window)
        self._tree.progress += 1
        self._tree.notice(session, f"call {message.call + 1}")
        self._serve(session, session.call)

    def _check_request(self, session: HubSession, message: Stream) -> None:
        log = session.log
        if message.length != len(log):
            raise WireError(
                f"call {message.call} was made from {message.length} events, "
                f"the log has {len(log)}"
            )
        place = (log.turns.turn or 0, log.turns.step or 0)
        if (message.turn, message.step) != place:
            raise WireError(
                f"call {message.call} of turn {message.turn}, step {message.step}; "
                f"the log is at {place[0]}, {place[1]}"
            )
        if (message.provider, message.model) != log.surface.route:
            raise WireError(
                f"call {message.call} names {message.provider}/{message.model}, "
                f"the log says {'/'.join(log.surface.route)}"
            )
        if message.digest != log.surface.request_digest():
            raise WireError(
                f"the request of call {message.call} is not the one the log leads to"
            )

    def credit(self, session: HubSession, message: Credit) -> None:
        """Widen the window of the open call and go on serving it."""
        call = session.call
        if call is None or call.request.number < message.call:
            raise WireError(f"credit for call {message.call}, which was not opened")
        if call.request.number > message.call:
            return  # it was on its way when that call ended
        call.window.grant(message.bytes, message.frames)
        self._serve(session, call)

    def _serve(self, session: HubSession, call: OpenCall) -> None:
        number, sid = call.request.number, session.sid
        while (batch := call.next_batch(self._tree.now.epoch_ms)) is not None:
            self._tree.progress += 1
            message = Chunks(sid, number, batch.first, batch.length)
            self._tree.say(session, message, batch.body)
        if call.is_served and not call.is_closed:
            self._close_call(session, call)

    def _close_call(self, session: HubSession, call: OpenCall) -> None:
        number, sid, answer = call.request.number, session.sid, call.answer
        if answer.hangs:
            return
        call.is_closed = True
        session.waits_for = "its worker"
        if answer.cut is not None:
            message = Cancel(sid, number, call.served)
            self._tree.say(session, message, dumps(answer.cut))
        elif answer.failure is not None:
            failed = Fail(sid, number, call.served)
            self._tree.say(session, failed, dumps(answer.failure))
        else:
            self._tree.say(session, End(sid, number, call.served))

    # --- tools -----------------------------------------------------------------

    def tool(self, session: HubSession, message: Tool, body: bytes) -> None:
        """Answer a tool call once it is durable."""
        session.require("a tool request", State.RUNNING)
        asked = _strings(body, "callId", "name", "arguments")
        session.waits_for = f"the result of tool {cut(asked['name'])}"
        session.when_asked(
            message.length, lambda: self._answer_tool(session, message, asked)
        )

    def _answer_tool(
        self, session: HubSession, message: Tool, asked: JsonObject
    ) -> None:
        if session.state is not State.RUNNING:
            return
        place = (message.turn, message.step, message.block, 0, None)
        session.step.claim(place, asked["callId"], message.length)
        request = ToolRequest(
            session.id,
            message.turn,
            message.step,
            message.block,
            asked["callId"],
            asked["name"],
            asked["arguments"],
        )
        decision = self._tree.director.on_tool(request)
        if isinstance(decision, Recorded):
            answer = ToolResult(session.sid, message.turn, message.step, message.block)
            self._tree.say(session, answer, dumps(decision.result))

    # --- children --------------------------------------------------------------

    def delegate(self, session: HubSession, message: Delegate, body: bytes) -> None:
        """Create a child, or answer in its place, once the request is durable."""
        session.require("a delegation", State.RUNNING)
        asked = _strings(body, "callId", "prompt", "description")
        session.when_asked(
            message.length, lambda: self._delegate(session, message, asked)
        )

    def _delegate(
        self, session: HubSession, message: Delegate, asked: JsonObject
    ) -> None:
        if session.state is not State.RUNNING or self._tree.is_aborting:
            return
        place = (message.turn, message.step, message.block, message.n, message.key)
        session.step.claim(place, asked["callId"], message.length)
        delegation = self._delegation(session, message, asked)
        session.waits_for = f"its child {delegation.path}"
        decision = self._tree.director.on_delegate(delegation)
        decision = self._limited(delegation, decision)
        match decision:
            case Real():
                parentage = Parentage(session, message, asked["callId"])
                self._create_child(parentage, delegation, decision.creation)
            case Recorded():
                self._settle(session, message, decision.result)
            case Refused():
                result = refusal(asked["callId"], decision.message)
                self._settle(session, message, result)

    def _create_child(
        self, parentage: Parentage, delegation: Delegation, creation: Creation
    ) -> None:
        parent, request, call_id = parentage
        seed = parent.log.events[: delegation.seed_length]
        try:
            child = self._tree.add(creation, seed, delegation.path, parentage)
        except SeedError as error:
            reason, why = "seed-refused", str(error)
            self._tree.director.on_refused(creation.header.id, reason, why)
            self._endings.tell(parent, request, refusal(call_id, why))
        else:
            self._endings.announce(child)

    def _delegation(
        self, session: HubSession, message: Delegate, asked: JsonObject
    ) -> Delegation:
        spawned_by = SpawnedBy(
            turn=message.turn,
            step=message.step,
            context=message.context,
            block=message.block,
            n=message.n,
            key=message.key,
            call_id=asked["callId"] or None,
        )
        is_fork = message.context == "fork"
        return Delegation(
            parent_id=session.id,
            path=child_path(session.path, spawned_by),
            spawned_by=spawned_by,
            depth=session.depth + 1,
            prompt=asked["prompt"],
            description=asked["description"],
            seed_length=session.log.turns.balanced_length if is_fork else 0,
        )

    def _limited(
        self, delegation: Delegation, decision: DelegationDecision
    ) -> DelegationDecision:
        limit = self._tree.director.limits.max_depth
        if isinstance(decision, Real) and delegation.depth > limit:
            return Refused(f"depth {delegation.depth} exceeds the limit of {limit}")
        return decision

    def _settle(
        self, session: HubSession, message: Delegate, result: JsonObject
    ) -> None:
        self._endings.tell(session, message, result)

    # --- the end ---------------------------------------------------------------

    def result(self, session: HubSession, message: Result) -> None:
        """Let the worker go once everything it said is durable."""
        session.require("a result", State.RUNNING)
        if session.has_result:
            raise WireError("a second result")
        session.has_result = True
        session.waits_for = "its last events to be durable"
        session.when_asked(message.length, lambda: self._close(session, message))

    def _close(self, session: HubSession, message: Result) -> None:
        if session.state is not State.RUNNING:
            return
        if message.length != len(session.log):
            raise WireError(
                f"a result after {message.length} events, "
                f"the log has {len(session.log)}"
            )
        if session.log.turns.turn is not None:
            raise WireError(f"a result with turn {session.log.turns.turn} open")
        session.state = State.FINISHING
        session.waits_for = "its worker to say goodbye"
        self._tree.say(session, Close(session.sid))


def cut(text: str) -> str:
    """Return the beginning of what a worker said, for a message of our own."""
    return text if len(text) <= 80 else f"{text[:80]}…"


def refusal(call_id: str, why: str) -> JsonObject:
    """Build the tool result that tells a model that it may not delegate."""
    text = {"type": "text", "text": f"Error: the delegation was refused: {why}"}
    block = {
        "type": "tool-result",
        "toolCallId": call_id,
        "content": [text],
        "isError": True,
    }
    return {
        "block": block,
        "error": {"name": "DelegationRefusedError", "code": "DELEGATION_REFUSED"},
    }


def _strings(body: bytes, *keys: str) -> JsonObject:
    """Read a request's body, an object whose `keys` are strings."""
    try:
        asked = loads(body)
    except JsonDomainError as error:
        raise WireError(f"a request is not readable: {error}") from None
    if type(asked) is not dict:
        raise WireError("a request is no object")
    for key in keys:
        if type(asked.get(key)) is not str:
            raise WireError(f"{key} of a request must be a string")
    return asked
