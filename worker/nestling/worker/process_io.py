"""The worker process: one session, one connection, one loop.

It learns who it is over an inherited descriptor, keeps that descriptor as a lifeline,
and never outlives the driver: the kernel is asked to kill it when the thread that
started it is gone, and the end of the lifeline ends it where the kernel has no such
thing.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import os
import signal
import sys
import time
from typing import Final

from nestling.session.errors import WireError
from nestling.session.version import VERSION
from nestling.wire.agent_reference import TAPE
from nestling.wire.codec import decode_for_worker, encode
from nestling.wire.launch import LAUNCH_CAP, OFFLINE, LaunchSpec, decode_launch
from nestling.wire.messages import PROTOCOL, Beat, Create, Hello
from nestling.wire.worker_socket_io import WorkerSocket
from nestling.worker.agents import pilot_for
from nestling.worker.endpoint import Endpoint, Pilot
from nestling.worker.kernel_io import (
    IS_LINUX,
    adopt_orphans,
    die_with_parent,
    end_children,
    hear_of_children,
)

BEAT: Final = 2.0
"""Seconds of silence after which a worker says that it lives."""
EXIT_ORPHANED: Final = 3
EXIT_PROTOCOL: Final = 4
PROGRAM: Final = "nestling.worker"
"""What a worker runs as."""


def main(arguments: list[str]) -> int:
    """Run one worker.

    Args:
        arguments: the program's name and the number of the inherited descriptor.
    """
    if len(arguments) != 2 or not arguments[1].isdigit():
        sys.stderr.write("nestling.worker is started by a driver, not by hand\n")
        return 2
    faulthandler.enable()
    # One that seems to hang is asked for its stacks; before this, that would end it.
    faulthandler.register(signal.SIGUSR1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # One file takes both streams: what was printed first stands first. No tool
        # fails for a character that the locale cannot write.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    if OFFLINE in os.environ:
        from nestling.worker.network_io import stay_offline

        stay_offline()
    lifeline = int(arguments[1])
    spec = decode_launch(_read_line(lifeline))
    _die_with_parent(spec.parent_pid)
    adopt_orphans()
    hear_of_children()
    try:
        return asyncio.run(_run(spec, lifeline))
    finally:
        end_children()


def _read_line(fd: int) -> bytes:
    """Read the launch spec; the descriptor stays open as the lifeline.

    Nothing follows the spec, so that all that is there may be read at once.
    """
    line = b""
    while not line.endswith(b"\n") and len(line) <= LAUNCH_CAP:
        read = os.read(fd, LAUNCH_CAP)
        if not read:
            break
        line += read
    return line


def _die_with_parent(parent_pid: int) -> None:
    """Ask the kernel for SIGKILL when the one that started this ends (Linux only)."""
    if not IS_LINUX:
        return
    die_with_parent()
    if os.getppid() != parent_pid:  # it died before the kernel was asked
        os._exit(EXIT_ORPHANED)


async def _run(spec: LaunchSpec, lifeline: int) -> int:
    worker = _Worker(spec)
    loop = asyncio.get_running_loop()
    loop.add_reader(lifeline, _orphaned)
    try:
        return await worker.run()
    finally:
        loop.remove_reader(lifeline)


def _orphaned() -> None:
    """End at once: nobody wants a result any more, or there is nobody who could."""
    try:
        end_children()
        sys.stdout.flush()
    finally:
        os._exit(EXIT_ORPHANED)


class _Worker:
    """Carries messages between the socket and the endpoint."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = Endpoint(self._pilot_for, _epoch_ms)
        self._over: asyncio.Future[int] = self._loop.create_future()
        self._loop.set_exception_handler(self._broke)
        self._socket = WorkerSocket(
            spec.endpoint, spec.user, spec.token, spec.routing_id, self._received
        )
        self._last_said = self._loop.time()

    async def run(self) -> int:
        self._socket.send(encode(Hello(PROTOCOL, VERSION, os.getpid())))
        self._beat(self._loop.time())
        try:
            code = await self._over
            await self._socket.drained()
            return code
        finally:
            self._socket.close()

    def _received(self, frames: list[bytes]) -> None:
        if self._over.done():
            return
        try:
            message, body = decode_for_worker(frames)
            self._endpoint.handle(message, body)
        except WireError as error:
            sys.stderr.write(f"nestling.worker: protocol: {error}\n")
            self._over.set_result(EXIT_PROTOCOL)
        self._say_all()

    def _pilot_for(self, endpoint: Endpoint, create: Create, brief: bytes) -> Pilot:
        if create.agent == TAPE:
            return pilot_for(endpoint, create, brief)
        # Whoever plays tapes does not pay for what live agents need.
        from nestling.worker.live_agents_io import live_session

        return live_session(endpoint, create.agent, brief, self._proceed)

    def _proceed(self) -> None:
        """Send what the agent's code has to say between two messages."""
        if not self._over.done():
            self._endpoint.proceed()
            self._say_all()

    def _say_all(self) -> None:
        for message, body in self._endpoint.outbox:
            self._socket.send(encode(message, body))
            self._last_said = self._loop.time()
        self._endpoint.outbox.clear()
        if self._endpoint.is_closed and not self._over.done():
            self._over.set_result(0)

    def _beat(self, due: float) -> None:
        """Say that this loop turns, if nothing else has said so lately."""
        now = self._loop.time()
        sid = self._endpoint.sid
        if sid is not None and now - self._last_said >= BEAT:
            lag_ms = max(0, int((now - due) * 1000))
            self._socket.send(encode(Beat(sid, lag_ms)))
            self._last_said = now
        # From what it said last: else it could be silent for almost two beats.
        after = BEAT if sid is None else self._last_said + BEAT - now
        self._loop.call_later(after, self._beat, now + after)

    def _broke(
        self, loop: asyncio.AbstractEventLoop, context: dict[str, object]
    ) -> None:
        """Let an error in a callback end the worker, and its log say which.

        A task of the agent's code that failed and that nobody waited for is none.
        """
        error = context.get("exception")
        is_callback = "handle" in context and not self._over.done()
        if isinstance(error, BaseException) and is_callback:
            self._over.set_exception(error)
        else:
            loop.default_exception_handler(context)


def _epoch_ms() -> int:
    return time.time_ns() // 1_000_000
