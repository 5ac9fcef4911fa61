"""A worker's end of the wire: one DEALER, one connection, one loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import zmq

from nestling.session.errors import WireError
from nestling.wire.endpoint_io import ipc_path
from nestling.wire.link_io import Link, Socket, new_socket, put, take

#: Milliseconds for which a worker that closes may go on sending.
LINGER_MS: Final = 1000

OnWorkerMessage = Callable[[list[bytes]], None]


class WorkerSocket(Link):
    """Connects once, at once; what is sent before that waits, in order.

    A refusal looks like silence, and so does a hub that went away: libzmq tells
    neither. The worker's lifeline and the hub's boot timeout notice.

    Args:
        endpoint: the hub's `ipc://` endpoint.
        user: the name of the launch, 1 to 255 bytes.
        token: its token, 1 to 255 bytes.
        routing_id: 1 to 255 bytes that do not start with a zero byte.
        on_message: called with the frames of each message.

    Raises:
        WireError: an argument is out of bounds.
    """

    def __init__(
        self,
        endpoint: str,
        user: str,
        token: bytes | str,
        routing_id: bytes,
        on_message: OnWorkerMessage,
    ) -> None:
        ipc_path(endpoint)
        if routing_id.startswith(b"\0"):
            raise WireError("a routing id that starts with a zero byte")
        self._on_message = on_message
        self._queue: deque[list[bytes]] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._zmq = zmq.Context()
        secret = token.encode() if isinstance(token, str) else token
        try:
            super().__init__(self._connect(endpoint, user, secret, routing_id))
        except zmq.ZMQError as error:
            self._zmq.destroy(0)
            raise WireError(
                f"cannot connect to {endpoint!r} as {user!r}: {error}"
            ) from error

    def _connect(
        self, endpoint: str, user: str, token: bytes, routing_id: bytes
    ) -> Socket:
        sock = new_socket(self._zmq, zmq.DEALER)
        sock.setsockopt(zmq.ROUTING_ID, routing_id)
        sock.setsockopt(zmq.PLAIN_USERNAME, user.encode())
        sock.setsockopt(zmq.PLAIN_PASSWORD, token)
        # Nothing is queued for a connection that is not there, and a connection
        # that broke is not made again: its token would not be admitted.
        sock.setsockopt(zmq.IMMEDIATE, 1)
        sock.setsockopt(zmq.RECONNECT_IVL, -1)
        sock.connect(endpoint)
        return sock

    # --- sending ------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """How many messages wait for the connection, or for it to have room."""
        return len(self._queue)

    def send(self, frames: list[bytes]) -> bool:
        """Send a message, or keep it until there is room.

        Returns:
            False if this socket is closed. True promises nothing: only an answer
            does.
        """
        if self._closed:
            return False
        if not self._queue and self._put(frames):
            # The send may have swallowed the news of a message.
            self._schedule()
        else:
            self._keep(frames)
        return True

    async def drained(self) -> None:
        """Wait until nothing waits any more for room, or the socket is closed.

        Who sends much calls this now and then; who wants a last message to arrive
        calls it before `close`.
        """
        await self._room.wait()

    def _put(self, frames: list[bytes]) -> bool:
        try:
            put(self._sock, frames)
        except zmq.Again:
            return False
        return True

    def _keep(self, frames: list[bytes]) -> None:
        self._queue.append(frames)
        if self._room.is_set():
            self._room.clear()
            self._arm()

    def _waiting(self) -> bool:
        return bool(self._queue)

    def _interest(self) -> int:
        return zmq.POLLIN | zmq.POLLOUT if self._queue else zmq.POLLIN

    def _flush(self) -> None:
        while self._queue and self._put(self._queue[0]):
            self._queue.popleft()
        if not self._queue:
            self._room.set()

    # --- receiving ----------------------------------------------------------------

    def _receive(self) -> bool:
        try:
            header, body = take(self._sock)
        except zmq.Again:
            return False
        self._on_message([header.bytes, *body])
        return True

    # --- the end ------------------------------------------------------------------

    def close(self) -> None:
        """Close, and let libzmq send on for at most a second. May be called again.

        Blocks for that long if the hub does not read. What is still `queued` is lost:
        await `drained` first. Even then libzmq may lose the last few small messages,
        if the kernel's buffer is full just then (libzmq#1922): a worker whose `bye`
        must arrive waits for the hub's `close` before it calls this.
        """
        self._end(LINGER_MS)

    def abort(self) -> None:
        """Close at once; what was not sent is lost. May be called again."""
        self._end(0)

    def _end(self, linger: int) -> None:
        if self._stop(linger):
            self._queue.clear()
            self._room.set()
            self._zmq.destroy(linger)
