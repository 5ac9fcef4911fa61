"""Who may connect to the hub: the decisions, without the socket.

A launch gets a user name and a token that works once. The hub expects the pair, and
the peer that shows it is the worker of that launch, whatever it says later.

Guarantees:

- Only a hash of a token is kept.
- A token admits one connection; a wrong guess does not use it up, so that a stranger
  cannot lock the right worker out.
- The kernel's word on the peer's pid is compared as soon as both pids are known,
  in whichever order they become known.
"""

from __future__ import annotations

import hmac
import re
from collections import deque
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

#: PLAIN carries user and token in one byte of length each.
CREDENTIAL_CAP: Final = 255
#: So many of the last refusals are kept.
REFUSALS_KEPT: Final = 100

_PEER: Final = re.compile(r"[^:]*:[0-9]{1,10}:[0-9]{1,10}:([0-9]{1,10})")


@dataclass(slots=True)
class _Expected:
    token: bytes
    pid: int | None
    admitted: bool = False
    peer_pid: int | None = None

    def pid_reason(self) -> str | None:
        """Say why the peer's pid does not fit, or None if it fits or is unknown."""
        if self.pid is None or self.peer_pid is None or self.pid == self.peer_pid:
            return None
        return f"pid {self.peer_pid}, expected {self.pid}"


class Admission:
    """The users that the hub waits for, and those it has let in."""

    def __init__(self) -> None:
        self._expected: dict[str, _Expected] = {}
        self._refusals: deque[tuple[str, str]] = deque(maxlen=REFUSALS_KEPT)
        self.refused = 0

    @property
    def refusals(self) -> list[tuple[str, str]]:
        """The last refusals, oldest first, each the user as claimed and the reason.

        `refused` counts all of them.
        """
        return list(self._refusals)

    def expect(self, user: str, token: bytes | str, pid: int | None = None) -> None:
        """Let `user` connect once with `token`, from process `pid` if it is known.

        Raises:
            ValueError: the user is expected already, or user or token is not of 1 to
                255 bytes.
        """
        if user in self._expected:
            raise ValueError(f"user {user!r} is expected already")
        secret = _as_bytes(token)
        for name, value in (("user", user.encode()), ("token", secret)):
            if not 1 <= len(value) <= CREDENTIAL_CAP:
                raise ValueError(f"a {name} of {len(value)} bytes, expected 1 to 255")
        self._expected[user] = _Expected(sha256(secret).digest(), pid)

    def admit(
        self, user: str, token: bytes | str, peer_pid: int | None = None
    ) -> str | None:
        """Decide about a peer that shows `user` and `token`.

        Args:
            user: the name it claims.
            token: the token it shows.
            peer_pid: its process as the kernel reports it, None if unknown.

        Returns:
            None if it is let in, which uses the token up; else the reason.
        """
        reason = self._judge(user, _as_bytes(token), peer_pid)
        if reason is not None:
            self.refuse(user, reason)
        return reason

    def _judge(self, user: str, token: bytes, peer_pid: int | None) -> str | None:
        entry = self._expected.get(user)
        if entry is None:
            return "unknown user"
        if not hmac.compare_digest(sha256(token).digest(), entry.token):
            return "wrong token"
        if entry.admitted:
            return "token already used"
        entry.peer_pid = peer_pid
        reason = entry.pid_reason()
        entry.admitted = reason is None
        return reason

    def set_pid(self, user: str, pid: int) -> str | None:
        """Say which process `user` is, once its launcher knows.

        Returns:
            None, or the reason why the peer let in as `user` should not have been:
            it came from another process before the pid was known.
        """
        entry = self._expected.get(user)
        if entry is None:
            return None
        entry.pid = pid
        reason = entry.pid_reason() if entry.admitted else None
        if reason is not None:
            self.refuse(user, reason)
        return reason

    def forget(self, user: str) -> None:
        """Stop expecting `user`; its token is worth nothing from here on."""
        self._expected.pop(user, None)

    def refuse(self, user: str, reason: str) -> None:
        """Record a refusal that was decided elsewhere."""
        self.refused += 1
        self._refusals.append((user, reason))


def parse_peer_pid(address: str) -> int | None:
    """Return the pid in libzmq's `Peer-Address` of an ipc connection.

    Args:
        address: `localhost:<uid>:<gid>:<pid>`.

    Returns:
        The pid, or None if the address has another shape or the pid is 0, which the
        kernel reports for a process in another pid namespace.
    """
    match = _PEER.fullmatch(address)
    return (int(match[1]) or None) if match else None


def _as_bytes(token: bytes | str) -> bytes:
    return token.encode() if isinstance(token, str) else token
