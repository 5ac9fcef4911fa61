"""The turn: what an agent's code acts through.

One turn is one thing that the user said, and everything that the agent does about it:
steps of one model call and the tools it asks for, delegations, messages of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, Protocol

from nestling.session.errors import AgentError
from nestling.session.jsontext import JsonObject
from nestling.wire.agent_reference import SIDE_CALL
from nestling.wire.brief import Brief
from nestling.worker.agent import Agent, AnyAgent, checked_options, split_model
from nestling.worker.reply import Reply, Result, Seen
from nestling.worker.retry import RetryPolicy
from nestling.worker.tools import AnyTool, toolbox

CURRENT: Final[ContextVar[Turn]] = ContextVar("nestling_turn")


class Call(NamedTuple):
    """What a model call is made with; see ``Turn.stream``."""

    provider: str
    model: str
    options: JsonObject
    system: str | None
    tools: dict[str, AnyTool]
    retry: RetryPolicy


class Session(Protocol):
    """The session that a turn is one of; each verb is told of at ``Turn``'s."""

    id: str
    brief: Brief

    def require(self, turn: int) -> None: ...

    async def stream(self, call: Call) -> Reply: ...

    async def run_tools(self, reply: Reply) -> list[Result]: ...

    async def delegate(
        self,
        prompt: str,
        key: str | None,
        fork: bool,
        agent: AnyAgent | None,
        description: str,
        options: JsonObject,
    ) -> Result: ...

    def messages(self) -> list[Seen]: ...

    def append(self, content: str | Sequence[JsonObject], kind: str) -> int: ...

    def replace(
        self, first: int, last: int, content: str | Sequence[JsonObject]
    ) -> int: ...


def current_turn() -> Turn:
    """Return the turn that the calling code runs in: an agent's, or a tool's.

    Raises:
        AgentError: outside of both.
    """
    try:
        return CURRENT.get()
    except LookupError:
        raise AgentError("no turn is going on here") from None


