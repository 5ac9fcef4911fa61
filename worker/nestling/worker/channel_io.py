"""A template's end of a socket pair: packets with descriptors, and never a wait."""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Sequence

from nestling.wire.fork import (
    FORK_FDS,
    PACKET_CAP,
    FromTemplate,
    ToTemplate,
    decode_for_template,
    encode_packet,
)


class Channel:
    """A socket pair's end, with what waits to be sent over it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._waiting: deque[tuple[bytes, Sequence[int]]] = deque()

    def receive(self) -> tuple[ToTemplate, list[int]] | None:
        """Return the next packet with its descriptors; None at the end.

        Raises:
            BlockingIOError: if there is none yet.
        """
        flags = socket.MSG_CMSG_CLOEXEC
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, PACKET_CAP, FORK_FDS, flags)
        except ConnectionError:
            return None
        return (decode_for_template(data), fds) if data else None

    def send(self, packet: FromTemplate, fds: Sequence[int] = ()) -> None:
        """Send a packet, or keep it until there is room."""
        self._waiting.append((encode_packet(packet), fds))
        self.flush()

    def flush(self) -> None:
        """Send what there is room for; descriptors are closed once they are sent."""
        while self._waiting:
            data, fds = self._waiting[0]
            try:
                socket.send_fds(self.sock, [data], fds)
            except BlockingIOError:
                return
            except OSError:
                pass  # the hub is gone: its end of the channel will say so
            self._waiting.popleft()
            for fd in fds:
                os.close(fd)

    @property
    def interest(self) -> int:
        """What to wait for."""
        return select.POLLIN | (select.POLLOUT if self._waiting else 0)
