"""What happens to the runs of ``chaos.py``: faults, and where they strike.

A *moment* is anything that the hub's thread does for a run that can be counted: a worker
started, a fork asked for, a message of a worker arrived (and not looked at yet). A fault
strikes after so many of them. Its victims are processes of this run, which the run's own
hub holds handles on; nothing else is ever signalled.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio

from nestling.driver import (
    hub_thread_io,
    ladder,
    template_launcher_io,
    template_port_io,
    watch,
    workers_io,
)
from nestling.driver.director import Limits
from nestling.driver.exec_process_io import ExecProcess
from nestling.driver.forked_process_io import ForkedProcess
from nestling.driver.hub_io import HubLoop, RunEnd
from nestling.driver.instructions import Send
from nestling.driver.ladder import Rung
from nestling.driver.launcher_io import WorkerProcess
from nestling.driver.started_run_io import StartedRun
from nestling.driver.template_io import Template
from nestling.driver.template_launcher_io import _TemplateStarter
from nestling.driver.template_pool_io import TemplateBounds
from nestling.driver.template_port_io import Launching
from nestling.harness import replay_io
from nestling.harness.replay_director import Cast, ReplayDirector
from nestling.harness.scenario import Scenario
from nestling.session.errors import NestlingError, StoreError
from nestling.session.jsontext import JsonObject, dumps, loads
from nestling.session.request import Provider, Request
from nestling.session.store_backend import Backend, Write
from nestling.wire.messages import Settled

SILENCE: Final = 2.6
"""Seconds of silence that make a worker suspect; it says something every two."""
SUSPECTED: Final = 0.6
LIMITS: Final = Limits(silence=SILENCE)
RUNGS: Final = (0.3, 0.3, 0.3, 3.0)
"""Seconds on each rung of the ladder: who does not heed a cancel is gone after one."""
GRACE: Final = 3.0
"""Seconds in which the workers of a run that is aborted must be gone."""
TEMPLATES: Final = TemplateBounds(fork=2.0, exit=1.0, restarts=1_000_000)
BRIEF: Final = (0.01, 0.5)
"""Seconds for which a process is stopped that nobody may suspect for it."""
LONG: Final = (SILENCE + SUSPECTED, SILENCE + SUSPECTED + 2.0)

HARMLESS: Final = frozenset({"delay", "stop-worker-briefly", "stop-template-briefly"})
"""What must not change the tree."""

KINDS: Final = {
    "delay": 3,
    "kill-worker": 8,
    "kill-template": 4,
    "kill-idle-template": 1,
    "stop-worker-briefly": 4,
    "stop-worker-long": 1,
    "stop-template-briefly": 2,
    "stop-template-long": 1,
    "cancel": 4,
    "cancel-call": 2,
    "cancel-run": 2,
    "store-error": 2,
    "disk-full": 2,
}
"""Every kind of fault, and how often it is chosen among the others."""

LIVE_ONLY: Final = frozenset(
    {"delay", "cancel", "cancel-call", "cancel-run", "store-error", "disk-full"}
)
TEMPLATE_ONLY: Final = frozenset(
    {
        "kill-template",
        "kill-idle-template",
        "stop-template-briefly",
        "stop-template-long",
    }
)


class Fault(NamedTuple):
    """One thing that goes wrong.

    Attributes:
        kind: one of ``KINDS``.
        moment: after so many moments.
        wait: and so many seconds more.
        seconds: how long it lasts.
        pick: which of its victims, between 0 and 1.
    """

    kind: str
    moment: int
    wait: float
    seconds: float
    pick: float

    def __str__(self) -> str:
        return f"{self.kind}@{self.moment}+{self.wait:.3f}s"


def drawn(chance: random.Random, kinds: Sequence[str], moments: int) -> list[Fault]:
    """Draw the faults of one run: none, one, or several at once."""
    count = chance.choice((0, 1, 1, 1, 1, 2, 2, 3)) if kinds else 0
    faults = []
    for _ in range(count):
        kind = chance.choices(kinds, [KINDS[kind] for kind in kinds])[0]
        seconds = chance.uniform(*(LONG if kind.endswith("long") else BRIEF))
        wait = chance.choice((0.0, 0.0, 0.002, 0.03)) * chance.random()
        moment = chance.randrange(moments)
        faults.append(Fault(kind, moment, wait, seconds, chance.random()))
    return faults


class Told(NamedTuple):
    """What a parent was told of a child.

    Attributes:
        parent: the parent's spawn path.
        child: the child's; None if there was none.
        result: what was told.
    """

    parent: str
    child: str | None
    result: JsonObject


class Scene:
    """One run that is disturbed.

    Attributes:
        moments: how many there were.
        struck: the faults that did strike.
        told: what parents were told, in order.
        slowest: how long it took until a cancel was acknowledged, at most, in seconds.
    """

    def __init__(self, faults: Sequence[Fault], store: Path | None) -> None:
        self.moments = 0
        self.struck: list[Fault] = []
        self.told: list[Told] = []
        self.slowest = 0.0
        self.run: StartedRun | None = None
        self._store = store
        self._pending = sorted(faults, key=lambda fault: fault.moment)
        self._hub: HubLoop | None = None
        self._held: list[int] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._limit = resource.getrlimit(resource.RLIMIT_FSIZE)

    # --- in the hub's thread -------------------------------------------------------

    def moment(self, hub: HubLoop) -> None:
        """Count, and let strike what is due."""
        self.moments += 1
        self._hub = hub
        for fault in list(self._pending):
            if fault.moment > self.moments:
                break
            if fault.wait:
                self._pending.remove(fault)
                hub._loop.call_later(fault.wait, self._late, fault)
            elif self._strike(fault):
                self._pending.remove(fault)

    def _late(self, fault: Fault) -> None:
        if not self._strike(fault):
            self._pending.insert(0, fault._replace(wait=0.0))

    def _strike(self, fault: Fault) -> bool:
        """Do it; tell whether there was a victim."""
        what, _, _ = fault.kind.partition("-")
        if what in ("kill", "stop"):
            of_template = "template" in fault.kind
            pidfd = self._template() if of_template else self._worker(fault.pick)
            if pidfd is None:
                return False
            self._signal(pidfd, fault, what)
        elif what == "cancel":
            self._loop.call_soon_threadsafe(self._cancels, fault)
        elif fault.kind == "disk-full":
            self._fill(fault)
        self.struck.append(fault)
        return True

    def _worker(self, pick: float) -> int | None:
        hub = self._hub
        assert hub is not None
        alive = [
            each.process
            for _, each in sorted(hub._workers._running.items())
            if not each.process.has_ended()
        ]
        return _handle(alive[int(pick * len(alive))]) if alive else None

    def _template(self) -> int | None:
        hub = self._hub
        starter = None if hub is None else hub._workers._starter
        if not isinstance(starter, _TemplateStarter):
            return None
        return handle_on(starter._pool._current)

    def _signal(self, pidfd: int, fault: Fault, what: str) -> None:
        self._held.append(pidfd)
        number = signal.SIGKILL if what == "kill" else signal.SIGSTOP
        _send(pidfd, number)
        if number == signal.SIGSTOP:
            self._loop.call_soon_threadsafe(self._continue, pidfd, fault.seconds)

    def _fill(self, fault: Fault) -> None:
        """Let no file grow much beyond the store's largest one."""
        assert self._store is not None
        sizes = [p.stat().st_size for p in self._store.rglob("*") if p.is_file()]
        size = max(sizes, default=0) + int(fault.pick * 4000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, self._limit[1]))

    def settled(self, hub: HubLoop, send: Send, message: Settled) -> None:
        """Take note of what a parent is told."""
        parent = hub._hub.tree.of_launch(send.launch)
        wanted = (message.turn, message.step, message.block, message.n, message.key)
        child = None
        for each in parent.children:
            assert each.parentage is not None
            asked = each.parentage.request
            if (asked.turn, asked.step, asked.block, asked.n, asked.key) == wanted:
                child = each.path
        self.told.append(Told(parent.path, child, loads(send.body)))

    # --- in the script's loop --------------------------------------------------------

    def before(self, template: Template | None) -> None:
        """Do what is to be done before the run."""
        for fault in [f for f in self._pending if f.kind == "kill-idle-template"]:
            self._pending.remove(fault)
            pidfd = handle_on(template)
            if pidfd is not None:
                self._signal(pidfd, fault, "kill")
                self.struck.append(fault)

    def _continue(self, pidfd: int, seconds: float) -> None:
        if pidfd in self._held:
            timer = self._loop.call_later(seconds, _send, pidfd, signal.SIGCONT)
            self._timers.append(timer)

    def _cancels(self, fault: Fault) -> None:
        self._tasks.append(self._loop.create_task(self._cancel(fault)))

    async def _cancel(self, fault: Fault) -> None:
        run, hub = self.run, self._hub
        if run is None or hub is None:
            return
        paths = [session.path for session in list(hub._hub.tree)]
        path = paths[int(fault.pick * len(paths))]
        began = self._loop.time()
        with suppress(NestlingError):
            if fault.kind == "cancel":
                await run.cancel(path)
            elif fault.kind == "cancel-call":
                await run.cancel_call(path)
            else:
                await run.stop()
                return  # that waits for the end
        self.slowest = max(self.slowest, self._loop.time() - began)

    def relieve(self) -> None:
        """Give the disk its room again."""
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limit)

    async def close(self) -> None:
        """Let go of everything, and let everybody run again."""
        self.relieve()
        for task in self._tasks:
            await task
        for timer in self._timers:
            timer.cancel()
        held, self._held = self._held, []
        for pidfd in held:
            _send(pidfd, signal.SIGCONT)
            os.close(pidfd)


