"""A hub's channel to one template: asks for forks, takes in what becomes of them.

On the hub's loop, and never blocking it: requests are sent, a few at a time, and
answered whenever the template gets to it. A request that is not answered in time is
taken back, if it still can be: the launch spec waits in a pipe until the fork reads it,
and whoever reads it first has it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from typing import Final, NamedTuple, Protocol

import msgspec

from nestling.driver.exec_process_io import exit_of
from nestling.driver.exits import TEMPLATE_LOST, Exit, Usage
from nestling.driver.forked_process_io import ForkedProcess
from nestling.driver.launcher_io import (
    LaunchRequest,
    OnFailed,
    OnStarted,
    worker_environment,
)
from nestling.driver.processes_io import Process
from nestling.driver.template_io import Template, receive
from nestling.driver.template_pool_io import TemplatePool
from nestling.driver.traces_io import MARK, Trace, end_bearers
from nestling.session.errors import LaunchError, WireError
from nestling.wire.fork import (
    Fork,
    Forked,
    ForkRefused,
    FromTemplate,
    TemplateReady,
    Terminate,
    WorkerExited,
    decode_from_template,
    encode_packet,
)
from nestling.wire.launch import LAUNCH_CAP, encode_launch

WINDOW: Final = 16
"""So many requests are with the template at a time; the others wait here."""
SWEEP: Final = 2.0
"""Seconds for what the workers of a lost template have left to be gone."""
LOOK: Final = 0.02
"""Seconds between looks at it."""
LOOKS: Final = 4
"""So often is looked for news of a worker that has ended, before its template counts as
hung. When this process was stopped for a while, that was one look."""


class Launching(NamedTuple):
    """A worker that is to be started."""

    request: LaunchRequest
    on_started: OnStarted
    on_failed: OnFailed


class Routes(Protocol):
    """Where a port sends launches that it cannot serve."""

    def route(self, launching: Launching) -> None:
        """Start it wherever it can be started now."""
        ...

    def fall_back(self, launching: Launching, reason: str) -> None:
        """Start it without a template."""
        ...

    def is_idle(self, port: Port) -> None:
        """Take note that nothing waits for an answer of a port, and no worker runs."""
        ...


class _Asked(NamedTuple):
    """A request that is with the template."""

    launching: Launching
    spec: bytes
    reading: int
    writing: int
    timer: asyncio.TimerHandle

    def take_back(self) -> bool:
        """Free the lifeline; tell whether no process has read the spec or ever will."""
        self.timer.cancel()
        os.close(self.writing)
        try:
            return os.read(self.reading, LAUNCH_CAP) == self.spec
        finally:
            os.close(self.reading)


class Port:
    """Serves one hub from one template."""

    def __init__(
        self, template: Template, pool: TemplatePool, entry: str, routes: Routes
    ) -> None:
        """Attach the running loop to a template.

        Raises:
            OSError: if there is no descriptor left.
        """
        self.template = template
        self._pool = pool
        self._entry = entry
        self._routes = routes
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Launching] = deque()
        self._asked: dict[str, _Asked] = {}
        self._processes: dict[int, ForkedProcess] = {}
        self._logs: dict[int, str] = {}  # by pid, like the processes
        self._orphans: list[ForkedProcess] = []
        self._swept: set[Process] = set()
        self._is_ready = self._is_closed = False
        self._sock = template.attach()
        self._loop.add_reader(self._sock, self._readable)
        self._timer = self._loop.call_later(pool.bounds.warm, self._not_warm)

    # --- asking ------------------------------------------------------------------

    def add(self, launching: Launching) -> None:
        """Start a worker from this template."""
        self._waiting.append(launching)
        self._pump()

    def give_up(self, launch: str) -> bool:
        """Forget a launch that the template was not asked for yet; tell whether so."""
        for each in self._waiting:
            if each.request.spec.user == launch:
                self._waiting.remove(each)
                self._rest()
                return True
        return False

    def _pump(self) -> None:
        while self._is_ready and self._waiting and len(self._asked) < WINDOW:
            launching = self._waiting.popleft()
            try:
                self._ask(launching)
            except (BlockingIOError, ConnectionError):
                self._waiting.appendleft(launching)
                self._loop.add_writer(self._sock, self._writable)
                return
            except WireError as error:
                self._routes.fall_back(launching, str(error))
            except OSError as error:
                problem = f"cannot start a worker: {error}"
                launching.on_failed(LaunchError(problem))

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock)
        self._pump()

    def _ask(self, launching: Launching) -> None:
        request = launching.request
        launch = request.spec.user
        # Its parent is the template, and with that one it is to die.
        spec = encode_launch(
            msgspec.structs.replace(request.spec, parent_pid=self.template.pid)
        )
        packet = encode_packet(self._packet(request))
        reading, writing = os.pipe()
        try:
            os.write(writing, spec)  # a pipe holds that much
            with request.log.open("wb") as log:
                socket.send_fds(self._sock, [packet], [log.fileno(), reading])
        except BaseException:
            os.close(reading)
            os.close(writing)
            raise
        timer = self._loop.call_later(self._pool.bounds.fork, self._unanswered, launch)
        self._asked[launch] = _Asked(launching, spec, reading, writing, timer)

    def _packet(self, request: LaunchRequest) -> Fork:
        environment = worker_environment(os.environ, is_offline=self._pool.is_offline)
        environment[MARK] = self.template.mark
        return Fork(
            request.spec.user,
            self._entry,
            request.module,
            os.fsencode(request.directory),
            {os.fsencode(k): os.fsencode(v) for k, v in environment.items()},
        )

    # --- answers -----------------------------------------------------------------

    def _readable(self) -> None:
        while not self._is_closed:
            try:
                data, fds = receive(self._sock)
            except BlockingIOError:
                break
            if not data:
                self._lost()
                return
            self._take(decode_from_template(data), fds)
        self._pump()
        self._rest()

    def _take(self, packet: FromTemplate, fds: list[int]) -> None:
        match packet:
            case TemplateReady():
                self._ready(packet)
            case Forked():
                self._forked(packet, fds)
            case ForkRefused():
                self._refused(packet)
            case WorkerExited():
                self._exited(packet)

    def _ready(self, ready: TemplateReady) -> None:
        self._timer.cancel()
        self._pool.refuse(ready.refused)
        if ready.spoilt_by is not None:
            self._pool.retire(self.template)
        self._is_ready = self.template.is_ready = True
        self._send_on()

    def _send_on(self) -> None:
        """Let every launch that waits find its way anew; it may lead here again."""
        waiting, self._waiting = self._waiting, deque()
        for launching in waiting:
            self._routes.route(launching)

    def _forked(self, forked: Forked, fds: list[int]) -> None:
        asked = self._asked.pop(forked.launch, None)
        if asked is None:
            for fd in fds:
                os.close(fd)  # it was taken back: the fork finds no spec, and ends
            return
        asked.timer.cancel()
        os.close(asked.reading)
        try:
            # The kernel drops a descriptor for which there is no room.
            pidfd = fds[0] if fds else os.pidfd_open(forked.pid)
        except OSError as error:
            os.close(asked.writing)  # its lifeline: that is its end
            problem = f"cannot hold on to a worker: {error.strerror}"
            asked.launching.on_failed(LaunchError(problem))
            return
        self.template.has_forked = True
        writing, terminate = asked.writing, self._terminate
        process = ForkedProcess(forked.pid, pidfd, writing, terminate)
        self._processes[forked.pid] = process
        self._logs[forked.pid] = str(asked.launching.request.log)
        self._loop.add_reader(pidfd, self._ended, process)
        asked.launching.on_started(process)

    def _refused(self, refused: ForkRefused) -> None:
        if refused.is_spent:
            self._pool.spent(self.template, refused.reason)
        asked = self._asked.pop(refused.launch, None)
        if asked is not None:
            asked.take_back()
            self._routes.fall_back(asked.launching, refused.reason)

    def _exited(self, exited: WorkerExited) -> None:
        process = self._processes.pop(exited.pid, None)
        if process is not None:
            del self._logs[exited.pid]
            self._loop.remove_reader(process.pidfd)
            usage = Usage(exited.user_ms, exited.system_ms, exited.max_rss_kb)
            left = tuple(exited.unkillable)
            exit = exit_of(exited.status, usage)
            process.ended(exit._replace(swept=exited.swept, unkillable=left))

    def _terminate(self, pid: int) -> bool:
        """Ask for the end of a worker's group; tell whether that was possible."""
        if self._sock.fileno() < 0:
            return False
        try:
            self._sock.send(encode_packet(Terminate(pid)))
        except OSError:
            return False
        return True

    # --- when there is no answer ---------------------------------------------------

    def _not_warm(self) -> None:
        self._lost(f"was not ready within {self._pool.bounds.warm:g} s")

    def _unanswered(self, launch: str) -> None:
        silence = f"did not fork within {self._pool.bounds.fork:g} s"
        reason = self._pool.lost(self.template, was_ready=True, silence=silence)
        self._give_up(self._asked.pop(launch), reason)
        self._send_on()
        self._rest()

    def _give_up(self, asked: _Asked, reason: str) -> None:
        if asked.take_back():
            self._routes.fall_back(asked.launching, reason)
        else:
            # There was a process, which may have been admitted: no second one.
            problem = f"{TEMPLATE_LOST}: its worker had started: {reason}"
            asked.launching.on_failed(LaunchError(problem))

    def _ended(self, process: ForkedProcess) -> None:
        """Have it told how a worker has ended; it is the template that knows."""
        self._loop.remove_reader(process.pidfd)
        self._look(process, LOOKS)

    def _look(self, process: ForkedProcess, looks: int) -> None:
        if process.has_ended() or self._sock.fileno() < 0:
            return  # it was told, or there is nobody who could tell
        if looks:
            seconds = self._pool.bounds.exit / LOOKS
            self._loop.call_later(seconds, self._look, process, looks - 1)
            return
        self.template.kill()
        self._lost(f"did not tell of an end within {self._pool.bounds.exit:g} s")

    def _lost(self, silence: str = "") -> None:
        """Do without the template: it is gone, or as good as that."""
        self._disconnect()
        # Which another hub may know, though this one was not told yet.
        was_ready = self.template.is_ready
        reason = self._pool.lost(self.template, was_ready=was_ready, silence=silence)
        asked, self._asked = self._asked, {}
        for each in asked.values():
            self._give_up(each, reason)
        self._send_on()
        for process in list(self._processes.values()):
            # The kernel ends them with the template; this is for where it does not.
            process.kill()
            self._loop.add_reader(process.pidfd, self._orphan_ended, process)
        self._rest()

    def _orphan_ended(self, process: ForkedProcess) -> None:
        self._loop.remove_reader(process.pidfd)
        self._orphans.append(process)
        if len(self._orphans) == 1:
            self._swept = set()
            self._sweep(self._loop.time() + SWEEP)

    def _sweep(self, deadline: float) -> None:
        """End what workers of a lost template have left, and then tell of their ends."""
        if self._is_closed:
            return
        logs = tuple(self._logs[process.pid] for process in self._orphans)
        found = end_bearers(Trace(self.template.mark, logs))
        # Forks of the template that are just going, like it, are nothing they left.
        left = {p for p in found if not p.name.startswith("nestling:")}
        self._swept |= left
        if left and self._loop.time() < deadline:
            self._loop.call_later(LOOK, self._sweep, deadline)
            return
        orphans, self._orphans = self._orphans, []
        names = tuple(sorted(map(str, left)))
        # Whose they were is not known.
        exit = Exit(None, None, "", TEMPLATE_LOST, None, len(self._swept), names)
        for process in orphans:
            del self._processes[process.pid], self._logs[process.pid]
            process.ended(exit)
        self._rest()

    # --- the end -----------------------------------------------------------------

    def _rest(self) -> None:
        if not (self._waiting or self._asked or self._processes or self._is_closed):
            self._routes.is_idle(self)

    def _disconnect(self) -> None:
        self._timer.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()

    def close(self) -> None:
        """Give up what waits, and let go of the template."""
        if self._is_closed:
            return
        self._is_closed = True
        self._disconnect()
        for process in self._processes.values():
            self._loop.remove_reader(process.pidfd)
        for asked in self._asked.values():
            asked.take_back()
        self._asked.clear()
        self._waiting.clear()
        self.template.let_go()
