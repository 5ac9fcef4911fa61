"""The leak check itself is red where something is left, and cleans it up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nestling.harness.leaks_io import end_process
from support.leaks import no_leaks, processes_of
from support.processes import Lines, needs_linux

pytestmark = needs_linux

BLOCKED = "import sys; sys.stdin.read()"


def _failure(box: Path, leave: Callable[[], object]) -> str:
    with pytest.raises(pytest.fail.Exception) as caught, no_leaks(box):
        leave()
    return str(caught.value)


def test_nothing_left_is_nothing_said(box: Path) -> None:
    with no_leaks(box):
        subprocess.run([sys.executable, "-c", ""], check=True)


def test_a_child(box: Path) -> None:
    reading, writing = os.pipe()
    started: list[subprocess.Popen[bytes]] = []

    def leave() -> None:
        command = [sys.executable, "-c", BLOCKED]
        started.append(subprocess.Popen(command, stdin=reading))

    failure = _failure(box, leave)
    os.close(reading)
    os.close(writing)
    (process,) = started
    assert failure.startswith(f"the test left process {process.pid} ({sys.executable}")
    assert not Path(f"/proc/{process.pid}").exists()
    process.wait()


def test_a_zombie(box: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def leave() -> None:
        process = subprocess.Popen([sys.executable, "-c", ""])
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        started.append(process)

    failure = _failure(box, leave)
    (process,) = started
    assert f"a zombie of process {process.pid}" in failure
    assert not Path(f"/proc/{process.pid}").exists()
    process.wait()


def test_a_process_whose_parent_is_gone(
    box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.leaks.BOUND", 0.1)  # it never ends by itself
    reading, writing = os.pipe()
    orphans: list[int] = []

    def leave() -> None:
        script = 'exec 3<&0; "$0" -c "$1" <&3 >&- 2>&- & echo $!'
        result = subprocess.run(
            ["sh", "-c", script, sys.executable, BLOCKED],
            stdout=subprocess.PIPE,
            stdin=reading,
            check=True,
        )
        orphans.append(int(result.stdout))
        (orphan,) = (p for p in processes_of(box) if p.pid == orphans[0])
        assert orphan.parent != os.getpid()

    failure = _failure(box, leave)
    os.close(reading)
    os.close(writing)
    assert f"process {orphans[0]}" in failure


def test_a_run_directory_with_its_socket(box: Path) -> None:
    def leave() -> None:
        (box / "nestling-left").mkdir()
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(box / "nestling-left" / "hub.sock"))

    failure = _failure(box, leave)
    assert "run directory nestling-left (sockets: ['hub.sock'])" in failure
    assert not (box / "nestling-left").exists()


def test_a_descriptor(box: Path) -> None:
    opened: list[int] = []
    failure = _failure(box, lambda: opened.extend(os.pipe()))
    assert f"descriptor {opened[0]} (pipe:" in failure
    for fd in opened:
        os.close(fd)


def test_a_thread(box: Path) -> None:
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait, name="nestling-left")
    failure = _failure(box, thread.start)
    assert failure == "the test left thread nestling-left"
    go_on.set()
    thread.join()


def test_ending_what_has_ended(box: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    end_process(process.pid)


def test_lines_that_do_not_come() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"half")
    lines = Lines(reading)
    with pytest.raises(pytest.fail.Exception, match="no line came"):
        lines.next(0.0)
    os.close(writing)
    with pytest.raises(pytest.fail.Exception, match="ended after b'half'"):
        lines.next()
    os.close(reading)
