"""Processes that use a store at once, or lose one; apart, as they need no pytest."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.processes import Lines, environment_with_tests


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a store is to be; nothing is there."""
    return tmp_path / "store.db"


class Child:
    """An exec'd process of ``support.sqlite_child``: told by lines, tells by lines."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.sqlite_child", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment_with_tests(),
        )
        assert self.process.stdout is not None
        self.lines = Lines(self.process.stdout.fileno())

    def tell(self, line: str = "go") -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait for its end; return its exit code."""
        self.process.communicate(timeout=50)
        return self.process.returncode


@contextmanager
def child(*arguments: str | Path) -> Iterator[Child]:
    """A process that is gone at the end, whatever happens."""
    made = Child(*arguments)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.communicate()
