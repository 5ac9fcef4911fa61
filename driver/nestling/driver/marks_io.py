"""Finding what a worker left behind, by a mark in the environment it was started with.

A process that was put into a session of its own is in no group of ours any more, and
once its parents have ended nothing else tells where it came from. A process that was
started with an environment of its own choosing is not found (Linux only, all of it).
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

MARK: Final = "NESTLING_MARK"
"""The variable that holds the mark; no secret."""
ROUNDS: Final = 20
"""So often what started meanwhile is looked for."""


def new_mark() -> str:
    """Return a mark that no other process has."""
    return secrets.token_hex(12)


def end_marked(mark: str) -> None:
    """End every process that has a mark, and what those start meanwhile."""
    if sys.platform != "linux":
        return
    for _ in range(ROUNDS):
        found = False
        for pidfd in _marked(f"{MARK}={mark}".encode()):
            found = True
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not found:
            return


def _marked(entry: bytes) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit() and entry in _environment(name):
            try:
                pidfd = os.pidfd_open(int(name))
            except OSError:  # it has ended
                continue
            try:
                # The number may have been given to another process meanwhile.
                if entry in _environment(name):
                    yield pidfd
            finally:
                os.close(pidfd)


def _environment(pid: str) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []  # it has ended, or is another user's
