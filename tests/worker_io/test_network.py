"""What is kept off the network, what is not the network, and that it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from nestling.driver import Driver
from nestling.driver.launcher_io import ExecLauncher, Launcher
from nestling.driver.template_launcher_io import TemplateLauncher
from nestling.session.errors import NetworkBlockedError
from nestling.worker.network_io import blocked, lifted
from support.processes import needs_linux

# Addresses and a name that are kept for documents and lead nowhere.
FAR, FAR6, NAME = "192.0.2.1", "2001:db8::1", "model.invalid"

AGENT = f"""
import socket


async def caller(turn):
    socket.create_connection(({FAR!r}, 443), timeout=0.01)
"""


def _connects(family: socket.AddressFamily, address: tuple[str, int]) -> None:
    with socket.socket(family) as sock:
        sock.setblocking(False)
        sock.connect(address)


def _sends() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", (FAR, 9))


async def _opens() -> None:
    await asyncio.open_connection(FAR, 443)


FORBIDDEN: dict[str, Callable[[], object]] = {
    "IPv4": lambda: _connects(socket.AF_INET, (FAR, 443)),
    "IPv6": lambda: _connects(socket.AF_INET6, (FAR6, 443)),
    "datagram": _sends,
    "name": lambda: socket.getaddrinfo(NAME, 443),
    "old lookup": lambda: socket.gethostbyname(NAME),
    "name of an address": lambda: socket.gethostbyaddr(FAR),
    "name of an address and a port": lambda: socket.getnameinfo((FAR, 443), 0),
    "asyncio": lambda: asyncio.run(_opens()),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_is_blocked_and_says_what(what: str) -> None:
    with (
        blocked("in a test"),
        pytest.raises(
            NetworkBlockedError, match=r"^[\w.:]+: the network is blocked in a test$"
        ) as caught,
    ):
        FORBIDDEN[what]()
    assert str(caught.value).split(": the")[0] in (FAR, FAR6, NAME)


def test_what_is_here_is_not_the_network(tmp_path: Path) -> None:
    with blocked("in a test"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            for host in ("127.0.0.1", "localhost"):
                socket.create_connection((host, server.getsockname()[1])).close()
        with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
            one.bind(str(tmp_path / "socket"))
            one.listen()
            two.connect(str(tmp_path / "socket"))
        socket.getaddrinfo(FAR, 443)  # an address: nobody is asked
        left, right = socket.socketpair()
        left.close()
        right.close()


def test_ends_with_its_block() -> None:
    def reaches_the_kernel() -> None:
        with suppress(OSError):  # in progress, or no route: the system's answer
            FORBIDDEN["IPv4"]()

    with blocked("in a test"):
        with blocked("inside"):
            pass
        with lifted():
            reaches_the_kernel()
        with pytest.raises(NetworkBlockedError):
            FORBIDDEN["IPv4"]()
    reaches_the_kernel()


@needs_linux
@pytest.mark.parametrize("make", [TemplateLauncher, ExecLauncher])
@pytest.mark.parametrize("is_offline", [True, False])
async def test_workers(
    tmp_path: Path, make: Callable[..., Launcher], is_offline: bool
) -> None:
    """Without it, the same agent hears what the system says."""
    (tmp_path / "agent.py").write_text(AGENT)
    async with Driver(launcher=make(is_offline=is_offline)) as driver:
        run = await driver.start(f"{tmp_path / 'agent.py'}:caller", "Call.")
        with anyio.fail_after(50):
            result = await run.result()
        await run.close()
    assert result.stop_reason == "error"
    told = f"{FAR}: the network is blocked for the workers of a replay in a test"
    assert (told in str(result.diagnostic)) is is_offline


@needs_linux
async def test_imports_in_a_template(tmp_path: Path) -> None:
    """An agent module that calls out when it is imported is refused there, too."""
    (tmp_path / "agent.py").write_text(
        f"import socket\nsocket.create_connection(({FAR!r}, 443), timeout=0.01)\n{AGENT}"
    )
    async with Driver(launcher=TemplateLauncher(is_offline=True)) as driver:
        run = await driver.start(f"{tmp_path / 'agent.py'}:caller", "Call.")
        with anyio.fail_after(50):
            result = await run.result()
        await run.close()
    assert "NetworkBlockedError" in str(result.diagnostic)
