"""The driver: runs trees of agents, one process a session.

::

    async with Driver(providers={"mine": my_stream}) as driver:
        run = await driver.start("my_agents.py:researcher", "Compare the proposals")
        async for grown in run.events():
            ...
        result = await run.result()
        await run.send("And the cheapest one?")
        result = await run.result()

With ``store="sqlite:runs.db"`` the sessions outlive the driver: another one goes on with
them by ``resume``.

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
from functools import partial
from types import TracebackType
from typing import Final, Protocol, Self

import anyio
import anyio.to_thread

from nestling.driver.caller_loop_io import CallerLoop
from nestling.driver.director import Creation, Limits, Prompt
from nestling.driver.hub_io import Bounds
from nestling.driver.hub_thread_io import HubThread
from nestling.driver.instructions import Notice
from nestling.driver.launcher_io import Launcher
from nestling.driver.launcher_name import LauncherName
from nestling.driver.live_director import (
    LiveDirector,
    Watcher,
    new_root,
    resumed_root,
    stated_start,
)
from nestling.driver.providers_io import Providers
from nestling.driver.run_io import start
from nestling.driver.started_run_io import StartedRun, prompt_blocks
from nestling.driver.stated_cancels import CancelPoint, StatedCancels
from nestling.driver.template_launcher_io import launcher_of
from nestling.driver.writer_io import StoreWriter
from nestling.session.boundary import own_events
from nestling.session.errors import AgentReferenceError, JsonDomainError, NestlingError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject, check, copied, shown
from nestling.session.request import Provider
from nestling.session.store_io import SessionStore, open_store
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
        store: str | SessionStore = "memory:",
        providers: Mapping[str, Provider] | None = None,
        launcher: LauncherName | str | Launcher = LauncherName.AUTO,
        limits: Limits | None = None,
        bounds: Bounds = UNBOUNDED,
    ) -> None:
        """Prepare to run agents.

        Args:
            store: where sessions are kept: ``jsonl:DIR``, ``sqlite:FILE``, a store that
                stays the caller's to close, or ``memory:``, which ends with the driver.
            providers: who answers model calls, by the name that stands before the slash
                in an agent's ``model``; ``*`` answers for every other name. Each is an
                async generator function that takes a ``Request`` and yields chunks.
            launcher: how workers start: ``auto``, ``template``, ``exec``, or a launcher.
            limits: bounds of each run.
            bounds: when a run is over though it has not ended; never by default.

        Raises:
            ValueError: if the limits make no sense, or no launcher has that name.
            StoreError: if that is no store's address.
        """
        self._owns_store = not isinstance(store, SessionStore)
        self._store = store if isinstance(store, SessionStore) else open_store(store)
        self._writer = StoreWriter(self._store)
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
            # First in, last out: a provider that does not end holds up nothing else.
            await stack.enter_async_context(self._caller)
            if self._owns_store:
                stack.callback(self._store.close)
            stack.enter_context(self._writer)
            if isinstance(self._launcher, AbstractContextManager):
                stack.enter_context(self._launcher)
            self._stack = stack.pop_all()
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End every run: orderly what has nothing left to do, now what still works.

        Nothing is left of the runs then but their providers, which were cancelled. Those
        are waited for however long they take to end, as any task group does; a warning
        of the logger ``nestling.driver`` names who takes longer than five seconds.
        """
        self._is_open = False
        try:
            with anyio.CancelScope(shield=True):
                for run in self._runs:
                    run.release_or_stop()
                for run in self._runs:
                    await run.ended()
        finally:
            for run in self._runs:  # what was not waited for, if this was cut short
                run.thread.abort()
            for run in self._runs:
                run.thread.join()
            # The caller's error is the caller's: it is not to be wrapped in a group.
            await self._stack.__aexit__(None, None, None)

    async def start(
        self,
        agent: str | Referable,
        prompt: str | Prompt | Sequence[str],
        *,
        session_id: str | None = None,
        options: JsonObject | None = None,
        cancels: Sequence[CancelPoint] = (),
    ) -> StartedRun:
        """Start an agent in a process of its own.

        Args:
            agent: an agent reference, ``module:name`` or ``path/file.py:name`` (relative
                to the working directory), or an agent that has one.
            prompt: what the user says: a text, or content blocks; or several texts, each
                of which is told when the turn before it has ended.
            session_id: the id of the root session; by default one that is new.
            options: what the agent's code finds in ``Turn.options``; a JSON object.
            cancels: where turns are cancelled, at exactly that place on every schedule
                (``StartedRun.cancel`` does so at any time).

        Raises:
            AgentReferenceError: if no other process can load the agent.
            JsonDomainError: if the prompt or the options are no JSON, or the id is
                no string.
            SessionExistsError: if the store holds a session of that id.
            StoreError: if the store cannot be used.
            LaunchError: if there is no room for the run.
        """
        self._require_open()
        found = _located(_reference(agent))
        if session_id is not None:
            _check_id(session_id)
        told = _checked(options)
        prompts = _prompts(prompt)
        root_id = new_id() if session_id is None else session_id
        await anyio.to_thread.run_sync(self._store.require_new, root_id)
        bound = self._limits.tool_seconds
        root = new_root(root_id, _epoch_ms(), found, prompts, told, bound)
        return self._run(root, None, cancels)

    async def resume(
        self,
        session_id: str,
        prompt: str | Prompt | Sequence[str] | None = None,
        *,
        agent: str | Referable | None = None,
        options: JsonObject | None = None,
    ) -> StartedRun:
        """Go on with a session of the store, in a process of its own.

        What a crash left open is closed first, durably: its own turn as interrupted,
        and so the turns of all sessions below it. A child that had done its task is
        delivered as the result of the call that waited for it; one that had not is
        reported there as interrupted. Both happen once, however often this is done.

        Args:
            session_id: a root's, or any other one's.
            prompt: what the user says now, as in ``start``; None to say it later, by
                ``StartedRun.send``. Until then the result is what is stored.
            agent: what it runs this time; by default what it was started with.
            options: as in ``start``; by default those it was started with.

        Raises:
            SessionNotFoundError: if the store holds no such session.
            LeaseError: if it is being written, by this driver or another process.
            CorruptError, UnsupportedError: if it cannot be read faithfully.
            AgentReferenceError: if the session does not say what it runs and `agent` is
                None, or no other process can load the agent.
            JsonDomainError, StoreError, LaunchError: as ``start``.
        """
        self._require_open()
        _check_id(session_id)
        prompts = [] if prompt is None else _prompts(prompt)
        given = None if agent is None else _located(_reference(agent))
        told = None if options is None else _checked(options)
        stored = await anyio.to_thread.run_sync(self._store.resume_tree, session_id)
        try:
            start = stated_start(stored.header)
            found = _stated_reference(stored.header) if given is None else given
            told = start.get("options", {}) if told is None else told
            bound = self._limits.tool_seconds
            root = resumed_root(
                stored.header, stored.events, found, prompts, told, bound
            )
            return self._run(root, stored.events)
        except BaseException:
            self._store.release(session_id)
            raise

    def _require_open(self) -> None:
        if not self._is_open:
            raise NestlingError("a driver starts agents inside of `async with`")

    def _run(
        self,
        root: Creation,
        stored: Sequence[Event] | None,
        cancels: Sequence[CancelPoint] = (),
    ) -> StartedRun:
        stated = StatedCancels(cancels)
        run = StartedRun(root.header.id, len(root.prompts), self._caller, stated)
        if stored is not None:
            run.resumes(own_events(stored, root.header.seed_length))
        director = LiveDirector(
            root,
            _epoch_ms,
            Watcher(run.grown, run.idle, run.settled),
            self._limits,
            stated,
        )
        run.thread = HubThread(
            director,
            self._launcher,
            self._writer,
            self._bounds,
            _ignore,
            Providers(self._providers, self._caller),
            lambda: self._caller.post(run.thread_ended),
            None if stored is None else partial(self._store.release, run.session_id),
        )
        start(run.thread)
        # Those that have ended are their holders' to keep.
        self._runs = [*(each for each in self._runs if not each.is_over), run]
        self._caller.start(run.watch, f"the end of the run {run.session_id}")
        return run


