"""A synchronous ZeroMQ socket on an asyncio loop, several times faster than
`zmq.asyncio`.

How a socket is watched, for whoever edits this file:

- The descriptor that libzmq offers says "something changed", not "readable". It may
  be silent although messages wait, because any call on the socket, also a send, can
  swallow the change. So a send outside a turn schedules one, and each turn ends
  with another look at `EVENTS`.
- A turn takes at most `TURN_MESSAGES` messages and then gives the loop back.
- A timer turns the link as well: rarely as a backstop, often while messages wait
  for room, because a wake-up for room can be swallowed in the same way.
- A callback that raises ends its turn: the error reaches the loop's exception
  handler, and the next turn is already scheduled.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import zmq

from nestling.wire.codec import FRAME_CAP

#: A turn of the loop takes at most this many messages from one socket.
TURN_MESSAGES: Final = 256
#: Seconds between looks at a socket that is silent.
BACKSTOP: Final = 0.2
#: Seconds between looks at a socket that has no room for waiting messages.
RETRY: Final = 0.005
#: Messages that libzmq holds for each peer and direction. Not a bound on memory:
#: streams have credit for that.
HIGH_WATER: Final = 1000
#: libzmq drops a peer that sends a larger frame, in bytes. Above our own cap, so
#: that a frame just over that gets an error which says so.
FRAME_LIMIT: Final = FRAME_CAP + 4096

# Plain integers: pyzmq's flag enums cost more than the calls they are passed to.
_DONTWAIT: Final = int(zmq.DONTWAIT)
_MORE: Final = int(zmq.DONTWAIT | zmq.SNDMORE)
_POLLIN: Final = int(zmq.POLLIN)

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


def new_socket(context: Context, kind: int) -> Socket:
    """Return a socket with the options that all of ours share."""
    sock = context.socket(kind)
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.SNDHWM, HIGH_WATER)
    sock.setsockopt(zmq.RCVHWM, HIGH_WATER)
    sock.setsockopt(zmq.MAXMSGSIZE, FRAME_LIMIT)
    return sock


def put(sock: Socket, frames: Sequence[bytes]) -> None:
    """Send a message, about twice as fast as `send_multipart`.

    Raises:
        zmq.ZMQError: libzmq did not take it. It refuses the first frame or none.
    """
    for frame in frames[:-1]:
        sock.send(frame, _MORE)
    sock.send(frames[-1], _DONTWAIT)


def take(sock: Socket) -> tuple[zmq.Frame, list[bytes]]:
    """Receive a message, about twice as fast as `recv_multipart`.

    Returns:
        Its first frame, which carries the metadata, and the bytes of the others.

    Raises:
        zmq.Again: there is none.
    """
    first = sock.recv(_DONTWAIT, copy=False)
    rest: list[bytes] = []
    more = first.more
    while more:
        frame = sock.recv(_DONTWAIT, copy=False)
        rest.append(frame.bytes)
        more = frame.more
    return first, rest


class Link(ABC):
    """Turns one socket on the running loop until it is closed.

    Args:
        sock: the socket; the link closes it.
    """

    def __init__(self, sock: Socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._fd = int(sock.getsockopt(zmq.FD))
        # Whether a turn runs now or is scheduled: at most one at a time.
        self._due = False
        self._loop.add_reader(self._fd, self._wake)
        self._timer = self._loop.call_later(BACKSTOP, self._tick)
        self._schedule()

    # --- for subclasses ---------------------------------------------------------

    @abstractmethod
    def _receive(self) -> bool:
        """Take and handle one message; return False if there is none."""

    @abstractmethod
    def _flush(self) -> None:
        """Try again to send what waits for room."""

    def _waiting(self) -> bool:
        """Return whether messages wait for room."""
        return False

    def _interest(self) -> int:
        """Return the events that are worth another turn at once."""
        return _POLLIN

    # --- turning ----------------------------------------------------------------

    def _wake(self) -> None:
        if not self._due:
            self._turn()

    def _schedule(self) -> None:
        if not self._due and not self._closed:
            self._due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._due = True
        try:
            self._drain()
            if not self._closed:
                self._flush()
        finally:
            # Also if a callback raised: what is left must not wait for the timer.
            self._due = False
            if not self._closed and self._changed():
                self._schedule()

    def _drain(self) -> None:
        for _ in range(TURN_MESSAGES):
            if self._closed or not self._receive():
                return

    def _changed(self) -> bool:
        return bool(int(self._sock.getsockopt(zmq.EVENTS)) & self._interest())

    def _tick(self) -> None:
        self._arm()
        self._wake()

    def _arm(self) -> None:
        """Set the timer anew, for as soon as the state of the link asks for."""
        self._timer.cancel()
        delay = RETRY if self._waiting() else BACKSTOP
        self._timer = self._loop.call_later(delay, self._tick)

    # --- the end ----------------------------------------------------------------

    def _stop(self, linger: int) -> bool:
        """Close the socket; return False if that was done before.

        Args:
            linger: milliseconds for which libzmq may go on sending.
        """
        if self._closed:
            return False
        self._closed = True
        self._timer.cancel()
        self._loop.remove_reader(self._fd)
        self._sock.close(linger)
        return True