# --- handles ---------------------------------------------------------------------------


def _handle(process: WorkerProcess) -> int | None:
    """Return a handle of our own on a worker."""
    fd = process.pidfd if isinstance(process, ForkedProcess) else None
    if isinstance(process, ExecProcess):
        fd = process.fileno()
    return None if fd is None else os.dup(fd)


def handle_on(template: Template | None) -> int | None:
    """Return a handle on a template, if it is there."""
    if template is None:
        return None
    with template._lock:
        if template._process.poll() is None:
            return os.pidfd_open(template.pid)
    return None


def _send(pidfd: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, number)


# --- where the hub is listened to --------------------------------------------------------


class Stage:
    """Where the scene of the run that is under way is found, from any thread."""

    scene: Scene | None = None


class DisturbedHub(HubLoop):
    """A hub whose scene hears of what happens first.

    Attributes:
        current: the one of the run that is under way.
    """

    current: DisturbedHub | None = None

    async def run(self) -> RunEnd:
        """Run the tree to its end."""
        DisturbedHub.current = self
        try:
            return await super().run()
        finally:
            DisturbedHub.current = None

    def _received(self, user: str, routing_id: bytes, frames: list[bytes]) -> None:
        _moment(self)
        super()._received(user, routing_id, frames)

    def _launched(self, launch: str, pid: int) -> None:
        super()._launched(launch, pid)
        _moment(self)

    def _send(self, send: Send) -> None:
        scene = Stage.scene
        if scene is not None and isinstance(send.message, Settled):
            scene.settled(self, send, send.message)
        super()._send(send)


