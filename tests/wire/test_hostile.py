"""Peers that the hub must survive, and must not believe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from nestling.wire.link_io import FRAME_LIMIT
from wire.wire_kit import Hub, RawPeer, Worker, greet, run, until

Socket = zmq.Socket[bytes]
FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)


@contextmanager
def stranger(
    endpoint: str, user: bytes = b"", token: bytes = b"", routing_id: bytes = b""
) -> Iterator[tuple[Socket, Socket]]:
    """A DEALER of no manners, and the socket that tells when it is thrown out."""
    context = zmq.Context()
    sock = context.socket(zmq.DEALER)
    sock.setsockopt(zmq.RECONNECT_IVL, -1)
    if user:
        sock.setsockopt(zmq.PLAIN_USERNAME, user)
        sock.setsockopt(zmq.PLAIN_PASSWORD, token)
    if routing_id:
        sock.setsockopt(zmq.ROUTING_ID, routing_id)
    monitor: Socket = sock.get_monitor_socket(FAILED)
    sock.connect(endpoint)
    try:
        yield sock, monitor
    finally:
        sock.disable_monitor()
        context.destroy(0)


async def thrown_out(monitor: Socket) -> None:
    await until(lambda: bool(monitor.poll(0)))
    assert recv_monitor_message(monitor)["event"] & FAILED


async def serves(hub: Hub, user: str) -> None:
    """Check that a good peer that comes now is served."""
    with await greet(hub, user) as worker:
        hub.socket.send(worker.routing_id, [b"welcome"])
        await until(lambda: worker.got == [[b"welcome"]])


REFUSED = [
    (b"alice", b"wrong", "wrong token"),
    (b"nobody", b"secret", "unknown user"),
    (b"\xff\xfe", b"secret", "a user that is not UTF-8"),
]


@pytest.mark.parametrize(("user", "token", "reason"), REFUSED)
def test_bad_credentials(endpoint: str, user: bytes, token: bytes, reason: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            hub.admission.expect("alice", "secret")
            with stranger(endpoint, user, token, b"rid") as (sock, monitor):
                sock.send(b"hello")
                await thrown_out(monitor)
            assert [why for _, why in hub.refused] == [reason]
            assert hub.admission.refusals == hub.refused
            await serves(hub, "bob")
            assert hub.users == ["bob"]

    run(main())


def test_a_token_does_not_work_again(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "alice") as alice:
            with stranger(endpoint, b"alice", b"token-alice", b"r2") as (sock, monitor):
                sock.send(b"hello")
                await thrown_out(monitor)
            assert hub.refused == [("alice", "token already used")]
            alice.socket.send([b"still here"])
            await until(lambda: len(hub.got) == 2)
            await serves(hub, "bob")
            assert hub.users == ["alice", "alice", "bob"]

    run(main())


def test_no_credentials(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            with stranger(endpoint, routing_id=b"rid") as (sock, monitor):
                sock.send(b"hello")
                await thrown_out(monitor)
            await serves(hub, "bob")
            assert hub.users == ["bob"]

    run(main())


def test_the_kernels_pid_must_fit(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            hub.admission.expect("u", "t", os.getpid() + 1)
            with stranger(endpoint, b"u", b"t", b"rid") as (sock, monitor):
                sock.send(b"hello")
                await thrown_out(monitor)
            reason = f"pid {os.getpid()}, expected {os.getpid() + 1}"
            assert hub.refused == [("u", reason)]
            hub.admission.set_pid("u", os.getpid())
            with Worker(endpoint, "u", "t") as worker:
                worker.socket.send([b"hello"])
                await until(lambda: hub.users == ["u"])

    run(main())


def test_a_peer_cannot_take_anothers_routing_id(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "alice") as alice:
            hub.admission.expect("mallory", "m")
            rid = alice.routing_id
            with Worker(endpoint, "mallory", "m", rid) as mallory:
                mallory.socket.send([b"it is me"])
                await mallory.socket.drained()
                hub.socket.send(rid, [b"for alice"])
                await until(lambda: alice.got == [[b"for alice"]])
                await serves(hub, "bob")
                assert mallory.got == []
                assert "mallory" not in hub.users

    run(main())


def test_a_peer_at_the_routing_id_of_one_that_left_is_not_believed(
    endpoint: str,
) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            alice = await greet(hub, "alice")
            rid = alice.routing_id
            hub.admission.expect("mallory", "m")
            alice.socket.abort()
            # Ask libzmq itself: `send` would note that alice is gone. Then let a
            # whole connection pass through it, until when it may keep her id taken.
            await until(lambda: not reachable(hub, rid))
            await serves(hub, "bob")
            with Worker(endpoint, "mallory", "m", rid) as mallory:
                mallory.socket.send([b"it is me"])
                await until(lambda: hub.admission.refused > 0)
                assert not hub.socket.send(rid, [b"for alice"])
                assert hub.users == ["alice", "bob"]
                reason = "spoke at the routing id of 'alice'"
                assert hub.admission.refusals == [("mallory", reason)]
                assert mallory.got == []

    run(main())


def reachable(hub: Hub, routing_id: bytes) -> bool:
    try:
        hub.socket._sock.send_multipart([routing_id, b"?"], zmq.DONTWAIT)
    except zmq.ZMQError:
        return False
    return True


def test_routing_ids_of_zeromqs_own_kind_are_not_heard(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            for n, rid in enumerate([b"", b"\0forg"]):
                hub.admission.expect(f"u{n}", "t")
                with stranger(endpoint, f"u{n}".encode(), b"t", rid) as (sock, _):
                    sock.send(b"hello")
                    await until(lambda: hub.admission.refused == n + 1)  # noqa: B023
            assert {why for _, why in hub.admission.refusals} == {
                "no routing id of its own"
            }
            await serves(hub, "bob")
            assert hub.users == ["bob"]

    run(main())


def test_a_user_id_in_the_peers_own_metadata_does_not_count(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            hub.admission.expect("mallory", "m")
            peer = await RawPeer.connect(endpoint)
            properties = {
                b"Socket-Type": b"DEALER",
                b"Identity": b"rid",
                b"User-Id": b"alice",
            }
            await peer.handshake(b"mallory", b"m", properties)
            peer.write(b"\0\5hello")
            await until(lambda: bool(hub.got))
            assert hub.got == [("mallory", b"rid", [b"hello"])]
            await peer.close()

    run(main())


@pytest.mark.parametrize(
    "data",
    [b"\0" * 200, b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(range(256)), b"\xff" * 99],
)
def test_garbage_in_place_of_a_handshake(endpoint: str, data: bytes) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            peer = await RawPeer.connect(endpoint)
            peer.write(data)
            await peer.closed()
            await peer.close()
            await serves(hub, "bob")
            assert hub.users == ["bob"]

    run(main())


@pytest.mark.parametrize("version", [b"\0\0", b"\1\0"])
def test_old_protocols_do_not_get_round_the_door(endpoint: str, version: bytes) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            peer = await RawPeer.connect(endpoint)
            # ZMTP 1 and 2 have no credentials: signature, version, type, identity.
            peer.write(b"\xff" + b"\0" * 7 + b"\1\x7f" + version[:1] + b"\5\0\3rid")
            peer.write(b"\0\5hello")
            await peer.closed()
            await peer.close()
            await serves(hub, "bob")
            assert hub.users == ["bob"]

    run(main())


def test_messages_before_the_handshake_is_done_are_not_heard(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            peer = await RawPeer.connect(endpoint)
            peer.greeting()
            peer.write(b"\0\5hello")
            await peer.closed()
            await peer.close()
            await serves(hub, "bob")
            assert hub.users == ["bob"]

    run(main())


def test_a_frame_over_the_limit_costs_the_peer_its_connection(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            hub.admission.expect("u", "t")
            with stranger(endpoint, b"u", b"t", b"rid") as (sock, monitor):
                sock.send(bytes(FRAME_LIMIT))
                await until(lambda: len(hub.got) == 1)
                sock.send(bytes(FRAME_LIMIT + 1))
                await thrown_out(monitor)
            hub.socket.allow(b"rid", "u")
            await until(lambda: not hub.socket.send(b"rid", [b"x"]))
            await serves(hub, "bob")
            assert hub.users == ["u", "bob"]

    run(main())


def test_a_hub_closes_while_peers_knock(endpoint: str) -> None:
    async def main() -> None:
        hub = Hub(endpoint)
        peers = [await RawPeer.connect(endpoint) for _ in range(5)]
        for peer in peers[1:]:
            peer.greeting()
        peers[2].command(b"HELLO", b"\1u\1t")
        hub.socket.close()
        for peer in peers:
            await peer.close()

    run(main())
