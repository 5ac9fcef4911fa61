"""The hub on its loop: carries out what the core orders, and feeds back what happens.

One thread, one asyncio loop, for one run. Nothing here decides anything about
sessions; what is decided here is when a run that does not move is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from nestling.driver.director import Director
from nestling.driver.exits import Birth, Exit, Log
from nestling.driver.feeder_io import Feeder
from nestling.driver.hub import Hub
from nestling.driver.instructions import (
    Abandon,
    Abort,
    Allow,
    Ask,
    Broken,
    Dismiss,
    Done,
    Dump,
    Exited,
    Feed,
    Flush,
    HangUp,
    HubEvent,
    Instruction,
    Kill,
    Launch,
    Launched,
    Notice,
    NotLaunched,
    Persist,
    Received,
    Release,
    Send,
    Terminate,
    Tick,
)
from nestling.driver.launcher_io import Launcher
from nestling.driver.providers_io import Providers
from nestling.driver.run_directory_io import RunDirectory
from nestling.driver.tree import Now
from nestling.driver.workers_io import GRACE, Workers
from nestling.driver.writer_io import StoreWriter
from nestling.session.errors import NestlingError, WireError
from nestling.wire.admission import Admission
from nestling.wire.agent_reference import module_of
from nestling.wire.codec import decode_for_hub, encode
from nestling.wire.hub_socket_io import HubSocket
from nestling.wire.messages import Bye, Hello

TICK: Final = 0.25
"""Seconds between looks at the clock."""
LAG: Final = 1.0
"""A hub that was this late, in seconds, judges nobody for being silent."""
Ending: TypeAlias = Literal["done", "stall", "timeout", "aborted", "unkillable"]


class Bounds(NamedTuple):
    """When a run is over though its sessions are not.

    Attributes:
        stall: seconds without any progress.
        timeout: seconds in all.
    """

    stall: float = 10.0
    timeout: float = 300.0


class RunEnd(NamedTuple):
    """How a run ended.

    Attributes:
        ending: whether it came to its end, or why it was ended.
        waiting: then, what each session that had not ended waited for, by spawn path.
        births: the last process of each session that had one, by spawn path.
        logs: what each session has left, by spawn path, in the order of creation.
        printed: what the workers of each session printed, by spawn path; the last 64 KiB
            of each.
    """

    ending: Ending
    waiting: list[tuple[str, str]]
    births: dict[str, Birth]
    logs: dict[str, Log]
    printed: dict[str, str]


class HubLoop:
    """Runs one tree; made and used on the hub's own loop, but for ``abort``."""

    def __init__(
        self,
        director: Director,
        run: RunDirectory,
        launcher: Launcher,
        writer: StoreWriter,
        parent_pid: int,
        bounds: Bounds,
        watch: Callable[[Notice], None],
        providers: Providers | None = None,
        feeder: Feeder | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._run = run
        self._hub = Hub(director)
        self._bounds = bounds
        self._watch = watch
        self._providers = providers
        self._feeder = feeder
        self._admission = Admission()
        self._workers = Workers(
            launcher,
            run,
            self._admission,
            parent_pid,
            self._launched,
            self._not_launched,
            self._exited,
        )
        self._socket = HubSocket(run.endpoint, self._admission, self._received)
        self._over: asyncio.Future[Ending] = self._loop.create_future()
        self._ending: Ending = "done"
        self._waiting: list[tuple[str, str]] = []
        self._started = self._last_progress = self._last_tick = self._loop.time()
        self._lost = 0.0  # seconds in which this process did not run
        self._loop.set_exception_handler(self._broke)
        self._writer = writer.run(self.tell_soon)

    # --- the run ---------------------------------------------------------------

    async def run(self) -> RunEnd:
        """Run the tree to its end, and leave no process of it behind."""
        try:
            self._obey(self._hub.start(self._now()))
            self._tick()
            ending = await self._over
        finally:
            await self._close()
        known = self._workers.births
        births = {
            s.path: known[launch]
            for s in self._hub.tree
            for launch in s.launches  # the last one counts
            if launch in known
        }
        logs = {s.path: Log(s.header, tuple(s.log.events)) for s in self._hub.tree}
        printed = {
            s.path: "".join(
                self._run.printed_by(launch) for launch in s.launches if launch in known
            )
            for s in self._hub.tree
            if s.path in births
        }
        return RunEnd(ending, self._waiting, births, logs, printed)

    async def _close(self) -> None:
        """Free everything, also if some of it fails; nothing is started any more."""
        self._over.cancel()  # unless it is over already
        with ExitStack() as stack:
            stack.callback(self._writer.close)
            stack.callback(self._socket.close)
            if self._providers is not None:
                stack.callback(self._providers.close)
            if self._feeder is not None:
                stack.callback(self._feeder.close)
            await self._workers.close()

    def abort(self, ending: Ending) -> None:
        """End the run now; may be called twice, and from the loop's thread only."""
        if self._ending != "done" or self._over.done():
            return
        self._ending = ending
        self._waiting = self._hub.waiting()
        self._tell(Abort(f"the run was ended: {ending}"))
        self._loop.call_later(GRACE, self._give_up)

    def _give_up(self) -> None:
        if not self._over.done():
            self._over.set_result("unkillable")

    def _broke(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Let an error in a callback end the run instead of vanishing in a log."""
        error = context.get("exception")
        if not self._over.done():
            self._over.set_exception(error or NestlingError(context["message"]))

    # --- events ----------------------------------------------------------------

    def _tell(self, event: HubEvent) -> None:
        if self._over.done():
            return  # a late message must not start anything
        before = self._hub.tree.progress
        self._obey(self._hub.handle(event, self._now()))
        if self._hub.tree.progress != before:
            self._last_progress = self._loop.time()

    def _received(self, user: str, routing_id: bytes, frames: list[bytes]) -> None:
        try:
            message, body = decode_for_hub(frames)
            if isinstance(message, Hello):
                self._admit_routing_id(user, routing_id)
        except WireError as error:
            self._tell(Broken(user, str(error)))
            return
        self._workers.heard_from(user, was_last=isinstance(message, Bye))
        self._tell(Received(user, message, body))

    def _admit_routing_id(self, user: str, routing_id: bytes) -> None:
        if routing_id != self._workers.routing_id(user):
            raise WireError("it said hello on a routing id that is not its own")
        self._socket.allow(routing_id, user)

    def _launched(self, launch: str, pid: int) -> None:
        self._tell(Launched(launch, pid))

    def _not_launched(self, launch: str, problem: str) -> None:
        self._tell(NotLaunched(launch, problem))

    def _exited(self, launch: str, exit: Exit) -> None:
        self._tell(Exited(launch, exit))

    def _now(self) -> Now:
        """Return the time; the clock by which others are judged stood still with us."""
        return Now(self._loop.time() - self._lost, time.time_ns() // 1_000_000)

    def _tick(self) -> None:
        if self._over.done():
            return
        now = self._loop.time()
        late = now - self._last_tick - TICK
        if late > LAG:
            self._last_progress = now  # it was this process that did not run
            self._lost += late
        else:
            self._tell(Tick())
        self._last_tick = now
        if now - self._started > self._bounds.timeout:
            self.abort("timeout")
        elif self._may_stand():
            self._last_progress = now
        elif now - self._last_progress > self._bounds.stall:
            self.abort("stall")
        self._loop.call_later(TICK, self._tick)

    def _may_stand(self) -> bool:
        """Tell whether nothing moves for a reason that has a bound of its own, or none."""
        hub = self._hub
        return hub.is_starting() or hub.is_idle() or hub.is_pacing()

    # --- instructions ----------------------------------------------------------

    def _obey(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Launch():
                    module = module_of(instruction.agent)
                    self._workers.start(instruction.launch, module)
                case Send():
                    self._send(instruction)
                case Persist():
                    self._writer.write(instruction)
                case Flush():
                    self._writer.flush(instruction.sid)
                case Release():
                    self._writer.release(instruction.sid)
                case Ask() | Allow() | Dismiss():
                    self._consult(instruction)
                case Feed():
                    self._feed(instruction)
                case HangUp() | Terminate() | Kill() | Abandon() | Dump():
                    self._end(instruction)
                case Notice():
                    self._watch(instruction)
                case Done():
                    if not self._over.done():
                        self._over.set_result(self._ending)

    def _end(self, order: HangUp | Terminate | Kill | Abandon | Dump) -> None:
        match order:
            case HangUp():
                self._workers.hang_up(order.launch)
            case Terminate():
                self._workers.terminate(order.launch)
            case Kill():
                self._workers.kill(order.launch)
            case Abandon():
                self._workers.abandon(order.launch)
            case Dump():
                self._workers.dump(order.launch)

    def _consult(self, instruction: Ask | Allow | Dismiss) -> None:
        if self._providers is None:
            raise NestlingError("a run without providers asked for one")
        self._providers.handle(instruction, self.tell_soon)

    def _feed(self, instruction: Feed) -> None:
        if self._feeder is None:
            raise NestlingError("a run without a feeder has a paced answer")
        self._feeder.handle(instruction, self._tell)

    def tell_soon(self, event: HubEvent) -> None:
        """Take in an event from another thread; too late for a loop that is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell, event)

    def _send(self, send: Send) -> None:
        routing_id = self._workers.routing_id(send.launch)
        if routing_id is None:
            return
        try:
            frames = encode(send.message, send.body)
        except WireError as error:
            self._loop.call_soon(self._tell, Broken(send.launch, str(error)))
        else:
            # A peer that is gone is noticed by its process's end.
            self._socket.send(routing_id, frames)
