"""Feeding paced answers: by the clock, and by gates that somebody else opens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from nestling.driver.instructions import Fed, Feed, HubEvent


class Timer(NamedTuple):
    """A clock that can be waited for.

    Attributes:
        now: returns monotonic seconds.
        sleep: waits for some seconds.
    """

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Held(Protocol):
    """A gate, as the feeder knows it; called in the hub's thread."""

    @property
    def place(self) -> tuple[str, int, int]:
        """The spawn path, the number of the call and the chunk."""
        ...

    def reach(self, opened: Callable[[], None]) -> None:
        """Take note that the gate holds; `opened` is called, from any thread, once."""
        ...


class Feeder:
    """Feeds the paced answers of one run; used on the hub's loop."""

    def __init__(self, gates: Sequence[Held] = (), timer: Timer | None = None) -> None:
        """Prepare to feed.

        Args:
            gates: hold answers.
            timer: a clock; the system's by default.
        """
        self._gates = {gate.place: gate for gate in gates}
        self._timer = Timer() if timer is None else timer
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, feed: Feed, tell: Callable[[HubEvent], None]) -> None:
        """Begin to feed an answer.

        Args:
            feed: which, and when.
            tell: takes in how much of it may be served.
        """
        task = asyncio.get_running_loop().create_task(self._run(feed, tell))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a paced answer", "exception": error}
            task.get_loop().call_exception_handler(context)

    def close(self) -> None:
        """Feed nothing more."""
        for task in self._tasks:
            task.cancel()

    async def _run(self, feed: Feed, tell: Callable[[HubEvent], None]) -> None:
        pace, now = feed.pace, self._timer.now
        due = now()

        def say(released: int, *, gate: bool = False) -> None:
            tell(Fed(feed.sid, feed.call, released, gate))

        for number in range(feed.length + 1):
            if number in pace.gates:
                say(number, gate=True)
                await self._opened(feed.path, pace.call, number)
                say(number)
                due = now()
            wait = pace.waits[number] if number < len(pace.waits) else 0.0
            # Counted from when it was due, not from now: waits do not add up.
            due += wait
            if wait and due > now():
                say(number)
                await self._timer.sleep(due - now())
        say(feed.length + 1)

    async def _opened(self, path: str, call: int, chunk: int) -> None:
        loop = asyncio.get_running_loop()
        opened = asyncio.Event()

        def open_() -> None:
            loop.call_soon_threadsafe(opened.set)

        self._gates[path, call, chunk].reach(open_)
        await opened.wait()
