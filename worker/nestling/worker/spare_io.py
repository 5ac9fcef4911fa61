"""A spare: a fork that was made before anybody asked, and waits to become a worker.

Forking, and touching for the first time what a worker touches, is half of the time of a
start. The template does it when it has nothing else to do. Whether a worker may be
forked at all is still judged at the request; a spare of a template that may not is ended.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from nestling.wire.fork import FORK_FDS, PACKET_CAP, Fork, decode_for_template
from nestling.wire.fork import encode_packet as _encoded


class Spare:
    """A spare, as its template sees it.

    Attributes:
        pid: its process.
    """

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self._sock = sock

    def become(self, fork: Fork, fds: list[int]) -> bool:
        """Make it a worker; False if it is not there any more."""
        try:
            socket.send_fds(self._sock, [_encoded(fork)], fds)
        except OSError:
            return False
        finally:
            self._sock.close()
        return True

    def dismiss(self) -> None:
        """Let it end."""
        self._sock.close()


def wait(seat: int) -> tuple[Fork, int, int] | None:
    """Wait, in a spare, for what it becomes; None if it is not needed."""
    with socket.socket(fileno=seat) as sock, suppress(ConnectionError):
        data, fds, _, _ = socket.recv_fds(sock, PACKET_CAP, FORK_FDS)
        packet = decode_for_template(data) if data else None
        if isinstance(packet, Fork) and len(fds) == FORK_FDS:
            log, lifeline = fds
            return packet, log, lifeline
    return None


def pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a spare's seat: the template's, and its own.

    Raises:
        OSError: if there is no descriptor left.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.set_inheritable(its.fileno(), False)
    return ours, its
