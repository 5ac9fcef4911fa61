"""The processes below a template: its workers, and what ended workers left behind.

A template is the parent of the orphans of its workers. So what a worker's tool has put
into a session of its own cannot get away: once the worker has ended, whatever child of
the template is not a worker is one of its orphans, and is ended.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import Final, NamedTuple

from nestling.wire.fork import WorkerExited
from nestling.worker.kernel_io import children

NOBODY: Final = -1
"""Who asked for a spare."""


class Worker(NamedTuple):
    """A worker.

    Attributes:
        pid: its process, the leader of its group.
        owner: the descriptor of the channel that asked for it; ``NOBODY`` for a spare.
    """

    pid: int
    owner: int


class Offspring:
    """Watches processes, on the template's poll object."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._running: dict[int, Worker] = {}  # by pidfd, like the next one
        self._orphans: dict[int, int] = {}
        self._ended: list[Worker] = []  # zombies: their pids still name their groups

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
            _reap(self._orphans.pop(fd))
        else:
            _kill_group(worker.pid)
            self._ended.append(worker)
        self._end_orphans()
        return [] if self._orphans else self._complete()

    def _end_orphans(self) -> None:
        workers = {w.pid for w in (*self._running.values(), *self._ended)}
        for pid in children() - workers - set(self._orphans.values()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:  # no descriptor left: wait here, it is as good as dead
                _reap(pid)
                continue
            self._orphans[pidfd] = pid
            self._poll.register(pidfd, select.POLLIN)

    def _complete(self) -> list[tuple[int, WorkerExited]]:
        ended, self._ended = self._ended, []
        return [(worker.owner, _collected(worker.pid)) for worker in ended]


def _kill_group(pid: int) -> None:
    # The leader is not reaped yet, so its pid still names this group; it may be so
    # new that it does not lead one.
    for kill in (os.kill, os.killpg):
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


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
