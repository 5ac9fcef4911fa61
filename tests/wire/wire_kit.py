"""Both ends of the wire for tests, and a peer that keeps to no rules."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Self

from nestling.wire.admission import Admission
from nestling.wire.socket_io import HubSocket, WorkerSocket

#: Seconds after which a test that waits has failed.
BOUND = 20.0


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a test on a loop of its own; errors of callbacks fail it."""
    errors: list[dict[str, Any]] = []

    async def bounded() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        await asyncio.wait_for(main, BOUND)

    asyncio.run(bounded())
    assert errors == []


async def until(condition: Callable[[], bool]) -> None:
    """Turn the loop until something is so; `run` bounds it."""
    while not condition():  # noqa: ASYNC110  # the condition is in libzmq's thread
        await asyncio.sleep(0)


class Hub:
    """A hub socket that keeps what it is given, and may answer it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.admission = Admission()
        self.got: list[tuple[str, bytes, list[bytes]]] = []
        self.refused: list[tuple[str, str]] = []
        self.answer: Callable[[str, bytes, list[bytes]], None] | None = None
        self.socket = HubSocket(
            endpoint,
            self.admission,
            self._on_message,
            lambda user, reason: self.refused.append((user, reason)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def _on_message(self, user: str, routing_id: bytes, frames: list[bytes]) -> None:
        self.got.append((user, routing_id, frames))
        if self.answer is not None:
            self.answer(user, routing_id, frames)

    @property
    def users(self) -> list[str]:
        """The users whose messages came, in order."""
        return [user for user, _, _ in self.got]


class Worker:
    """A worker socket that keeps what it is given, and may answer it."""

    def __init__(
        self, endpoint: str, user: str, token: str, routing_id: bytes = b""
    ) -> None:
        self.routing_id = routing_id or f"id-{user}".encode()
        self.got: list[list[bytes]] = []
        self.answer: Callable[[list[bytes]], None] | None = None
        self.socket = WorkerSocket(
            endpoint, user, token, self.routing_id, self._on_message
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.abort()

    def _on_message(self, frames: list[bytes]) -> None:
        self.got.append(frames)
        if self.answer is not None:
            self.answer(frames)


async def greet(hub: Hub, user: str) -> Worker:
    """Return a worker that was admitted, said hello and may be sent to."""
    hub.admission.expect(user, f"token-{user}")
    worker = Worker(hub.endpoint, user, f"token-{user}")
    before = len(hub.got)
    worker.socket.send([b"hello"])
    await until(lambda: len(hub.got) > before)
    hub.socket.allow(worker.routing_id, user)
    return worker


class RawPeer:
    """Speaks ZMTP 3.0 with the PLAIN mechanism byte by byte."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, endpoint: str) -> RawPeer:
        """Open a connection and say nothing yet."""
        path = endpoint.removeprefix("ipc://")
        return cls(*await asyncio.open_unix_connection(path))

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    def greeting(self, version: bytes = b"\3\0", mechanism: bytes = b"PLAIN") -> None:
        """Send the 64 bytes that open a connection."""
        signature = b"\xff" + b"\0" * 7 + b"\1\x7f"
        self.write(signature + version + mechanism.ljust(20, b"\0") + b"\0" * 32)

    def command(self, name: bytes, data: bytes) -> None:
        """Send a command frame."""
        body = bytes([len(name)]) + name + data
        self.write(b"\4" + bytes([len(body)]) + body)

    async def handshake(
        self, user: bytes, token: bytes, properties: dict[bytes, bytes]
    ) -> None:
        """Go through the handshake with any metadata."""
        self.greeting()
        credentials = bytes([len(user)]) + user + bytes([len(token)]) + token
        self.command(b"HELLO", credentials)
        await self._reader.readexactly(64 + 2 + 8)  # its greeting and WELCOME
        metadata = b"".join(
            bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
            for name, value in properties.items()
        )
        self.command(b"INITIATE", metadata)

    async def closed(self) -> None:
        """Wait until the other side has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65536):
                pass

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
