"""The event loop of the caller, as the hub's threads reach it: without waiting for it.

What a thread posts is run in the loop, in order, when the loop gets to it. A caller who
blocks its loop so holds up nothing but what has to run there.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import anyio
import anyio.abc

_MANY = 4096


class CallerLoop:
    """Runs what other threads post, and tasks; an asynchronous context manager."""

    def __init__(self) -> None:
        self._posted: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._scopes: set[anyio.CancelScope] = set()

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
        self.start(self._serve)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """End; what was started and has not settled is cancelled."""
        for scope in self._scopes:
            scope.cancel()
        try:
            return await self._tasks.__aexit__(kind, error, traceback)
        finally:
            with self._lock:
                self._reading.close()
                self._writing.close()

    def post(self, call: Callable[[], None]) -> None:
        """Have `call` run in the loop; from any thread, and never blocking.

        It is too late for a loop that is closed.
        """
        self._posted.append(call)
        with self._lock, suppress(OSError):  # full: it will wake anyway; or closed
            self._writing.send(b"\0")

    def start(self, work: Callable[[], Awaitable[None]]) -> anyio.CancelScope:
        """Start a task, in the loop's thread only; return the scope that ends it.

        Nothing else cancels it: who leaves is to end in order what it has started.
        """
        scope = anyio.CancelScope(shield=True)
        self._scopes.add(scope)
        self._tasks.start_soon(self._within, scope, work)
        return scope

    async def settle(self) -> None:
        """Cancel what was started, and wait until it has ended."""
        for scope in self._scopes:
            scope.cancel()
        while self._scopes:
            self._left = anyio.Event()
            await self._left.wait()

    async def _within(
        self, scope: anyio.CancelScope, work: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            with scope:
                await work()
        finally:
            self._scopes.discard(scope)
            self._left.set()

    async def _serve(self) -> None:
        while True:
            await anyio.wait_readable(self._reading)
            with suppress(BlockingIOError):
                self._reading.recv(_MANY)
            while self._posted:
                self._posted.popleft()()
