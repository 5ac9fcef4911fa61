"""The processes below a template: its workers, and what ended workers left behind.

A template is the parent of the orphans of its workers. So what a worker's tool has put
into a session of its own cannot get away: once the worker has ended, whatever child of
the template is not a worker is one of its orphans, and is ended.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from nestling.wire.fork import WorkerExited
from nestling.worker.kernel_io import children, described, is_alive

NOBODY: Final = -1
"""Who asked for a spare."""
SWEEP: Final = 1.0
"""Seconds for what a worker left behind to be gone; then its exit is told all the same."""
NAMED: Final = 16
"""So many of those that are not gone are named."""


class Worker(NamedTuple):
    """A worker.

    Attributes:
        pid: its process, the leader of its group.
        owner: the descriptor of the channel that asked for it; ``NOBODY`` for a spare.
    """

    pid: int
    owner: int


class _Ended(NamedTuple):
    """A worker that has ended and is not reaped: its pid still names its group.

    Attributes:
        worker: which.
        deadline: when it is told of, though something that it left behind lives.
        swept: what it had left behind, as far as that is known.
    """

    worker: Worker
    deadline: float
    swept: set[int]


class Offspring:
    """Watches processes, on the template's poll object."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._running: dict[int, Worker] = {}  # by pidfd, like the next one
        self._orphans: dict[int, int] = {}
        self._stuck: set[int] = set()  # orphans, by pid, that nobody waits for any more
        self._ended: list[_Ended] = []

    def __contains__(self, fd: int) -> bool:
        return fd in self._running or fd in self._orphans

    @property
    def is_empty(self) -> bool:
        """Whether there is no process left."""
        return not (self._running or self._orphans or self._ended)

    def add(self, pid: int, pidfd: int, owner: int) -> None:
        """Watch a new worker; its pidfd is closed here."""
        self._running[pidfd] = Worker(pid, owner)
        self._poll.register(pidfd, select.POLLIN)

    def give(self, pid: int, owner: int) -> None:
        """Give a spare to the channel that asked for a worker."""
        for pidfd, worker in self._running.items():
            if worker.pid == pid:
                self._running[pidfd] = Worker(pid, owner)
                return

    def terminate(self, pid: int, owner: int) -> None:
        """Send SIGTERM to the group of a worker of a channel, if it runs."""
        if Worker(pid, owner) in self._running.values():
            _terminate_group(pid)

    def kill(self, owner: int | None = None) -> None:
        """End the workers of a channel, or all of them."""
        for worker in self._running.values():
            if owner is None or worker.owner == owner:
                _kill_group(worker.pid)

    def handle(self, fd: int) -> list[tuple[int, WorkerExited]]:
        """Take note of an end.

        Returns:
            The exits that are complete now, each with the channel it belongs to.
        """
        self._poll.unregister(fd)
        os.close(fd)
        worker = self._running.pop(fd, None)
        if worker is None:
            pid = self._orphans.pop(fd)
            self._stuck.discard(pid)
            _reap(pid)
        else:
            deadline = time.monotonic() + SWEEP
            # What is a zombie by now was none of those that live on.
            left = {pid for pid in self._new_orphans() if is_alive(pid)}
            self._ended.append(_Ended(worker, deadline, left - {worker.pid}))
            _kill_group(worker.pid)
        self._end_orphans()
        return [] if self._awaited() else self._complete()

    def _new_orphans(self) -> set[int]:
        workers = {w.pid for w in self._running.values()}
        workers.update(ended.worker.pid for ended in self._ended)
        return children() - workers - set(self._orphans.values())

    def _awaited(self) -> set[int]:
        return set(self._orphans.values()) - self._stuck

    def _end_orphans(self) -> None:
        for pid in self._new_orphans():
            if self._ended and is_alive(pid):
                # Whose it was is not known, if several workers have ended.
                self._ended[-1].swept.add(pid)
            _kill(pid)
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:  # no descriptor left: wait here, it is as good as dead
                _reap(pid)
                continue
            self._orphans[pidfd] = pid
            self._poll.register(pidfd, select.POLLIN)

    def patience_ms(self) -> int | None:
        """Return for how long there is nothing to do unless something happens."""
        if not self._ended:
            return None
        left = min(ended.deadline for ended in self._ended) - time.monotonic()
        return max(0, math.ceil(left * 1000))

    def overdue(self) -> list[tuple[int, WorkerExited]]:
        """Return the exits that are told of though something that was left lives on."""
        if not self._ended or self._ended[0].deadline > time.monotonic():
            return []
        stuck = self._awaited()
        self._stuck |= stuck
        return self._complete([described(pid) for pid in sorted(stuck)])

    def _complete(
        self, unkillable: Sequence[str] = ()
    ) -> list[tuple[int, WorkerExited]]:
        all_ended, self._ended = self._ended, []
        return [
            (
                ended.worker.owner,
                msgspec.structs.replace(
                    _collected(ended.worker.pid),
                    swept=len(ended.swept),
                    unkillable=list(unkillable[:NAMED]),
                ),
            )
            for ended in all_ended
        ]


def _terminate_group(pid: int) -> None:
    # The leader is not reaped yet, so its pid still names this group; it may be so
    # new that it does not lead one.
    try:
        os.killpg(pid, signal.SIGTERM)
    except ProcessLookupError:
        os.kill(pid, signal.SIGTERM)


def _kill_group(pid: int) -> None:
    _kill(pid)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _collected(pid: int) -> WorkerExited:
    try:
        _, status, usage = os.wait4(pid, 0)
    except (
        ChildProcessError
    ):  # what a module did: it waits for children that it has not
        return WorkerExited(pid, None, 0, 0, 0)
    user, system = int(usage.ru_utime * 1000), int(usage.ru_stime * 1000)
    return WorkerExited(pid, status, user, system, usage.ru_maxrss)
