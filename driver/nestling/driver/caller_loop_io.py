"""The event loop of the caller, as the hub's threads reach it: without waiting for it.

What a thread posts is run in the loop, in order, when the loop gets to it. A caller who
blocks its loop so holds up nothing but what has to run there.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Final, Self

import anyio
import anyio.abc

PATIENCE: Final = 5.0
"""Seconds after which it is said what holds up whoever leaves."""

_MANY: Final = 4096
_log: Final = logging.getLogger(__name__)


class CallerLoop:
    """Runs what other threads post, and tasks; an asynchronous context manager."""

    def __init__(self, patience: float = PATIENCE) -> None:
        """Prepare to run what is posted.

        Args:
            patience: seconds after which it is said what does not end; once.
        """
        self._patience = patience
        self._posted: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._scopes: dict[anyio.CancelScope, str] = {}

    async def __aenter__(self) -> Self:
        """Begin to listen.

        Raises:
            OSError: if there are no descriptors left.
        """
        self._left = anyio.Event()
        self._reading, self._writing = socket.socketpair()
        for end in (self._reading, self._writing):
            end.setblocking(False)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self.start(self._serve, "the loop of what is posted")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Cancel what was started, and wait until it has ended.

        However long that takes: no task is left behind in the loop of another. What
        takes longer than a while is named, in a warning of this module's logger.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self._close)
            stack.push_async_exit(self._tasks)
            with anyio.CancelScope(shield=True):
                await self._settle()
        return None

    def post(self, call: Callable[[], None]) -> None:
        """Have `call` run in the loop; from any thread, and never blocking.

        It is too late for a loop that is closed.
        """
        self._posted.append(call)
        with self._lock, suppress(OSError):  # full: it will wake anyway; or closed
            self._writing.send(b"\0")

    def start(
        self, work: Callable[[], Awaitable[None]], name: str
    ) -> anyio.CancelScope:
        """Start a task, in the loop's thread only; return the scope that ends it.

        Nothing else cancels it: who leaves is to end in order what it has started.

        Args:
            work: what it does.
            name: what people call it.
        """
        scope = anyio.CancelScope(shield=True)
        self._scopes[scope] = name
        self._tasks.start_soon(self._within, scope, work)
        return scope

    async def _settle(self) -> None:
        for scope in self._scopes:
            scope.cancel()
        patience = self._patience
        while self._scopes:
            self._left = anyio.Event()
            with anyio.move_on_after(patience) as waiting:
                await self._left.wait()
            if waiting.cancelled_caught:
                patience = math.inf  # it is said once
                names = ", ".join(sorted(set(self._scopes.values())))
                _log.warning("leaving a driver waits for what was cancelled: %s", names)

    def _close(self) -> None:
        with self._lock:
            self._reading.close()
            self._writing.close()

    async def _within(
        self, scope: anyio.CancelScope, work: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            with scope:
                await work()
        finally:
            del self._scopes[scope]
            self._left.set()

    async def _serve(self) -> None:
        while True:
            await anyio.wait_readable(self._reading)
            with suppress(BlockingIOError):
                self._reading.recv(_MANY)
            while self._posted:
                self._posted.popleft()()
