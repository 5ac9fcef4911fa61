"""Agents: what a session is run by.

::

    researcher = Agent(
        "openai/gpt-5",
        system="You compare proposals.",
        tools=[read_proposal, subagent],
    )

An agent is assigned to a name at the top level of a module, by which worker processes
find it: ``my_agents.py:researcher``. An ``async def`` that takes one argument, a ``Turn``,
is an agent, too, for loops of one's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias

from nestling.session.errors import AgentError
from nestling.session.jsontext import JsonObject, check, copied, is_int0
from nestling.worker.reply import Reply, Result
from nestling.worker.retry import RetryPolicy
from nestling.worker.tools import AnyTool, toolbox

MOST_STEPS: Final = 100
"""How many steps a turn may have by default."""


class Steps(Protocol):
    """What the loop needs of a turn (``nestling.worker.Turn``)."""

    async def stream(self) -> Reply:
        """Call the model."""
        ...

    async def run_tools(self, reply: Reply) -> list[Result]:
        """Run the tools that a message calls."""
        ...


class Agent:
    """A model, what it is told, and what it may call, with the usual loop.

    The loop: the model is called; the tools that it calls run at the same time, and
    their results are logged in the order of the calls; the model is called again, until
    it calls no tool.

    Attributes:
        model: ``provider/model``.
        system: the system prompt.
        tools: the tools by name, in the order given.
        options: model options, as the provider finds them in ``Request.config``.
        retry: when a failed call is tried again.
        max_steps: how many steps a turn may have.
        subagent: the agent, the reference of one, or the async function that children
            run; the same one as their parent where it is None.
    """

    def __init__(
        self,
        model: str,
        system: str | None = None,
        tools: Iterable[AnyTool] = (),
        *,
        options: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
        max_steps: int = MOST_STEPS,
        subagent: AnyAgent | None = None,
    ) -> None:
        """Make an agent.

        Args:
            model: ``provider/model``: which of the driver's providers answers, and with
                which of its models.
            system: the system prompt; None for none.
            tools: functions marked with ``@tool``, ``subagent``, ``subagent_fork``.
            options: model options, JSON: temperature and the like.
            retry: when a failed call is tried again; see ``RetryPolicy`` for the default.
            max_steps: how many steps a turn may have, at least 1; the turn fails beyond.
            subagent: what children run.

        Raises:
            AgentError: if the model is not written so, ``max_steps`` is no count, or
                the options name a model.
            ToolSignatureError: if a tool is none, or two have one name.
            JsonDomainError: if the options are no JSON.
        """
        split_model(model)
        if not is_int0(max_steps) or max_steps < 1:
            raise AgentError(f"max_steps must be at least 1, found {max_steps!r}")
        self.model = model
        self.system = system
        self.tools = toolbox(tools)
        self.options = checked_options(options)
        self.retry = RetryPolicy() if retry is None else retry
        self.max_steps = max_steps
        self.subagent = subagent

    def __repr__(self) -> str:
        """Return what tells it from others."""
        return f"Agent({self.model!r}, tools={list(self.tools)})"

    @property
    def reference(self) -> str:
        """The agent reference by which another process finds it.

        Raises:
            AgentReferenceError: if no other process can; the message says what to do.
        """
        # Only who asks pays for it: a worker is given its reference.
        from nestling.worker.references_io import reference_of

        return reference_of(self)

    async def run_turn(self, turn: Steps) -> None:
        """Run one turn.

        Raises:
            AgentError: if the turn has more steps than it may.
            ModelCallError: if a call failed and is not tried again.
        """
        for _ in range(self.max_steps):
            reply = await turn.stream()
            if not reply.tool_calls:
                return
            await turn.run_tools(reply)
        raise AgentError(f"the turn had {self.max_steps} steps, its limit")


AnyAgent: TypeAlias = Agent | str | Callable[..., Awaitable[None]]
"""What a child runs: an agent, the reference of one, or an async function."""


def checked_options(options: Mapping[str, Any] | None) -> JsonObject:
    """Return a copy of model options, which name neither provider nor model.

    Raises:
        AgentError: if they do: ``model`` says both.
        JsonDomainError: if they are no JSON.
    """
    own = dict(options or {})
    check(own)
    for name in ("provider", "model"):
        if name in own:
            raise AgentError(f"model options have no {name}, found {own[name]!r}")
    copy: JsonObject = copied(own)
    return copy


def split_model(model: object) -> tuple[str, str]:
    """Return the provider and the model that ``provider/model`` names.

    Raises:
        AgentError: if it is not written so.
    """
    provider, slash, name = (
        model.partition("/") if isinstance(model, str) else ("",) * 3
    )
    if not (provider and slash and name):
        raise AgentError(f"a model is written provider/model, found {model!r}")
    return provider, name
