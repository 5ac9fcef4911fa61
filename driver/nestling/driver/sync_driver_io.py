"""The driver for code that is not asynchronous.

::

    with SyncDriver(providers={"mine": my_stream}) as driver:
        run = driver.start("my_agents.py:researcher", "Compare the proposals")
        print(run.result().text)

The event loop in which providers run is in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from nestling.driver.director import Prompt
from nestling.driver.driver_io import Driver, Referable
from nestling.driver.exits import Log
from nestling.driver.live_director import Grown
from nestling.driver.started_run_io import RunResult, StartedRun
from nestling.session.errors import NestlingError
from nestling.session.jsontext import JsonObject


class SyncDriver:
    """Runs agents; a context manager. See ``Driver`` for what it takes."""

    def __init__(self, **arguments: Any) -> None:
        """Prepare to run agents, with the arguments of ``Driver``."""
        self._driver = Driver(**arguments)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        """Begin to work."""
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(self._portal.wrap_async_context_manager(self._driver))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """End every run, as ``Driver`` does."""
        self._portal = None
        return self._stack.__exit__(kind, error, traceback)

    def start(
        self,
        agent: str | Referable,
        prompt: str | Prompt | Sequence[str],
        *,
        session_id: str | None = None,
        options: JsonObject | None = None,
    ) -> SyncRun:
        """Start an agent in a process of its own; see ``Driver.start``."""
        portal = self._require_open()
        start = partial(
            self._driver.start, agent, prompt, session_id=session_id, options=options
        )
        return SyncRun(portal.call(start), portal)

    def resume(
        self,
        session_id: str,
        prompt: str | Prompt | Sequence[str] | None = None,
        *,
        agent: str | Referable | None = None,
        options: JsonObject | None = None,
    ) -> SyncRun:
        """Go on with a session of the store; see ``Driver.resume``."""
        portal = self._require_open()
        resume = partial(
            self._driver.resume, session_id, prompt, agent=agent, options=options
        )
        return SyncRun(portal.call(resume), portal)

    def _require_open(self) -> BlockingPortal:
        if self._portal is None:
            raise NestlingError("a driver starts agents inside of `with`")
        return self._portal


class SyncRun:
    """One tree of sessions; made by ``SyncDriver.start`` or ``resume``."""

    def __init__(self, run: StartedRun, portal: BlockingPortal) -> None:
        self._run = run
        self._portal = portal

    @property
    def session_id(self) -> str:
        """The id of its root."""
        return self._run.session_id

    @property
    def logs(self) -> Mapping[str, Log]:
        """See ``StartedRun.logs``."""
        return self._run.logs

    @property
    def printed(self) -> Mapping[str, str]:
        """See ``StartedRun.printed``."""
        return self._run.printed

    def result(self) -> RunResult:
        """See ``StartedRun.result``."""
        return self._portal.call(self._run.result)

    def send(self, prompt: str | Prompt) -> None:
        """See ``StartedRun.send``."""
        self._portal.call(self._run.send, prompt)

    def close(self) -> Mapping[str, Log]:
        """See ``StartedRun.close``."""
        return self._portal.call(self._run.close)

    def events(self) -> Iterator[Grown]:
        """See ``StartedRun.events``."""
        events = self._run.events()

        async def following() -> Grown | None:
            return await anext(events, None)

        while (grown := self._portal.call(following)) is not None:
            yield grown
