"""Hub and worker over ipc: delivery, order, backpressure, ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import zmq

from nestling.session.errors import WireError
from nestling.wire import link_io
from nestling.wire.admission import Admission
from nestling.wire.codec import decode_for_hub, decode_for_worker, encode
from nestling.wire.link_io import put
from nestling.wire.messages import Chunks, Events, Hello, Welcome
from nestling.wire.socket_io import HubSocket, WorkerSocket
from wire.wire_kit import BOUND, Hub, Worker, greet, run, until

MANY = 20_000
FIVE_MIB = bytes(range(256)) * (5 * 4096)


def numbered(count: int) -> list[list[bytes]]:
    return [[b"n", n.to_bytes(4, "big")] for n in range(count)]


def test_hello_and_welcome(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            hub.admission.expect("alice", "secret")
            with Worker(endpoint, "alice", "secret", b"rid") as worker:
                hello = Hello(1, "alice-says-bob", 5)
                worker.socket.send(encode(hello))
                await until(lambda: len(hub.got) == 1)
                user, routing_id, frames = hub.got[0]
                assert (user, routing_id) == ("alice", b"rid")
                assert decode_for_hub(frames) == (hello, b"")
                hub.socket.allow(routing_id, user)
                assert hub.socket.send(routing_id, encode(Welcome(1)))
                await until(lambda: len(worker.got) == 1)
                assert decode_for_worker(worker.got[0]) == (Welcome(1), b"")

    run(main())


def test_nothing_goes_out_before_allow(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            hub.admission.expect("u", "t")
            with Worker(endpoint, "u", "t") as worker:
                worker.socket.send([b"hello"])
                await until(lambda: len(hub.got) == 1)
                with pytest.raises(WireError, match="has not said hello"):
                    hub.socket.send(worker.routing_id, [b"create"])
                hub.socket.allow(worker.routing_id, "u")
                hub.socket.send(worker.routing_id, [b"welcome"])
                await until(lambda: bool(worker.got))
                hub.socket.forget(worker.routing_id)
                with pytest.raises(WireError, match="has not said hello"):
                    hub.socket.send(worker.routing_id, [b"more"])
                assert worker.got == [[b"welcome"]]

    run(main())


def test_a_routing_id_is_one_users(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            hub.socket.allow(b"rid", "alice")
            hub.socket.allow(b"rid", "alice")
            with pytest.raises(WireError, match="'mallory' took the routing id"):
                hub.socket.allow(b"rid", "mallory")

    run(main())


def test_large_bodies_both_ways(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            worker.socket.send(encode(Events(1, 0, 1), FIVE_MIB))
            await until(lambda: len(hub.got) == 2)
            assert decode_for_hub(hub.got[1][2]) == (Events(1, 0, 1), FIVE_MIB)
            hub.socket.send(worker.routing_id, encode(Chunks(1, 2, 0, 1), FIVE_MIB))
            await until(lambda: len(worker.got) == 1)
            assert decode_for_worker(worker.got[0])[1] == FIVE_MIB

    run(main())


def test_many_messages_both_ways_keep_order_under_backpressure(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            for frames in numbered(MANY):
                worker.socket.send(frames)
                hub.socket.send(worker.routing_id, frames)
            assert worker.socket.queued > 0
            assert hub.socket.queued(worker.routing_id) > 0
            await worker.socket.drained()
            await until(lambda: len(hub.got) > MANY and len(worker.got) == MANY)
            assert [frames for _, _, frames in hub.got[1:]] == numbered(MANY)
            assert worker.got == numbered(MANY)
            assert hub.socket.queued(worker.routing_id) == worker.socket.queued == 0

    run(main())


def test_what_is_sent_while_some_waits_goes_behind_it(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            total = 5000
            todo = numbered(total)
            hub.answer = lambda *_: next_one(hub, worker)

            def next_one(hub: Hub, worker: Worker) -> None:
                if todo:
                    hub.socket.send(worker.routing_id, todo.pop(0))

            for n in range(total):
                worker.socket.send([b"%d" % n])
                if n % 7 == 0:
                    await asyncio.sleep(0)
            await until(lambda: len(worker.got) == total)
            assert worker.got == numbered(total)

    run(main())


def test_a_peer_without_room_holds_up_no_other(endpoint: str) -> None:
    async def main() -> None:
        with (
            Hub(endpoint) as hub,
            await greet(hub, "slow") as slow,
            await greet(hub, "quick") as quick,
        ):
            loop = asyncio.get_running_loop()
            loop.remove_reader(slow.socket._fd)
            slow.socket._timer.cancel()
            for frames in numbered(MANY):
                hub.socket.send(slow.routing_id, frames)
            assert hub.socket.queued(slow.routing_id) > 0
            hub.socket.send(quick.routing_id, [b"now"])
            await until(lambda: quick.got == [[b"now"]])
            assert hub.socket.queued(slow.routing_id) > 0
            loop.add_reader(slow.socket._fd, slow.socket._wake)
            slow.socket._arm()
            await until(lambda: len(slow.got) == MANY)
            assert slow.got == numbered(MANY)

    run(main())


def idle(link: link_io.Link) -> bool:
    """Whether no turn is due, and none comes soon."""
    return not link._due and link._timer.when() - link._loop.time() > link_io.RETRY


def test_what_waits_is_tried_again_soon(endpoint: str) -> None:
    """Room that was made may go unnoticed: the timer must not be the slow one."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            await until(lambda: idle(hub.socket))
            for frames in numbered(MANY):
                worker.socket.send(frames)
                hub.socket.send(worker.routing_id, frames)
            for link in (hub.socket, worker.socket):
                assert link._timer.when() - loop.time() <= link_io.RETRY

    run(main())


