"""Keeping this process off the network, so that what must not call out cannot.

Python tells of every connect, datagram and name lookup before it happens (its audit
events), whichever library asks for it; a listener that raises prevents it. A listener
cannot be taken away again, so there is one, which lets everything pass while nothing is
blocked. Not seen: sockets that a C library opens by itself, and other programs.

Loopback, Unix sockets and addresses of other kinds are not the network.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from nestling.session.errors import NetworkBlockedError

_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)
_LOCAL_NAMES: Final = ("", "localhost", "ip6-localhost", "ip6-loopback")

_lock: Final = threading.Lock()
_reasons: Final[list[str]] = []
"""Why the network is blocked, one entry a block; the last one is told."""
_lifts: Final[list[None]] = []
_is_listening = False


def block(reason: str) -> None:
    """Keep this process off the network for good.

    Args:
        reason: what the error says after the address, like "in a replayed worker".
    """
    global _is_listening
    with _lock:
        _reasons.append(reason)
        if not _is_listening:
            _is_listening = True
            sys.addaudithook(_listen)


def stay_offline() -> None:
    """Keep a worker or a template off the network; a fork has inherited it all."""
    if not _reasons:
        block("for the workers of a replay in a test")


@contextmanager
def blocked(reason: str) -> Iterator[None]:
    """Keep this process, all of its threads, off the network while the body runs.

    Args:
        reason: as for ``block``.
    """
    block(reason)
    try:
        yield
    finally:
        with _lock:
            _reasons.remove(reason)


@contextmanager
def lifted() -> Iterator[None]:
    """Let this process use the network while the body runs, whatever else is said."""
    _lifts.append(None)
    try:
        yield
    finally:
        _lifts.pop()


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    # This is called for every import and every opened file, too: most go no further.
    if not _reasons or _lifts or not event.startswith("socket."):
        return
    match event:
        case "socket.connect" | "socket.sendto" | "socket.sendmsg":
            sock, address = arguments
            if sock.family not in _FAMILIES or address is None:
                return
            try:
                _require_local(address[0])
            except NetworkBlockedError:
                if event == "socket.connect":
                    # Who asked closes it only for errors that a system can give.
                    sock.close()
                raise
        case "socket.gethostbyaddr":
            _require_local(arguments[0])
        case "socket.getnameinfo":
            _require_local(arguments[0][0])
        case "socket.getaddrinfo" | "socket.gethostbyname":
            host = arguments[0]
            # An address needs no lookup; whoever connects to it is asked then.
            if host is not None and not _is_address(_text(host)):
                _require_local(host)


def _require_local(host: object) -> None:
    text = _text(host)
    if text in _LOCAL_NAMES or text.endswith(".localhost"):
        return
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        pass  # a name, which is not ours
    else:
        if address.is_loopback or address.is_unspecified:
            return
    raise NetworkBlockedError(f"{text}: the network is blocked {_reasons[-1]}")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def _text(host: object) -> str:
    if isinstance(host, bytes | bytearray):
        return host.decode("ascii", "backslashreplace").lower()
    return str(host).lower()
