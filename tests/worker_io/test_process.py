"""The worker process by itself: how it starts, and when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path

import pytest

from nestling.wire.launch import LAUNCH_CAP, LaunchSpec, encode_launch
from nestling.wire.messages import PROTOCOL
from nestling.worker.process_io import EXIT_ORPHANED, main
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
