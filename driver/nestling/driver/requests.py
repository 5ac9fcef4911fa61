"""What running sessions ask for: answers to calls, tool results, children."""

from __future__ import annotations

from nestling.driver.director import (
    Answer,
    Asked,
    CallRequest,
    Creation,
    Delegation,
    DelegationDecision,
    Prompt,
    Real,
    Recorded,
    Refused,
    Run,
    ToolRequest,
    too_deep,
)
from nestling.driver.endings import Endings
from nestling.driver.hub_session import HubSession, Parentage, State
from nestling.driver.instructions import Allow, Ask, Provided, ProviderEnded
from nestling.driver.streams import AHEAD, OpenCall
from nestling.driver.tree import Tree
from nestling.session.errors import (
    AgentReferenceError,
    JsonDomainError,
    ProviderError,
    SeedError,
    WireError,
)
from nestling.session.header import SpawnedBy
from nestling.session.jsontext import JsonObject, dumps, loads
from nestling.session.place import Place
from nestling.session.request import rebuild_request
from nestling.session.spawn_path import child_path
from nestling.wire import messages
from nestling.wire.agent_reference import module_of
from nestling.wire.credit import WINDOW_BYTES, WINDOW_FRAMES, Window
from nestling.wire.messages import (
    RUN_TOOL,
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
            session.id,
            message.call,
            message.purpose,
            message.provider,
            message.model,
            message.turn,
            message.step,
        )
        decision = self._tree.director.on_stream(request)
        # A worker may ask for less than the usual window, not for more.
        window = Window(
            min(message.credit_bytes, WINDOW_BYTES),
            min(message.credit_frames, WINDOW_FRAMES),
        )
        answer = None if isinstance(decision, Asked) else decision
        session.call = OpenCall(request, answer, window)
        self._tree.progress += 1
        self._tree.notice(session, f"call {message.call + 1}")
        if isinstance(decision, Asked):
            asked = rebuild_request(session.log)
            ask = Ask(session.sid, message.call, decision.provider, asked, AHEAD)
            self._tree.orders.append(ask)
        self._serve(session, session.call)

    def provided(self, session: HubSession, event: Provided) -> None:
        """Take in what a provider has yielded, and serve it."""
        call = self._asked(session, event.call)
        if call is None:
            return
        try:
            for chunk in event.chunks:
                call.grow(chunk)
        except ProviderError as error:
            self._tree.dismiss(session)
            call.finish(dict(error.failure()))
        self._serve(session, call)

    def provider_ended(self, session: HubSession, event: ProviderEnded) -> None:
        """Take in how a provider's answer ends."""
        call = self._asked(session, event.call)
        if call is not None:
            call.finish(event.failure)
            self._serve(session, call)

    def _asked(self, session: HubSession, number: int) -> OpenCall | None:
        """Return the call that a provider speaks of, if it still waits for it."""
        call = session.call
        if call is None or call.request.number != number or call.answer is not None:
            return None
        return call if session.state is State.RUNNING else None

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
        if call.answer is None:
            allowed = call.allowance()
            if allowed is not None:
                self._tree.orders.append(Allow(sid, number, allowed))
        elif call.is_served and not call.is_closed:
            self._close_call(session, call, call.answer)

    def _close_call(self, session: HubSession, call: OpenCall, answer: Answer) -> None:
        number, sid = call.request.number, session.sid
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
        place = Place(message.turn, message.step, message.block)
        session.step.claim_tool(place, asked["callId"], message.length)
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
        answer = ToolResult(session.sid, message.turn, message.step, message.block)
        if isinstance(decision, Recorded):
            self._tree.say(session, answer, dumps(decision.result))
        elif isinstance(decision, Run):
            self._tree.say(session, answer, RUN_TOOL)

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
        place = Place(message.turn, message.step, message.block, message.n, message.key)
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
            agent=_agent(asked, session.creation.agent),
            options=_options(asked),
        )

    def _limited(
        self, delegation: Delegation, decision: DelegationDecision
    ) -> DelegationDecision:
        limit = self._tree.director.limits.max_depth
        if not isinstance(decision, Real):
            return decision
        if delegation.depth > limit:
            return too_deep(delegation, limit)
        try:
            module_of(decision.creation.agent)
        except AgentReferenceError as error:
            return Refused(str(error))
        return decision

    def _settle(
        self, session: HubSession, message: Delegate, result: JsonObject
    ) -> None:
        self._endings.tell(session, message, result)

    # --- the end ---------------------------------------------------------------

    def prompted(self, session: HubSession, prompt: Prompt) -> None:
        """Tell a session something more, when it has done what it was told before."""
        session.prompts.append(prompt)
        if session.state is State.IDLE:
            session.state = State.RUNNING
            self.prompt_next(session)

    def prompt_next(self, session: HubSession) -> None:
        """Begin a session's next turn, if it is told one."""
        if session.prompts:
            body = dumps(list(session.prompts.popleft()))
            session.has_result = False
            session.prompted += 1
            self._tree.progress += 1
            self._tree.say(session, messages.Prompt(session.sid), body)

    def released(self, session: HubSession) -> None:
        """Let a session end once it has done what it was told."""
        session.is_open = False
        if session.state is State.IDLE:
            self._finish(session)

    def result(self, session: HubSession, message: Result) -> None:
        """Go on to what follows once everything the worker said is durable."""
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
        if session.prompts:
            self.prompt_next(session)
        elif session.is_open:
            session.state = State.IDLE
            session.waits_for = "a prompt"
            outcome = session.outcome()
            self._tree.director.on_idle(session.id, session.prompted, outcome)
        else:
            self._finish(session)

    def _finish(self, session: HubSession) -> None:
        session.state = State.FINISHING
        session.waits_for = "its worker to say goodbye"
        self._tree.say(session, Close(session.sid))


def _agent(asked: JsonObject, default: str) -> str:
    agent = asked.get("agent", default)
    if type(agent) is not str:
        raise WireError("the agent of a delegation must be a string")
    return agent


def _options(asked: JsonObject) -> JsonObject:
    options = asked.get("options", {})
    if type(options) is not dict:
        raise WireError("the options of a delegation must be an object")
    return options


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
