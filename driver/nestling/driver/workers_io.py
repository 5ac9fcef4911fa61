"""The worker processes of one run: started, killed, and noticed when they end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Final

from nestling.driver.exits import Exit
from nestling.driver.launcher_io import Launcher, LaunchRequest, WorkerProcess
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
"""Seconds between looks at a process that cannot be waited for otherwise."""


class _Running:
    """One worker process."""

    def __init__(self, process: WorkerProcess, routing_id: bytes) -> None:
        self.process = process
        self.routing_id = routing_id
        self.heard = 0
        self.has_said_bye = False


class Workers:
    """Starts workers and reports how they end, on the hub's loop."""

    def __init__(
        self,
        launcher: Launcher,
        run: RunDirectory,
        admission: Admission,
        parent_pid: int,
        on_exit: Callable[[str, Exit], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._launcher = launcher
        self._run = run
        self._admission = admission
        self._parent_pid = parent_pid
        self._on_exit = on_exit
        self._running: dict[str, _Running] = {}

    def start(self, launch: str) -> int:
        """Start a worker and return its pid.

        Raises:
            LaunchError: if it cannot be started.
        """
        token = secrets.token_hex(32)
        # ZeroMQ keeps ids that start with a zero byte for itself.
        routing_id = b"\x01" + secrets.token_bytes(15)
        spec = LaunchSpec(
            PROTOCOL, self._run.endpoint, launch, token, routing_id, self._parent_pid
        )
        self._admission.expect(launch, token)
        try:
            directory = self._run.work_of(launch)
            request = LaunchRequest(spec, self._run.log_of(launch), directory)
            process = self._launcher.start(request)
        except (NestlingError, OSError) as error:
            self._admission.forget(launch)
            raise LaunchError(str(error)) from None
        self._running[launch] = _Running(process, routing_id)
        self._watch(launch, process)
        problem = self._admission.set_pid(launch, process.pid)
        if problem is not None:
            process.kill()
        return process.pid

    def routing_id(self, launch: str) -> bytes | None:
        """Return the routing id that a launch was told to use, while it runs."""
        running = self._running.get(launch)
        return None if running is None else running.routing_id

    def heard_from(self, launch: str, *, was_last: bool) -> None:
        """Take note that a worker said something."""
        running = self._running.get(launch)
        if running is not None:
            running.heard += 1
            running.has_said_bye = running.has_said_bye or was_last

    def kill(self, launch: str) -> None:
        """End a worker and its process group now."""
        running = self._running.get(launch)
        if running is not None:
            running.process.kill()

    async def close(self) -> None:
        """End every worker that is left, and wait until it is gone, within bounds.

        After a run that ended by itself there is none.
        """
        deadline = self._loop.time() + GRACE
        for running in self._running.values():
            running.process.kill()
        while self._running and self._loop.time() < deadline:
            await asyncio.sleep(POLL)
            for launch, running in list(self._running.items()):
                if running.process.has_ended():
                    self._forget(launch).reap()
        for launch in list(self._running):
            self._forget(launch).abandon()

    def _forget(self, launch: str) -> WorkerProcess:
        process = self._running.pop(launch).process
        self._unwatch(process)
        return process

    # --- noticing the end ------------------------------------------------------

    def _watch(self, launch: str, process: WorkerProcess) -> None:
        fd = process.fileno()
        if fd is None:
            self._poll(launch, process)
        else:
            self._loop.add_reader(fd, self._ended, launch)

    def _unwatch(self, process: WorkerProcess) -> None:
        fd = process.fileno()
        if fd is not None:
            self._loop.remove_reader(fd)

    def _poll(self, launch: str, process: WorkerProcess) -> None:
        if process.has_ended():
            self._ended(launch)
        else:
            self._loop.call_later(POLL, self._poll, launch, process)

    def _ended(self, launch: str) -> None:
        running = self._running.get(launch)
        if running is None:
            return  # it was reaped when the run was closed
        self._unwatch(running.process)
        deadline = self._loop.time() + QUIET_BOUND
        self._drain(launch, -1, deadline)

    def _drain(self, launch: str, heard_before: int, deadline: float) -> None:
        """Wait until what a dead worker had still sent has arrived."""
        running = self._running.get(launch)
        if running is None:
            return  # it was reaped when the run was closed
        is_silent = running.heard == heard_before
        is_quiet = is_silent and not running.process.has_succeeded()
        if is_quiet or running.has_said_bye or self._loop.time() > deadline:
            self._reap(launch)
            return
        self._loop.call_later(QUIET, self._drain, launch, running.heard, deadline)

    def _reap(self, launch: str) -> None:
        running = self._running.pop(launch)
        self._admission.forget(launch)
        exit = running.process.reap()
        is_clean = exit.code == 0 and running.has_said_bye
        tail = "" if is_clean else self._run.tail_of(launch)
        self._on_exit(launch, exit._replace(stderr_tail=tail))
