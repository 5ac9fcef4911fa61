"""What running sessions ask for: tool results and children (calls: see ``calls``)."""

from __future__ import annotations

from nestling.driver.cancels import Cancels
from nestling.driver.director import (
    CancelInstead,
    Creation,
    Delegation,
    DelegationDecision,
    Real,
    Recorded,
    Refused,
    Run,
    ToolRequest,
    Unanswered,
    too_deep,
)
from nestling.driver.endings import Endings, given_up, settled
from nestling.driver.hub_session import HubSession, Parentage, State
from nestling.driver.tree import Tree
from nestling.session.errors import (
    AgentReferenceError,
    JsonDomainError,
    SeedError,
    WireError,
)
from nestling.session.header import SpawnedBy
from nestling.session.jsontext import JsonObject, dumps, loads
from nestling.session.place import Place
from nestling.session.spawn_path import child_path
from nestling.wire.agent_reference import module_of
from nestling.wire.messages import (
    RUN_TOOL,
    Delegate,
    Tool,
    ToolResult,
)


class Requests:
    """Answers the requests of running sessions.

    Every request names the length of the log that it was made from. It is held against
    that log when it comes, and answered once that much is durable, never before.
    """

    def __init__(self, tree: Tree, endings: Endings, cancels: Cancels) -> None:
        self._tree = tree
        self._endings = endings
        self._cancels = cancels

    # --- tools -----------------------------------------------------------------

    def tool(self, session: HubSession, message: Tool, body: bytes) -> None:
        """Answer a tool call once it is durable."""
        session.require("a tool request", State.RUNNING)
        asked = _strings(body, "callId", "name", "arguments")
        session.waits_for = f"the result of tool {cut(asked['name'])}"
        place = Place(message.turn, message.step, message.block)
        session.when_asked(
            message.length,
            lambda: self._answer_tool(session, message, asked),
            lambda: session.step.claim_tool(place, asked["callId"], message.length),
        )

    def _answer_tool(
        self, session: HubSession, message: Tool, asked: JsonObject
    ) -> None:
        if session.state is not State.RUNNING:
            return
        answer = ToolResult(session.sid, message.turn, message.step, message.block)
        if session.cancelling is not None:
            self._tree.say(session, answer, dumps(_cancelled(asked["callId"])))
            return
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
            self._tree.say(session, answer, dumps(decision.result))
        elif isinstance(decision, Run):
            self._tree.say(session, answer, RUN_TOOL)
        elif isinstance(decision, Unanswered):
            self._endings.leave_open(session, answer, asked["callId"])
        elif isinstance(decision, CancelInstead):
            # What was called before it has its result first, on every schedule.
            length = len(session.log) + session.step.owed_before(message.block)
            said = answer, dumps(given_up(asked["callId"]))

            def cancelled(at: CancelInstead = decision) -> bool:
                if session.state is State.RUNNING:
                    if len(session.log) < length or not self._cancels.stated(*at):
                        return False
                    self._tree.say(session, *said)
                return True

            self._tree.when_due(cancelled)

    # --- children --------------------------------------------------------------

    def delegate(self, session: HubSession, message: Delegate, body: bytes) -> None:
        """Create a child, or answer in its place, once the request is durable."""
        session.require("a delegation", State.RUNNING)
        asked = _strings(body, "callId", "prompt", "description")
        place = Place(message.turn, message.step, message.block, message.n, message.key)
        session.when_asked(
            message.length,
            lambda: self._delegate(session, message, asked),
            lambda: session.step.claim(place, asked["callId"], message.length),
        )

    def _delegate(
        self, session: HubSession, message: Delegate, asked: JsonObject
    ) -> None:
        if session.state is not State.RUNNING or self._tree.is_aborting:
            return
        if session.cancelling is not None:
            self._settle(session, message, _cancelled(asked["callId"]))
            return
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
            case Unanswered():
                self._endings.leave_open(
                    session, settled(session, message), asked["callId"]
                )

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


def _cancelled(call_id: str) -> JsonObject:
    """Build the result of what was asked for in a turn that is cancelled."""
    text = {"type": "text", "text": "Error: the turn was cancelled"}
    block = {
        "type": "tool-result",
        "toolCallId": call_id,
        "content": [text],
        "isError": True,
    }
    error = {"name": "AbortError", "code": "ABORTED_BEFORE_DISPATCH"}
    return {"block": block, "error": error}


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
