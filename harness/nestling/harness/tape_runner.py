"""The tape runner: a whole replay in one thread, with no process and no socket.

It drives the real hub, the real worker loop and the real codec, and hands their
messages over itself. What it leaves out is the operating system; so it is the fast
way to see whether a recording replays, and the place where any order of messages can
be tried: each connection stays FIFO, everything else may be shuffled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from nestling.driver.director import Director
from nestling.driver.exits import Exit
from nestling.driver.hub import Hub
from nestling.driver.instructions import (
    Abort,
    Done,
    Durable,
    Exited,
    HubEvent,
    Instruction,
    Kill,
    Launch,
    Launched,
    Persist,
    Received,
    Send,
)
from nestling.driver.tree import Now
from nestling.session.event import Event
from nestling.wire.codec import decode_for_hub, decode_for_worker, encode
from nestling.wire.messages import PROTOCOL, Hello, ToHub
from nestling.worker.agents import pilot_for
from nestling.worker.endpoint import Endpoint

Choose = Callable[[int], int]
"""Given how many things could happen next, says which does."""


def _first(_count: int) -> int:
    return 0


class TapeRunner:
    """Runs one tree in lock-step.

    Attributes:
        stalled: what each session waited for, if the run did not come to its end.
    """

    def __init__(self, director: Director, choose: Choose = _first) -> None:
        """Prepare a run.

        Args:
            director: decides.
            choose: the schedule; the first possible thing by default.
        """
        self.hub = Hub(director)
        self.stalled: list[tuple[str, str]] = []
        self._choose = choose
        self._workers: dict[str, Endpoint] = {}
        self._lines: dict[str, deque[HubEvent | Send]] = {}
        self._clock = 0
        self._is_done = False

    def run(self) -> None:
        """Run the tree until it is done or nothing can happen any more."""
        self._obey(self.hub.start(self._now()))
        while not self._is_done:
            ready = sorted(name for name, line in self._lines.items() if line)
            if not ready:
                self._stall()
                continue
            name = ready[self._choose(len(ready))]
            self._happen(self._lines[name].popleft())

    def logs(self) -> dict[str, Sequence[Event]]:
        """Return the live logs by spawn path."""
        return {session.path: session.log.events for session in self.hub.tree}

    def _stall(self) -> None:
        if self.stalled:
            raise AssertionError(f"an aborted run did not end: {self.hub.waiting()}")
        self.stalled = self.hub.waiting()
        self._tell_hub(Abort("nothing can happen any more"))

    def _now(self) -> Now:
        self._clock += 1
        return Now(self._clock / 1000, self._clock)

    def _happen(self, what: HubEvent | Send) -> None:
        if isinstance(what, Send):
            self._deliver(what)
        else:
            self._tell_hub(what)

    def _tell_hub(self, event: HubEvent) -> None:
        self._obey(self.hub.handle(event, self._now()))

    def _obey(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Launch():
                    self._launch(instruction.launch)
                case Send():
                    self._queue(f"to {instruction.launch}", instruction)
                case Persist():
                    durable = Durable(instruction.sid, instruction.length)
                    self._queue(f"disk {instruction.sid}", durable)
                case Kill():
                    self._kill(instruction.launch)
                case Done():
                    self._is_done = True

    def _queue(self, line: str, what: HubEvent | Send) -> None:
        self._lines.setdefault(line, deque()).append(what)

    # --- workers ---------------------------------------------------------------

    def _launch(self, launch: str) -> None:
        self._workers[launch] = Endpoint(pilot_for, lambda: self._clock)
        pid = 100 + len(self._workers)
        self._queue(f"from {launch}", Launched(launch, pid))
        self._say(launch, Hello(PROTOCOL, "in-process", pid), b"")

    def _say(self, launch: str, message: ToHub, body: bytes) -> None:
        decoded, same_body = decode_for_hub(encode(message, body))
        self._queue(f"from {launch}", Received(launch, decoded, same_body))

    def _deliver(self, send: Send) -> None:
        worker = self._workers.get(send.launch)
        if worker is None:
            return
        message, body = decode_for_worker(encode(send.message, send.body))
        worker.handle(message, body)
        for said, said_body in worker.outbox:
            self._say(send.launch, said, said_body)
        worker.outbox.clear()
        if worker.is_closed:
            self._exit(send.launch, Exit(0, None))

    def _kill(self, launch: str) -> None:
        if launch in self._workers:
            self._exit(launch, Exit(None, "SIGKILL"))

    def _exit(self, launch: str, exit: Exit) -> None:
        del self._workers[launch]
        self._queue(f"from {launch}", Exited(launch, exit))
