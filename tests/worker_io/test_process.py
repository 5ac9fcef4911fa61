"""The worker process by itself: how it starts, and when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nestling.wire.launch import LAUNCH_CAP, LaunchSpec, encode_launch
from nestling.wire.messages import PROTOCOL
from nestling.worker import process_io
from nestling.worker.process_io import BEAT, EXIT_ORPHANED, main
from support.leaks import reap_quietly
from support.processes import have_ended, needs_linux, pidfds

pytestmark = needs_linux


def _spec(folder: Path, parent_pid: int) -> bytes:
    endpoint = f"ipc://{folder / 'hub'}"
    return encode_launch(
        LaunchSpec(PROTOCOL, endpoint, "w0", "token", b"\x01id", parent_pid)
    )


@contextmanager
def _worker(told: bytes) -> Iterator[tuple[subprocess.Popen[bytes], RawIOBase]]:
    """Start a worker that nobody serves; yields it and its lifeline."""
    reading, writing = os.pipe()
    os.write(writing, told)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "nestling.worker", str(reading)],
        pass_fds=[reading],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    os.close(reading)
    with open(writing, "wb", buffering=0) as lifeline:
        try:
            yield process, lifeline
        finally:
            reap_quietly(process)


def _printed(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.read().decode()


@pytest.mark.parametrize("arguments", [[], ["x"], ["3", "4"], ["-1"], ["\u0663 "]])
def test_it_is_not_started_by_hand(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nestling.worker", *arguments]) == 2
    assert "started by a driver" in capsys.readouterr().err


@pytest.mark.parametrize(
    "told", [b"{}\n", b"no json\n", b"x" * (LAUNCH_CAP + 1), b'{"protocol":99}\n']
)
def test_what_is_no_launch_spec_ends_it(told: bytes) -> None:
    with _worker(told) as (process, _):
        assert process.wait(20) == 1
        assert "nestling.session.errors.WireError" in _printed(process)


def test_a_launch_spec_that_is_cut_off(tmp_path: Path) -> None:
    """The driver died while it was writing."""
    reading, writing = os.pipe()
    os.write(writing, _spec(tmp_path, os.getpid())[:20])
    os.close(writing)
    process = subprocess.run(
        [sys.executable, "-P", "-m", "nestling.worker", str(reading)],
        pass_fds=[reading],
        capture_output=True,
        timeout=20,
        check=False,
    )
    os.close(reading)
    assert process.returncode == 1
    assert b"WireError: a launch spec of 20 bytes" in process.stderr


def test_a_driver_that_was_gone_before_it_could_be_asked(tmp_path: Path) -> None:
    """Its parent is another process than the one that the spec names."""
    with _worker(_spec(tmp_path, os.getppid())) as (process, _):
        assert process.wait(20) == EXIT_ORPHANED
        assert _printed(process) == ""


def test_it_says_hello_to_nobody_until_its_lifeline_ends(tmp_path: Path) -> None:
    with (
        _worker(_spec(tmp_path, os.getpid())) as (process, lifeline),
        pidfds(process.pid) as fds,
    ):
        assert not have_ended(fds, 0.0)
        lifeline.close()
        assert have_ended(fds, 20)
        assert process.wait() == EXIT_ORPHANED


class _Clock:
    """A loop of which only the clock is looked at."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, Any, tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, after: float, call: Any, *arguments: Any) -> None:
        self.due.append((self.now + after, call, arguments))

    def turn(self) -> None:
        """Go on to the next timer."""
        self.now, call, arguments = self.due.pop()
        call(*arguments)


def test_it_is_never_silent_for_longer_than_a_beat() -> None:
    """Whenever it said something: not even for two when that was just before one."""
    clock, said = _Clock(), []
    worker: Any = object.__new__(process_io._Worker)
    worker._loop, worker._endpoint = clock, SimpleNamespace(sid=None)
    worker._socket = SimpleNamespace(send=lambda frames: said.append(clock.now))
    worker._last_said = 0.0
    worker._beat(0.0)
    worker._endpoint.sid, worker._last_said = 1, 0.5 * BEAT
    for _ in range(4):
        clock.turn()
    assert said == [1.5 * BEAT, 2.5 * BEAT, 3.5 * BEAT]
