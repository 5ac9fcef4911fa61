"""The driver: runs trees of agents, one process a session.

::

    async with Driver(providers={"mine": my_stream}) as driver:
        run = await driver.start("my_agents.py:researcher", "Compare the proposals")
        async for grown in run.events():
            ...
        result = await run.result()
        await run.send("And the cheapest one?")
        result = await run.result()

From asyncio and from trio. Providers run in the event loop of the caller; the hub and
the workers do not, so that a caller who blocks its loop holds up answers and nothing
else.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from types import TracebackType
from typing import Final, Protocol, Self

import anyio

from nestling.driver.caller_loop_io import CallerLoop
from nestling.driver.director import Limits, Prompt
from nestling.driver.hub_io import Bounds
from nestling.driver.hub_thread_io import HubThread
from nestling.driver.instructions import Notice
from nestling.driver.launcher_io import Launcher
from nestling.driver.launcher_name import LauncherName
from nestling.driver.live_director import LiveDirector, Watcher
from nestling.driver.providers_io import Providers
from nestling.driver.run_io import start
from nestling.driver.started_run_io import StartedRun, prompt_blocks
from nestling.driver.template_launcher_io import launcher_of
from nestling.session.errors import AgentReferenceError, JsonDomainError, NestlingError
from nestling.session.jsontext import JsonObject, check, copied
from nestling.session.request import Provider
from nestling.wire.agent_reference import IMPORTING, absolute, parse_reference

UNBOUNDED: Final = Bounds(math.inf, math.inf)


class Referable(Protocol):
    """An agent that knows how another process finds it (``nestling.worker.Agent``)."""

    @property
    def reference(self) -> str:
        """Its agent reference."""
        ...


class Driver:
    """Runs agents; an asynchronous context manager."""

    def __init__(
        self,
        *,
        providers: Mapping[str, Provider] | None = None,
        launcher: LauncherName | str | Launcher = LauncherName.AUTO,
        limits: Limits | None = None,
        bounds: Bounds = UNBOUNDED,
    ) -> None:
        """Prepare to run agents.

        Args:
            providers: who answers model calls, by the name that stands before the slash
                in an agent's ``model``; ``*`` answers for every other name. Each is an
                async generator function that takes a ``Request`` and yields chunks.
            launcher: how workers start: ``auto``, ``template``, ``exec``, or a launcher.
            limits: bounds of each run.
            bounds: when a run is over though it has not ended; never by default.

        Raises:
            ValueError: if the limits make no sense, or no launcher has that name.
        """
        self._providers = dict(providers or {})
        self._limits = Limits() if limits is None else limits.checked()
        self._bounds = bounds
        self._launcher: Launcher
        if isinstance(launcher, str):
            self._launcher = launcher_of(LauncherName(launcher))
        else:
            self._launcher = launcher
        self._stack = AsyncExitStack()
        self._runs: list[StartedRun] = []
        self._caller = CallerLoop()
        self._was_entered = self._is_open = False

    async def __aenter__(self) -> Self:
        """Begin to work; a template stays warm between runs."""
        if IMPORTING:
            raise NestlingError(
                f"{IMPORTING[-1]} starts a driver when it is imported, and every worker "
                'imports it: put that under `if __name__ == "__main__":`, or move the '
                "agent to a module of its own"
            )
        if self._was_entered:
            raise NestlingError("a driver is entered once")
        self._was_entered = True
        async with AsyncExitStack() as stack:
            if isinstance(self._launcher, AbstractContextManager):
                stack.enter_context(self._launcher)
            await stack.enter_async_context(self._caller)
            self._stack = stack.pop_all()
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End every run: orderly what has nothing left to do, now what still works."""
        self._is_open = False
        try:
            with anyio.CancelScope(shield=True):
                for run in self._runs:
                    run.release_or_abort(is_hasty=error is not None)
                for run in self._runs:
                    await run.ended()
                await self._caller.settle()
        finally:
            for run in self._runs:
                run.thread.abort()  # what was not waited for, if this was cut short
            # The caller's error is the caller's: it is not to be wrapped in a group.
            await self._stack.__aexit__(None, None, None)

    async def start(
        self,
        agent: str | Referable,
        prompt: str | Prompt | Sequence[str],
        *,
        session_id: str | None = None,
        options: JsonObject | None = None,
    ) -> StartedRun:
        """Start an agent in a process of its own.

        Args:
            agent: an agent reference, ``module:name`` or ``path/file.py:name`` (relative
                to the working directory), or an agent that has one.
            prompt: what the user says: a text, or content blocks; or several texts, each
                of which is told when the turn before it has ended.
            session_id: the id of the root session; by default one that is new.
            options: what the agent's code finds in ``Turn.options``; a JSON object.

        Raises:
            AgentReferenceError: if no other process can load the agent.
            JsonDomainError: if the prompt or the options are no JSON, or the id is
                no string.
            LaunchError: if there is no room for the run.
        """
        if not self._is_open:
            raise NestlingError("a driver starts agents inside of `async with`")
        reference = _reference(agent)
        found = str(absolute(parse_reference(reference), os.getcwd()))
        if session_id is not None and not isinstance(session_id, str):
            raise JsonDomainError(f"a session's id is a string, found {session_id!r}")
        options = {} if options is None else options
        if type(options) is not dict:
            raise JsonDomainError(f"options must be a JSON object, found {options!r}")
        check(options)
        options = copied(options)  # the hub's thread reads them when it gets to it
        prompts = _prompts(prompt)
        run = StartedRun(session_id or new_id(), len(prompts), self._caller)
        director = LiveDirector(
            run.session_id,
            found,
            prompts,
            lambda: time.time_ns() // 1_000_000,
            Watcher(run.grown, run.idle, run.settled),
            self._limits,
            options,
            is_open=True,
        )
        run.thread = HubThread(
            director,
            self._launcher,
            self._bounds,
            _ignore,
            Providers(self._providers, self._caller),
            lambda: self._caller.post(run.thread_ended),
        )
        start(run.thread)
        self._runs.append(run)
        self._caller.start(run.watch)
        return run


def new_id() -> str:
    """Return the id of a new root session."""
    return f"r-{secrets.token_hex(6)}"


def _reference(agent: object) -> str:
    found = agent if isinstance(agent, str) else getattr(agent, "reference", None)
    if isinstance(found, str):
        return found
    raise AgentReferenceError(
        f"{agent!r} has no reference, expected module:name or path/file.py:name, "
        "or an Agent"
    )


def _prompts(prompt: str | Prompt | Sequence[str]) -> list[Prompt]:
    is_list = isinstance(prompt, list | tuple)
    if is_list and any(isinstance(each, str) for each in prompt):
        return [prompt_blocks(each) for each in prompt]
    return [prompt_blocks(prompt)]


def _ignore(_: Notice) -> None:
    """Watch nothing."""
