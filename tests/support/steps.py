"""Actions that are cut short at each of their system calls, by a fault or a crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import pytest

CALLS: Final = ("write", "fsync", "link", "unlink", "mkdir", "ftruncate", "rename")


class Cut:
    """Lets `at` of the calls that change files through, then does something else.

    Attributes:
        done: how many calls there were.
        name: the call that was cut.
    """

    def __init__(self, at: int, instead: Callable[[], None], times: int = 1) -> None:
        self.done = 0
        self.name = ""
        self._cut = range(at, at + times)
        self._instead = instead

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Stand before every one of ``CALLS``."""
        for name in CALLS:
            patch.setattr(os, name, self._before(name, getattr(os, name)))

    def _before(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self.done += 1
            if self.done - 1 not in self._cut:
                return real(*arguments, **more)
            self.name = self.name or name
            if name == "write":  # a write is cut in its middle
                fd, data = arguments
                real(fd, data[: len(data) // 2])
            return self._instead()

        return call


def fail_with(code: int) -> Callable[[], None]:
    """What makes a call fail."""

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    return fail


def crashes(action: Callable[[], object], make: Callable[[], None]) -> Iterator[int]:
    """Do `action` in children that are killed at one system call after the other.

    Yields after each crash, with the call's number; ends when a child did it all.

    Args:
        action: what is to be cut short.
        make: makes the state that it starts from, before each child.
    """
    for at in count():
        make()
        child = os.fork()
        if child == 0:
            _crash(action, at)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield at


def _crash(action: Callable[[], object], at: int) -> None:
    """Never return: what comes after is the parent's test."""
    code = 1
    try:
        Cut(at, lambda: os.kill(os.getpid(), signal.SIGKILL)).patch(
            pytest.MonkeyPatch()
        )
        action()
        code = 0
    finally:
        os._exit(code)
