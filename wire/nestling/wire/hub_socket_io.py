"""The hub's end of the wire: one ROUTER for all workers.

Guarantees:

- `on_message` gets the user that was admitted, whatever the message says.
- Nothing goes to a routing id before `allow`, or once another user speaks there.
- Order is kept for each peer, and a peer without room holds up no other.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from typing import Final

import zmq

from nestling.session.errors import WireError
from nestling.wire.admission import Admission
from nestling.wire.endpoint_io import new_ipc_path
from nestling.wire.link_io import Link, Socket, new_socket, put, take
from nestling.wire.zap_io import DOMAIN, Doorkeeper, OnRefused

#: Milliseconds within which a peer must have shown its credentials.
HANDSHAKE_MS: Final = 5000

OnHubMessage = Callable[[str, bytes, list[bytes]], None]


class _Peer:
    """One routing id that the hub may send to."""

    __slots__ = ("gone", "queue", "user")

    def __init__(self, user: str) -> None:
        self.user = user
        self.gone = False
        self.queue: deque[list[bytes]] = deque()


class HubSocket(Link):
    """The hub's end. Makes a context of its own: ZAP handlers are per context.

    Args:
        endpoint: an `ipc://` path that does not exist yet; unlinked at close.
        admission: decides who may connect.
        on_message: called with user, routing id and frames of each message. The user
            is the one who was admitted, never what the message says.
        on_refused: called with the claimed user and the reason of each refusal.

    Raises:
        WireError: the endpoint cannot be used.
    """

    def __init__(
        self,
        endpoint: str,
        admission: Admission,
        on_message: OnHubMessage,
        on_refused: OnRefused | None = None,
    ) -> None:
        self._path = new_ipc_path(endpoint)
        self._admission = admission
        self._on_message = on_message
        self._peers: dict[bytes, _Peer] = {}
        self._stuck: dict[bytes, _Peer] = {}
        self._zmq = zmq.Context()
        with contextlib.ExitStack() as undo:
            undo.callback(self._zmq.destroy, 0)
            try:
                # libzmq looks the handler up when a peer comes: it goes first.
                self._door = Doorkeeper(self._zmq, admission, on_refused)
                undo.callback(self._door.close)
                super().__init__(self._bind(endpoint))
            except zmq.ZMQError as error:
                raise WireError(f"cannot bind {endpoint!r}: {error}") from error
            undo.pop_all()

    def _bind(self, endpoint: str) -> Socket:
        sock = new_socket(self._zmq, zmq.ROUTER)
        sock.setsockopt(zmq.PLAIN_SERVER, 1)
        # Never without the domain: enforcing an empty one aborts the process.
        sock.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
        sock.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # With handover a second peer would be sent what is meant for the first.
        sock.setsockopt(zmq.ROUTER_HANDOVER, 0)
        sock.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        sock.bind(endpoint)
        return sock

    # --- sending ------------------------------------------------------------------

    def allow(self, routing_id: bytes, user: str) -> None:
        """Let messages go to a routing id, once its `hello` proved good.

        Raises:
            WireError: it belongs to another user already.
        """
        peer = self._peers.setdefault(routing_id, _Peer(user))
        if peer.user != user:
            raise WireError(f"user {user!r} took the routing id of {peer.user!r}")

    def forget(self, routing_id: bytes) -> None:
        """Let nothing more go to a routing id, and drop what waits for it."""
        self._peers.pop(routing_id, None)
        self._stuck.pop(routing_id, None)

    def send(self, routing_id: bytes, frames: list[bytes]) -> bool:
        """Send a message, or keep it until the peer has room.

        Returns:
            False if the peer is gone or this socket is closed. True promises nothing: only an answer does.

        Raises:
            WireError: the routing id has not been allowed.
        """
        if self._closed:
            return False
        peer = self._peers.get(routing_id)
        if peer is None:
            raise WireError(f"routing id {routing_id.hex()} has not said hello")
        if not peer.queue and self._put(routing_id, peer, frames):
            # The send may have swallowed the news of a message.
            self._schedule()
        elif not peer.gone:
            self._keep(routing_id, peer, frames)
        return not peer.gone

    def queued(self, routing_id: bytes) -> int:
        """Return how many messages wait for the peer to have room."""
        peer = self._peers.get(routing_id)
        return len(peer.queue) if peer else 0

    def _put(self, routing_id: bytes, peer: _Peer, frames: list[bytes]) -> bool:
        """Hand a message to libzmq; return False if it did not take it."""
        if peer.gone:
            return False
        try:
            put(self._sock, [routing_id, *frames])
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            peer.gone = True
            peer.queue.clear()
            return False
        return True

    def _keep(self, routing_id: bytes, peer: _Peer, frames: list[bytes]) -> None:
        peer.queue.append(frames)
        if routing_id not in self._stuck:
            self._stuck[routing_id] = peer
            self._arm()

    def _waiting(self) -> bool:
        return bool(self._stuck)

    def _flush(self) -> None:
        for routing_id, peer in list(self._stuck.items()):
            while peer.queue and self._put(routing_id, peer, peer.queue[0]):
                peer.queue.popleft()
            if not peer.queue:
                del self._stuck[routing_id]

    # --- receiving ----------------------------------------------------------------

    def _receive(self) -> bool:
        try:
            # The routing id's frame carries the same metadata as the message's own.
            head, frames = take(self._sock)
        except zmq.Again:
            return False
        routing_id, user = head.bytes, str(head.get("User-Id"))
        reason = self._suspect(routing_id, user)
        if reason is None:
            self._on_message(user, routing_id, frames)
        else:
            self._admission.refuse(user, reason)
        return True

    def _suspect(self, routing_id: bytes, user: str) -> str | None:
        """Say why a message is not to be delivered, or None."""
        if routing_id.startswith(b"\0"):
            # An id that libzmq made up can clash with a forged one, which aborts
            # the process if it is relied on. Workers always choose theirs.
            return "no routing id of its own"
        peer = self._peers.get(routing_id)
        if peer is None or peer.user == user:
            return None
        # The right peer is gone, or libzmq would not have let this one have its id.
        peer.gone = True
        peer.queue.clear()
        return f"spoke at the routing id of {peer.user!r}"

    # --- the end ------------------------------------------------------------------

    def close(self) -> None:
        """Close at once; what waits is lost. May be called again."""
        if self._stop(0):
            self._door.close()
            self._zmq.destroy(0)
            # libzmq leaves the file behind.
            with contextlib.suppress(OSError):
                os.unlink(self._path)