class DisturbedPort(template_port_io.Port):
    """A port that is struck right after it asked for a fork."""

    def _ask(self, launching: Launching) -> None:
        super()._ask(launching)
        if DisturbedHub.current is not None:
            _moment(DisturbedHub.current)


def _moment(hub: HubLoop) -> None:
    if Stage.scene is not None:
        Stage.scene.moment(hub)


class ImpatientDirector(ReplayDirector):
    """A replay with the bounds of this script."""

    def __init__(
        self, scenario: Scenario, cast: Cast | None = None, **how: Any
    ) -> None:
        super().__init__(scenario, cast, **how)
        self.limits = self.limits._replace(silence=SILENCE)


def set_up() -> None:
    """Have every hub of this process disturbed, and ladders short."""
    steps = zip(RUNGS, ladder.RUNGS, strict=True)
    changes = (
        (hub_thread_io, "HubLoop", DisturbedHub),
        (template_launcher_io, "Port", DisturbedPort),
        (replay_io, "ReplayDirector", ImpatientDirector),
        (ladder, "RUNGS", tuple(Rung(seconds, rung.order) for seconds, rung in steps)),
        (watch, "SUSPECTED", SUSPECTED),
        (workers_io, "GRACE", GRACE),
    )
    for module, name, value in changes:
        assert hasattr(module, name)
        setattr(module, name, value)


# --- the model and the store ---------------------------------------------------------------


class Model:
    """The scripted model of an example, which answers late; what it said is kept.

    Attributes:
        said: the chunks of every answer so far, by its request.
    """

    def __init__(
        self, model: Provider, chance: random.Random, *, is_late: bool
    ) -> None:
        self.said: dict[bytes, list[list[JsonObject]]] = {}
        self._model = model
        self._chance = chance
        self._is_late = is_late

    async def __call__(self, request: Request) -> AsyncGenerator[JsonObject, None]:
        """Answer one request."""
        said: list[JsonObject] = []
        self.said.setdefault(key_of(request), []).append(said)
        if self._is_late:
            await anyio.sleep(self._chance.choice((0.0, 0.01, 0.1, 0.4)))
        async for chunk in self._model(request):
            said.append(chunk)
            yield chunk


def key_of(request: Request) -> bytes:
    """Return a request as bytes, the same for equal ones."""
    return dumps([*request])


class FaultyBackend:
    """A backend that fails as it is told to; all else is another one's.

    Attributes:
        inner: that one.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self._scene: Scene | None = None
        self._faults: list[Fault] = []
        self._writes = 0
        self._failing = 0

    def arm(self, scene: Scene, faults: Sequence[Fault]) -> None:
        """Fail some writes of one run; none without faults."""
        self._scene, self._faults = scene, list(faults)
        self._writes = self._failing = 0

    def write(self, writes: Sequence[Write]) -> list[StoreError | None]:
        """Make events durable, or fail: all of them or the first, once or more often."""
        self._writes += 1
        for fault in list(self._faults):
            if self._writes > fault.moment % 25 and self._scene is not None:
                self._faults.remove(fault)
                self._scene.struck.append(fault)
                self._failing = int(10 ** (fault.pick * 2))
                if fault.pick < 0.3:
                    raise OSError(errno.ENOSPC, "No space left on device")
        if self._failing:
            self._failing -= 1
            problem = StoreError("the script fails this write")
            return [problem, *self.inner.write(writes[1:])]
        return self.inner.write(writes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
