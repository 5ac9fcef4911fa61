"""The children of a live session: where each stands, and what each runs."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from nestling.session.delegation import FORK_TOOL, parse_arguments
from nestling.session.errors import AgentError, ToolArgumentError
from nestling.session.jsontext import JsonObject, check
from nestling.session.place import Place
from nestling.wire.agent_reference import absolute, parse_reference
from nestling.wire.codec import size_problem
from nestling.wire.messages import Context
from nestling.worker.agent import Agent, AnyAgent
from nestling.worker.endpoint import Endpoint
from nestling.worker.references_io import reference_of
from nestling.worker.reply import Result, result_of
from nestling.worker.tool_calls import PendingTool

LONGEST_KEY: Final = 256
"""A key has at most so many characters."""


class Children:
    """Delegates for one session."""

    def __init__(
        self,
        endpoint: Endpoint,
        reference: str,
        until: Callable[[Callable[[], bool]], Awaitable[None]],
    ) -> None:
        """Prepare to delegate.

        Args:
            endpoint: the session's.
            reference: the reference of the session's own agent.
            until: waits until a condition holds.
        """
        self._endpoint = endpoint
        self._reference = reference
        self._until = until
        self._counts: Counter[Place] = Counter()
        self._keys: set[Place] = set()
        self._uncounted: set[Place] = set()

    def delegate_by(self, tool: PendingTool, agent: AnyAgent | None) -> None:
        """Delegate by a tool call; one that cannot be is told so as a tool's result."""
        try:
            arguments = parse_arguments(tool.arguments)
        except ToolArgumentError:
            self._endpoint.ask_tool(tool)
            return
        if arguments.background:
            self._endpoint.ask_tool(tool)
            return
        asked: JsonObject = {
            "callId": tool.call_id,
            "prompt": arguments.prompt,
            "description": arguments.description,
            "agent": self._named(agent),
        }
        context: Context = "fork" if tool.name == FORK_TOOL else "spawn"
        place = Place(*self._endpoint.loop.place, tool.block)
        self._endpoint.delegate(place, context, asked)

    async def delegate(
        self,
        asked: JsonObject,
        key: str | None,
        fork: bool,
        agent: AnyAgent | None,
        tool: PendingTool | None,
    ) -> Result:
        """Delegate by code, and wait for what the child comes to.

        Args:
            asked: ``prompt``, ``description`` and maybe ``options``.
            key: the code's name for it.
            fork: whether the child starts with the completed turns so far.
            agent: what it runs; the session's own agent by default.
            tool: the tool call whose body the code is in.

        Raises:
            AgentError: if it cannot be told apart from another one, or a text is none.
        """
        for name in ("prompt", "description"):
            if not isinstance(asked[name], str):
                found = asked[name]
                raise AgentError(f"{name} must be a string, found {found!r}")
        check(asked)
        problem = size_problem(asked)
        if problem is not None:
            raise AgentError(f"the delegation is {problem}")
        called = "" if tool is None else tool.call_id
        asked = {**asked, "callId": called, "agent": self._named(agent)}
        place = self._placed(key, tool)
        try:
            self._endpoint.delegate(place, "fork" if fork else "spawn", asked)
            settled = self._endpoint.settled
            await self._until(lambda: place in settled)
        finally:
            self._uncounted.discard(_of(place))
        return result_of(self._endpoint.settled.pop(place))

    def _placed(self, key: str | None, tool: PendingTool | None) -> Place:
        turn, step = self._endpoint.loop.place
        here = Place(turn, step, None if tool is None else tool.block)
        if key is not None:
            return self._keyed(here, key)
        if here in self._uncounted:
            raise AgentError(
                "delegations that overlap need keys: delegate(…, key='a')"
                if tool is None
                else "inside a tool one delegation ends before the next one starts"
            )
        self._uncounted.add(here)
        self._counts[here] += 1
        return here._replace(n=self._counts[here] - 1)

    def _keyed(self, here: Place, key: str) -> Place:
        if here.block is not None:
            raise AgentError("inside a tool a delegation has no key")
        is_text = isinstance(key, str) and 0 < len(key) <= LONGEST_KEY
        # A lone surrogate is half a character, which no path can hold.
        if not is_text or any("\ud800" <= char <= "\udfff" for char in key):
            raise AgentError(
                f"a key has 1 to {LONGEST_KEY} whole characters, found {key!r}"
            )
        place = here._replace(key=key)
        if place in self._keys:
            raise AgentError(f"the key {key!r} was used before in this step")
        self._keys.add(place)
        return place

    def _named(self, agent: AnyAgent | None) -> str:
        """Return the reference of what a child runs."""
        if agent is None:
            return self._reference
        if not (isinstance(agent, str | Agent) or callable(agent)):
            raise AgentError(
                "a child runs an Agent, the reference of one or an async function, "
                f"found {agent!r}"
            )
        text = agent if isinstance(agent, str) else reference_of(agent)
        return str(absolute(parse_reference(text), self._folder()))

    def _folder(self) -> str:
        """Return where relative references start: beside the agent's own module."""
        own = parse_reference(self._reference)
        if own.is_file:
            return os.path.dirname(own.module)
        file = getattr(sys.modules.get(own.module), "__file__", None)
        return os.getcwd() if file is None else os.path.dirname(os.path.abspath(file))


def _of(place: Place) -> Place:
    return Place(place.turn, place.step, place.block)
