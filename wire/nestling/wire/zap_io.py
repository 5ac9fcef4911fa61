"""The door of the hub: answers libzmq's question whether a peer may connect (ZAP).

libzmq asks before the peer gets a routing id, over `ENDPOINT` in the socket's own
context. The answer names the user, and libzmq stamps that name on every message of
the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import zmq

from nestling.wire.admission import Admission, parse_peer_pid
from nestling.wire.link_io import Context, Link, new_socket

#: Fixed by libzmq.
ENDPOINT: Final = "inproc://zeromq.zap.01"
#: The ZAP domain of the hub's socket.
DOMAIN: Final = b"nestling"

OnRefused = Callable[[str, str], None]


class Doorkeeper(Link):
    """Serves ZAP requests in `context`; make it before the socket it guards.

    Args:
        context: the private context of the hub.
        admission: decides.
        on_refused: told the claimed user and the reason of each refusal.
    """

    def __init__(
        self, context: Context, admission: Admission, on_refused: OnRefused | None
    ) -> None:
        self._admission = admission
        self._on_refused = on_refused
        sock = new_socket(context, zmq.REP)
        sock.bind(ENDPOINT)
        super().__init__(sock)

    def close(self) -> None:
        """Stop answering. May be called again."""
        self._stop(0)

    def _receive(self) -> bool:
        try:
            request = self._sock.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return False
        user, reason = self._decide(request)
        self._answer(request, user, reason)
        if reason is not None and self._on_refused is not None:
            self._on_refused(user, reason)
        return True

    def _flush(self) -> None:
        """Do nothing: an answer goes out at once, or its peer is gone."""

    def _decide(self, request: list[bytes]) -> tuple[str, str | None]:
        # version, request id, domain, address, identity, mechanism, user, token
        if len(request) != 8 or request[5] != b"PLAIN" or request[2] != DOMAIN:
            return self._refuse("", "no user and token")
        try:
            user = request[6].decode()
        except UnicodeDecodeError:
            return self._refuse("", "a user that is not UTF-8")
        peer_pid = parse_peer_pid(request[3].decode("ascii", "replace"))
        return user, self._admission.admit(user, request[7], peer_pid)

    def _refuse(self, user: str, reason: str) -> tuple[str, str]:
        self._admission.refuse(user, reason)
        return user, reason

    def _answer(self, request: list[bytes], user: str, reason: str | None) -> None:
        # The peer is not told why: that would help only a stranger.
        status = [b"200", b"", user.encode()] if reason is None else [b"400", b"", b""]
        self._sock.send_multipart([b"1.0", request[1], *status, b""], zmq.DONTWAIT)