def swallow(link: HubSocket | WorkerSocket, event: int) -> None:
    """Make libzmq notice an event, which takes the news of it from the loop."""
    while not int(link._sock.getsockopt(zmq.EVENTS)) & event:
        pass


def test_a_send_swallows_no_message(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a turn after a send, only the timer would notice."""
    monkeypatch.setattr(link_io, "BACKSTOP", 10 * BOUND)

    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            await until(lambda: idle(hub.socket) and idle(worker.socket))
            put(worker.socket._sock, [b"ping"])
            swallow(hub.socket, zmq.POLLIN)
            hub.socket.send(worker.routing_id, [b"pong"])
            await until(lambda: len(hub.got) == 2)
            await until(lambda: len(worker.got) == 1 and idle(worker.socket))
            put(hub.socket._sock, [worker.routing_id, b"ping"])
            swallow(worker.socket, zmq.POLLIN)
            worker.socket.send([b"pong"])
            await until(lambda: len(worker.got) == 2)

    run(main())


def test_new_room_is_for_what_waits(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            for frames in numbered(MANY)[:-1]:
                worker.socket.send(frames)
            # Both at once, without the loop: it would fill the room first.
            while not int(worker.socket._sock.getsockopt(zmq.EVENTS)) & zmq.POLLOUT:
                hub.socket._turn()
            assert worker.socket.queued > 0
            worker.socket.send(numbered(MANY)[-1])
            await until(lambda: len(hub.got) == MANY + 1)
            assert [frames for _, _, frames in hub.got[1:]] == numbered(MANY)

    run(main())


def test_a_turn_gives_the_loop_back_and_comes_again(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_io, "BACKSTOP", 10 * BOUND)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            runs: list[int] = [0]
            hub.answer = lambda *_: runs.__setitem__(-1, runs[-1] + 1)

            def tick() -> None:
                runs.append(0)
                if sum(runs) < 5000:
                    loop.call_soon(tick)

            for frames in numbered(5000):
                worker.socket.send(frames)
            tick()
            await until(lambda: len(hub.got) == 5001)
            assert max(runs) <= link_io.TURN_MESSAGES

    run(main())


def test_a_peer_that_went_away(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            assert hub.socket.send(worker.routing_id, [b"x"])
            worker.socket.abort()
            await until(lambda: not hub.socket.send(worker.routing_id, [b"x"]))
            assert not hub.socket.send(worker.routing_id, [b"x"])
            hub.socket.allow(b"never-there", "v")
            assert not hub.socket.send(b"never-there", [b"x"])

    run(main())


def test_what_waits_for_a_peer_that_went_away_is_dropped(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            for frames in numbered(MANY):
                hub.socket.send(worker.routing_id, frames)
            assert hub.socket.queued(worker.routing_id) > 0
            worker.socket.abort()
            await until(lambda: hub.socket.queued(worker.routing_id) == 0)
            assert not hub.socket.send(worker.routing_id, [b"x"])

    run(main())


def test_an_error_in_a_callback_is_reported_and_the_rest_still_comes(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_io, "BACKSTOP", 10 * BOUND)
    reported: list[Any] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, what: reported.append(what["exception"]))
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            count = 10

            def bad(*_: object) -> None:
                raise ValueError(f"bad {len(hub.got)}")

            hub.answer = bad
            for frames in numbered(count):
                worker.socket.send(frames)
            await until(lambda: len(hub.got) == 1 + count)
            await until(lambda: len(reported) == count)

    run(main())
    assert [str(error) for error in reported] == [f"bad {n}" for n in range(2, 12)]


def test_a_worker_that_closes_has_said_its_last_word(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            for _ in range(50):
                worker.socket.send([bytes(256 * 1024)])
            await worker.socket.drained()
            worker.socket.close()
            await until(lambda: len(hub.got) == 51)

    run(main())


def test_what_is_closed_is_watched_no_more(endpoint: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            links: list[link_io.Link] = [hub.socket, hub.socket._door, worker.socket]
            hub.socket.close()
            worker.socket.close()
            assert not any(loop.remove_reader(link._fd) for link in links)
            assert all(link._timer.cancelled() for link in links)

    run(main())


def test_closing_again_leaves_the_next_hub_alone(endpoint: str) -> None:
    async def main() -> None:
        first = Hub(endpoint)
        first.socket.close()
        with Hub(endpoint) as second:
            first.socket.close()
            await greet_and_leave(second)

    async def greet_and_leave(hub: Hub) -> None:
        with await greet(hub, "u"):
            pass

    run(main())


def test_a_refused_worker_keeps_what_it_has_to_say_and_does_not_come_again(
    endpoint: str,
) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, Worker(endpoint, "u", "t") as worker:
            worker.socket.send([b"hello"])
            await until(lambda: bool(hub.refused))
            assert worker.socket.queued == 1
            assert worker.socket._sock.getsockopt(zmq.RECONNECT_IVL) == -1
            waiting = asyncio.ensure_future(worker.socket.drained())
            await asyncio.sleep(0)
            assert not waiting.done()
            worker.socket.close()
            await waiting

    run(main())


def test_close_may_be_called_again(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub:
            worker = await greet(hub, "u")
            for _ in range(2):
                worker.socket.close()
                worker.socket.abort()
            assert not worker.socket.send([b"x"])
            await worker.socket.drained()
            for _ in range(2):
                hub.socket.close()
            assert not hub.socket.send(worker.routing_id, [b"x"])

    run(main())
    assert not Path(endpoint.removeprefix("ipc://")).exists()


def test_either_end_may_close_from_its_callback(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            worker.answer = lambda _: worker.socket.close()
            hub.answer = lambda *_: hub.socket.close()
            hub.socket.send(worker.routing_id, [b"1"])
            hub.socket.send(worker.routing_id, [b"2"])
            await until(lambda: len(worker.got) == 1)
            with Hub(endpoint + "2") as second, await greet(second, "u") as other:
                second.answer = lambda *_: second.socket.close()
                other.socket.send([b"1"])
                other.socket.send([b"2"])
                await until(lambda: len(second.got) == 2)

    run(main())


def test_closing_hangs_on_nobody(endpoint: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        alone = WorkerSocket(endpoint, "u", "t", b"r", lambda _: None)
        alone.send([b"x"])
        with Hub(endpoint) as hub:
            stuck = await greet(hub, "v")
            for _ in range(3000):
                hub.socket.send(stuck.routing_id, [bytes(4096)])
                stuck.socket.send([bytes(4096)])
            begun = loop.time()
            alone.close()
            stuck.socket.close()
            hub.socket.close()
            assert loop.time() - begun < 5

    run(main())


def test_an_endpoint_is_bound_once(endpoint: str) -> None:
    async def main() -> None:
        with Hub(endpoint) as hub, await greet(hub, "u") as worker:
            with pytest.raises(WireError, match="exists already"):
                HubSocket(endpoint, Admission(), lambda *_: None)
            worker.socket.send([b"still"])
            await until(lambda: len(hub.got) == 2)
        with pytest.raises(WireError, match="cannot bind"):
            HubSocket(endpoint + "/no/such", Admission(), lambda *_: None)

    run(main())


@pytest.mark.parametrize(
    ("user", "token", "routing_id"),
    [
        ("", "t", b"r"),
        ("u", "", b"r"),
        ("u", "t", b""),
        ("u" * 256, "t", b"r"),
        ("u", "t" * 256, b"r"),
        ("u", "t", b"r" * 256),
        ("u", "t", b"\0abcd"),
    ],
)
def test_what_a_worker_cannot_be(
    endpoint: str, user: str, token: str, routing_id: bytes
) -> None:
    async def main() -> None:
        with pytest.raises(WireError):
            WorkerSocket(endpoint, user, token, routing_id, lambda _: None)
        with pytest.raises(WireError):
            WorkerSocket("ipc://@abstract", "u", "t", b"r", lambda _: None)

    run(main())
