"""The worker processes of one run: started, killed, and noticed when they end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from nestling.driver.descriptors_io import (
    CONNECTING,
    RESERVE,
    STARTING,
    require_descriptors,
)
from nestling.driver.exits import Birth, Exit
from nestling.driver.launcher_io import (
    Launcher,
    LaunchRequest,
    Starter,
    WorkerProcess,
)
from nestling.driver.run_directory_io import RunDirectory
from nestling.session.errors import LaunchError, NestlingError
from nestling.wire.admission import Admission
from nestling.wire.launch import LaunchSpec
from nestling.wire.messages import PROTOCOL

QUIET: Final = 0.03
"""Seconds without a message after which a dead worker has nothing more to say."""
QUIET_BOUND: Final = 1.0
"""Seconds after which it is taken at its word in any case, and for which the goodbye
of one that ended well is waited for."""
GRACE: Final = 5.0
"""Seconds that killed workers have to be gone before they are given up."""
POLL: Final = 0.05
"""Seconds between looks at workers that were killed."""
SWEEP: Final = 2.0
"""Seconds for what a worker has left behind to be gone; then it is named and left."""
LOOK: Final = 0.02
"""Seconds between looks at that."""


class _Voice:
    """What is known of who speaks for a launch; it may speak before it is started."""

    def __init__(self, routing_id: bytes) -> None:
        self.routing_id = routing_id
        self.heard = 0
        self.has_said_bye = False
        self.is_unwanted = False


class _Running(NamedTuple):
    """One worker process."""

    process: WorkerProcess
    voice: _Voice


class Workers:
    """Starts workers and reports how they end, on the hub's loop.

    Attributes:
        births: how each worker came to be, by launch; kept after its end.
    """

    def __init__(
        self,
        launcher: Launcher,
        run: RunDirectory,
        admission: Admission,
        parent_pid: int,
        on_start: Callable[[str, int], None],
        on_failure: Callable[[str, str], None],
        on_exit: Callable[[str, Exit], None],
    ) -> None:
        """Begin to work, on the running loop.

        Args:
            launcher: starts the workers.
            run: where their files are.
            admission: who may connect to the hub.
            parent_pid: this process.
            on_start: called with a launch and the pid of its process, which may have
                said hello before.
            on_failure: called with a launch that there will be no process for, and
                why; not while it is being asked for.
            on_exit: called with a launch and how its process ended.
        """
        self.births: dict[str, Birth] = {}
        self._loop = asyncio.get_running_loop()
        self._launcher = launcher
        self._starter: Starter | None = None
        self._run = run
        self._admission = admission
        self._parent_pid = parent_pid
        self._on_start = on_start
        self._on_failure = on_failure
        self._on_exit = on_exit
        self._starting: dict[str, _Voice] = {}
        self._running: dict[str, _Running] = {}
        self._is_closed = False

    # --- starting --------------------------------------------------------------

    def start(self, launch: str, module: str = "") -> None:
        """Start a worker; what comes of it is told later, or now.

        Args:
            launch: what it will be admitted as.
            module: the agent module that it will need, ``pkg.mod`` or
                ``/abs/file.py``; "" for none.
        """
        # ZeroMQ keeps ids that start with a zero byte for itself.
        routing_id = b"\x01" + secrets.token_bytes(15)
        token = secrets.token_hex(32)
        spec = LaunchSpec(
            PROTOCOL, self._run.endpoint, launch, token, routing_id, self._parent_pid
        )
        self._starting[launch] = _Voice(routing_id)
        self._admission.expect(launch, token)
        try:
            require_descriptors(RESERVE + self._promised())
            directory = self._run.work_of(launch)
            request = LaunchRequest(spec, self._run.log_of(launch), directory, module)
            if self._starter is None:
                self._starter = self._launcher.connect()
            self._starter.start(
                request, partial(self._started, launch), partial(self._failed, launch)
            )
        except (NestlingError, OSError) as error:
            self._failed(launch, error)

    def _promised(self) -> int:
        """Count the descriptors that those which start are going to take."""
        unheard = [each for each in self._running.values() if not each.voice.heard]
        return STARTING * len(self._starting) + CONNECTING * len(unheard)

    def _started(self, launch: str, process: WorkerProcess) -> None:
        voice = self._starting.pop(launch)
        self.births[launch] = Birth(process.pid, process.launcher, process.reason)
        self._running[launch] = _Running(process, voice)
        process.watch(partial(self._ended, launch))
        problem = self._admission.set_pid(launch, process.pid)
        if problem is not None or voice.is_unwanted or self._is_closed:
            process.kill()
        self._on_start(launch, process.pid)

    def _failed(self, launch: str, error: Exception) -> None:
        self._starting.pop(launch)
        self._admission.forget(launch)
        self._loop.call_soon(self._tell_failure, launch, str(error))

    def _tell_failure(self, launch: str, problem: str) -> None:
        if not self._is_closed:
            self._on_failure(launch, problem)

    def routing_id(self, launch: str) -> bytes | None:
        """Return the routing id that a launch was told to use, while it runs."""
        voice = self._voice(launch)
        return None if voice is None else voice.routing_id

    def _voice(self, launch: str) -> _Voice | None:
        running = self._running.get(launch)
        return self._starting.get(launch) if running is None else running.voice

    def heard_from(self, launch: str, *, was_last: bool) -> None:
        """Take note that a worker said something."""
        voice = self._voice(launch)
        if voice is not None:
            voice.heard += 1
            voice.has_said_bye = voice.has_said_bye or was_last

    # --- ending ----------------------------------------------------------------

    # The rungs of a ladder. Each may be asked for at any time and any number of times.

    def hang_up(self, launch: str) -> None:
        """Close a worker's lifeline: it ends at once, if its loop turns."""
        process = self._process(launch, ends=True)
        if process is not None:
            process.hang_up()

    def terminate(self, launch: str) -> None:
        """Send SIGTERM to a worker and its process group."""
        process = self._process(launch, ends=True)
        if process is not None:
            process.terminate()

    def kill(self, launch: str) -> None:
        """End a worker, its process group and what is below it now."""
        process = self._process(launch, ends=True)
        if process is not None:
            process.kill()

    def dump(self, launch: str) -> None:
        """Have a worker write its stacks into its log, if it has come so far."""
        process = self._process(launch, ends=False)
        if process is not None:
            process.dump()

    def _process(self, launch: str, *, ends: bool) -> WorkerProcess | None:
        """Return the process of a launch, if it runs.

        One that is to end and does not run yet is killed as soon as it is there; if
        nothing was begun for it, it is not waited for: that may take long.
        """
        if ends and launch in self._starting:
            self._starting[launch].is_unwanted = True
            if self._starter is not None and self._starter.give_up(launch):
                self._failed(launch, LaunchError("it was ended before"))
        running = self._running.get(launch)
        return None if running is None else running.process

    def abandon(self, launch: str) -> None:
        """Wait no longer for a worker that cannot be ended."""
        running = self._running.pop(launch, None)
        self._admission.forget(launch)
        if running is not None:
            running.process.abandon()

    async def close(self) -> None:
        """End every worker that is left, and wait until it is gone, within bounds.

        After a run that ended by itself there is none.
        """
        self._is_closed = True
        deadline = self._loop.time() + GRACE
        for running in self._running.values():
            running.process.kill()
        while self._running and self._loop.time() < deadline:
            await asyncio.sleep(POLL)
            for launch, running in list(self._running.items()):
                if running.process.has_ended() and running.process.sweep():
                    self._running.pop(launch).process.reap()
        while self._running:
            self._running.popitem()[1].process.abandon()
        self._starting.clear()
        if self._starter is not None:
            self._starter.close()

    # --- noticing the end ------------------------------------------------------

    def _ended(self, launch: str) -> None:
        running = self._running.get(launch)
        if running is None:
            return  # it was reaped when the run was closed
        if running.process.has_failed():
            running.process.sweep()  # at once, whatever it had still to say
        deadline = self._loop.time() + QUIET_BOUND
        self._drain(launch, -1, deadline)

    def _drain(self, launch: str, heard_before: int, deadline: float) -> None:
        """Wait until what a dead worker had still sent has arrived."""
        running = self._running.get(launch)
        if running is None:
            return  # it was reaped when the run was closed
        voice = running.voice
        is_silent = voice.heard == heard_before
        is_quiet = is_silent and running.process.has_failed()
        if is_quiet or voice.has_said_bye or self._loop.time() > deadline:
            self._sweep(launch, self._loop.time() + SWEEP)
            return
        self._loop.call_later(QUIET, self._drain, launch, voice.heard, deadline)

    def _sweep(self, launch: str, deadline: float) -> None:
        """Wait until nothing is left of a dead worker, and then tell of its end."""
        running = self._running.get(launch)
        if running is None:
            return  # it was reaped when the run was closed
        # One that has ended well has ended what was below it before.
        has_ended_well = running.voice.has_said_bye and not running.process.has_failed()
        is_over = has_ended_well or self._loop.time() > deadline
        if is_over or running.process.sweep():
            self._reap(launch)
        else:
            self._loop.call_later(LOOK, self._sweep, launch, deadline)

    def _reap(self, launch: str) -> None:
        running = self._running.pop(launch)
        self._admission.forget(launch)
        exit = running.process.reap()
        is_clean = exit.code == 0 and running.voice.has_said_bye
        tail = "" if is_clean else self._run.tail_of(launch)
        self._on_exit(launch, exit._replace(stderr_tail=tail))
