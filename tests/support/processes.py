"""Waiting for processes and for what they tell, on events and within bounds."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest

from support.leaks import LINUX, reap_quietly

needs_linux: Final = pytest.mark.skipif(not LINUX, reason="needs /proc and pidfds")

NESTLING: Final = (sys.executable, "-m", "nestling.harness")
SPIED: Final = (sys.executable, "-m", "support.spied_cli")

_TESTS: Final = Path(__file__).resolve().parent.parent


class Lines:
    """Lines that other processes write into a pipe, each one an event."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._text = b""

    def next(self, seconds: float = 20.0) -> str:
        """Return the next line; fail the test if none comes in time."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._text:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.fd], [], [], left)[0]:
                pytest.fail(f"no line came within {seconds} s, only {self._text!r}")
            read = os.read(self.fd, 4096)
            if not read:
                pytest.fail(f"the pipe ended after {self._text!r}")
            self._text += read
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def until(self, start: str, seconds: float = 20.0) -> str:
        """Return what follows `start` in the next line that begins with it."""
        while not (line := self.next(seconds)).startswith(start):
            pass
        return line.removeprefix(start)


@contextmanager
def fifo(path: Path) -> Iterator[Lines]:
    """Make a pipe with a name, which a stand-in finds in ``LC_NESTLING_FIFO``."""
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)  # opens at once, and never reads an end
    try:
        yield Lines(fd)
    finally:
        os.close(fd)


@contextmanager
def pidfds(*pids: int) -> Iterator[list[int]]:
    """Hold on to processes that run, so that their ends can be waited for."""
    fds: list[int] = []
    try:
        fds += map(os.pidfd_open, pids)
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def have_ended(fds: Sequence[int], seconds: float) -> bool:
    """Wait until the processes behind pidfds have ended; tell whether they did."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    left = len(fds)
    while left:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            return False
        for fd, _ in ready:
            poll.unregister(fd)
            left -= 1
    return True


def wait_stopped(pid: int) -> None:
    """Wait until a process, which was sent SIGSTOP, is stopped."""
    deadline = time.monotonic() + 20
    while state_of(pid) != "T":
        assert time.monotonic() < deadline, f"process {pid} is not stopped"
        os.sched_yield()


def state_of(pid: int) -> str:
    """Return the letter that the kernel has for what a process is doing."""
    return _stat(pid)[0]


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent."""
    return int(_stat(pid)[1])


def children_of(pid: int) -> list[int]:
    """Return the pids of a process's children, those of its threads included."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(c) for task in tasks for c in (task / "children").read_text().split()]


def _stat(pid: int) -> list[str]:
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return stat.rpartition(")")[2].split()


def environment_with_tests(**more: str) -> dict[str, str]:
    """Return an environment in which processes find the tests' modules, too."""
    paths = [str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


def run_nestling(
    *arguments: object, env: Mapping[str, str] | None = None, **more: Any
) -> subprocess.CompletedProcess[bytes]:
    """Run the program to its end."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    command = [*NESTLING, *map(str, arguments)]
    return subprocess.run(command, check=False, timeout=50, env=env, **streams)


@contextmanager
def spied(
    *arguments: object, entry: str = "nestling.worker", **more: Any
) -> Iterator[tuple[subprocess.Popen[bytes], Lines]]:
    """Run the program beside the test; it tells of pids and notices as they come.

    Args:
        arguments: of the program.
        entry: the module that its workers run.
        more: passed on to the process.
    """
    reading, writing = os.pipe()
    command = [*SPIED, str(writing), entry, *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    settings = {"env": environment_with_tests(), **streams, **more}
    try:
        process = subprocess.Popen(command, pass_fds=[writing], **settings)
    finally:
        os.close(writing)
    try:
        yield process, Lines(reading)
    finally:
        os.close(reading)
        with suppress(ProcessLookupError):
            reap_quietly(process)
