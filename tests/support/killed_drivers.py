"""Drivers that run beside a test and are killed (see ``support.mortal_driver``)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nestling.session.jsontext import dumps
from support.processes import Lines, environment_with_tests


@contextmanager
def mortal(
    address: str, agent: str, *prompts: str, more: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], Lines]]:
    """Run a driver beside the test, and kill it."""
    command = [sys.executable, "-m", "support.mortal_driver", address, agent]
    process = subprocess.Popen(
        [*command, dumps(list(prompts)).decode(), *more],
        stdout=subprocess.PIPE,
        env=environment_with_tests(),
    )
    assert process.stdout is not None
    try:
        yield process, Lines(process.stdout.fileno())
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()


def wait_for(lines: Lines, *expected: str) -> None:
    """Wait until all of these lines have come, in any order."""
    missing = list(expected)
    while missing:
        line = lines.next()
        if line in missing:
            missing.remove(line)


def delegation(name: str, prompt: str) -> str:
    """What is said to a mortal driver's model so that it delegates."""
    arguments = dumps({"description": "d", "prompt": prompt}).decode()
    return f"call {name} {arguments}"