def _epoch_ms() -> int:
    return time.time_ns() // 1_000_000


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


def _check_id(session_id: object) -> None:
    if not isinstance(session_id, str) or not session_id:
        raise JsonDomainError(
            f"a session's id is a string that is not empty, found {session_id!r}"
        )


def _located(reference: str) -> str:
    """Return a reference that leads to the same agent from any directory."""
    return str(absolute(parse_reference(reference), os.getcwd()))


def _stated_reference(header: Header) -> str:
    reference = stated_start(header).get("reference")
    if isinstance(reference, str):
        return reference
    raise AgentReferenceError(
        f"session {shown(header.id)} does not say which agent it runs: pass agent="
    )


def _checked(options: JsonObject | None) -> JsonObject:
    options = {} if options is None else options
    if type(options) is not dict:
        raise JsonDomainError(f"options must be a JSON object, found {options!r}")
    check(options)
    told: JsonObject = copied(options)  # the hub's thread reads them when it gets to it
    return told


def _prompts(prompt: str | Prompt | Sequence[str]) -> list[Prompt]:
    is_list = isinstance(prompt, list | tuple)
    if is_list and any(isinstance(each, str) for each in prompt):
        return [prompt_blocks(each) for each in prompt]
    return [prompt_blocks(prompt)]


def _ignore(_: Notice) -> None:
    """Watch nothing."""