class Turn:
    """One turn of a session.

    Attributes:
        number: which turn of the session it is, from 1.
        prompt: the text of what the user, or the parent, said.
        session_id: the session's id.
        origin: ``root``; ``spawn`` for a fresh child, ``fork`` for one that was told
            its parent's conversation.
        description: the label that the parent gave this session's task; "" for a root.
        options: what the driver, or the parent's code, told this agent's code.
    """

    def __init__(
        self, session: Session, number: int, prompt: str, agent: Agent | None
    ) -> None:
        self.number = number
        self.prompt = prompt
        self.session_id = session.id
        self.origin = session.brief.origin
        self.description = session.brief.description
        self.options: JsonObject = session.brief.options
        self._session = session
        self._agent = agent

    @property
    def _open(self) -> Session:
        """The session, while this turn is open."""
        self._session.require(self.number)
        return self._session

    @property
    def messages(self) -> list[Seen]:
        """What the model would see now, oldest first; a copy."""
        return self._session.messages()

    async def stream(
        self,
        *,
        model: str | None = None,
        system: str | None = None,
        tools: Iterable[AnyTool] | None = None,
        options: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
    ) -> Reply:
        """Call the model with the conversation so far; a new step begins with it.

        A call that fails is tried again in the same step, as the retry policy says.

        Args:
            model: ``provider/model``; the agent's own by default, as with the others.
            system: the system prompt.
            tools: the tools that the model is shown, and ``run_tools`` knows.
            options: model options, JSON.
            retry: when a failed call is tried again.

        Raises:
            ModelCallError: if it failed and is not tried again.
            AgentError: if a call is open, the last message's tool calls have no results
                yet, no model is named, or the options name one.
            JsonDomainError: if the options are no JSON.
        """
        return await self._open.stream(self._call(model, system, tools, options, retry))

    def _call(
        self,
        model: str | None,
        system: str | None,
        tools: Iterable[AnyTool] | None,
        options: Mapping[str, Any] | None,
        retry: RetryPolicy | None,
    ) -> Call:
        agent = self._agent
        if model is None:
            if agent is None:
                raise AgentError("stream() needs model='provider/model' here")
            model = agent.model
        if agent is not None:
            system = agent.system if system is None else system
            options = agent.options if options is None else options
            retry = agent.retry if retry is None else retry
        if tools is not None:
            box = toolbox(tools)
        else:
            box = {} if agent is None else agent.tools
        provider, name = split_model(model)
        policy = RetryPolicy() if retry is None else retry
        return Call(provider, name, checked_options(options), system, box, policy)

    async def run_tools(self, reply: Reply) -> list[Result]:
        """Run the tools that a message calls, all at the same time.

        A delegation tool starts a child. A tool that fails, does not exist or does not
        take its arguments has a result that tells the model so; and so have those that
        are not waited for, if this is cancelled.

        Returns:
            The results in the order of the calls; the model sees them in its next call.

        Raises:
            AgentError: if `reply` is not the last message, or its tools have run.
        """
        return await self._open.run_tools(reply)

    async def delegate(
        self,
        prompt: str,
        *,
        key: str | None = None,
        fork: bool = False,
        agent: AnyAgent | None = None,
        description: str = "",
        options: Mapping[str, Any] | None = None,
    ) -> Result:
        """Start a child session in a process of its own, and wait for what it comes to.

        Args:
            prompt: the child's task: its first user message.
            key: tells apart delegations that overlap; at most 256 characters, each used
                once in a step. Those without one are counted, one after the other.
            fork: whether the child starts with the completed turns of this session.
            agent: what it runs; by default the agent's ``subagent``, else this agent.
            description: a label for people.
            options: what the child's code finds in ``Turn.options``; JSON.

        Returns:
            What the child came to; a failure is told by ``stop_reason``, not raised.

        Raises:
            AgentError: if delegations overlap without keys, a key is used twice, or one
                is given inside a tool.
        """
        chosen = self._child_agent() if agent is None else agent
        return await self._open.delegate(
            prompt, key, fork, chosen, description, dict(options or {})
        )

    def _child_agent(self) -> AnyAgent | None:
        return None if self._agent is None else self._agent.subagent

    async def ask(
        self,
        prompt: str,
        *,
        model: str | None = None,
        system: str | None = None,
        key: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Result:
        """Make a side call: one question to a model, beside this conversation.

        It is a child session of its own, so that it is logged and replayed like any
        other; it leaves no trace in what this session's model sees.

        Args:
            prompt: the question.
            model: ``provider/model``; the agent's own by default.
            system: the system prompt; none by default.
            key: as for ``delegate``.
            options: model options, JSON.

        Raises:
            AgentError: as ``delegate``; or if no model is named.
        """
        if model is None:
            if self._agent is None:
                raise AgentError("ask() needs model='provider/model' here")
            model = self._agent.model
        split_model(model)
        told = {"model": model, "system": system, "options": checked_options(options)}
        return await self._open.delegate(
            prompt, key, False, SIDE_CALL, "side call", told
        )

    def append(self, content: str | Sequence[JsonObject], kind: str = "agent") -> int:
        """Add a user message to the conversation, which the next call will see.

        Args:
            content: a text, or content blocks.
            kind: who says it, for the log.

        Returns:
            The message's place in the log.

        Raises:
            AgentError: while a call is open, or inside a tool: what a tool has to say
                is its result.
        """
        return self._open.append(content, kind)

    def replace(
        self, first: int, last: int, content: str | Sequence[JsonObject]
    ) -> int:
        """Put one user message in the place of several, for every call from now on.

        The log keeps what it replaces; only the model does not see it any more.

        Args:
            first: the place of the first message that is replaced (``Seen.seq``).
            last: the place of the last one.
            content: a text, or content blocks.

        Returns:
            The new message's place in the log.

        Raises:
            AgentError: if the model does not see such messages, or as ``append``.
        """
        return self._open.replace(first, last, content)
