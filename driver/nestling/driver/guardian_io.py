"""The guardian of this process's workers: it ends what they leave if this one is killed.

A worker dies with its driver, whatever it is doing: the kernel sees to that. What its
tools have started does not. A template sees to it for its workers; fresh interpreters
are children of the driver itself, and have no one else above them. So as long as there
are some, a small process waits for the driver's end, and then sweeps.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from nestling.driver.processes_io import IS_LINUX
from nestling.driver.traces_io import Trace, end_bearers, owner_mark, set_mark

NAME: Final = "NESTLING_GUARDIAN"
"""The variable in a guardian's environment that tells whose it is."""
SWEEP: Final = 10.0
"""So many seconds a guardian sweeps at most."""
LOOK: Final = 0.02
"""Seconds between its looks."""
QUIET: Final = 3
"""So many looks without a find are the end of it: what was about to start is there."""
_LINE: Final = 4096


class Guardian:
    """The guardian, as the driver sees it. Thread-safe.

    It runs as long as somebody holds it. Where it cannot be had, workers run without.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds = 0
        self._pid = 0  # of the process that started it: a fork has none
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._told: list[bytes] = []

    def hold(self, logs: str) -> None:
        """Have it look after the workers that print into a folder.

        Nobody is told if that fails: a run does not depend on it.
        """
        line = f"{logs}\n".encode("utf-8", "surrogateescape")
        with self._lock, suppress(OSError):
            if self._pid != os.getpid():
                self._pid, self._holds, self._process = os.getpid(), 0, None
                self._told.clear()
            self._holds += 1
            if not IS_LINUX:
                return
            if self._process is None or self._process.poll() is not None:
                self._start()
            self._told.append(line)
            os.write(self._pipe, line)

    def _start(self) -> None:
        self._close()
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        os.write(self._pipe, b"".join(self._told)[:_LINE])
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(reading)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=_environment(),
                pass_fds=(reading,),
                start_new_session=True,
            )
            set_mark(self._process.pid, None)  # as in its environment
        finally:
            os.close(reading)

    def let_go(self) -> None:
        """Do without it, as far as the caller is concerned."""
        with self._lock:
            if self._pid != os.getpid():
                return  # it was held before a fork
            self._holds -= 1
            if not self._holds:
                self._told.clear()
                self._close()

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # It has nothing to do yet, and so nothing to finish.
            process.kill()
            process.wait()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


GUARDIAN: Final = Guardian()


def is_guardian(pid: int) -> bool:
    """Tell whether a process is somebody's guardian."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"\0{NAME}=".encode() in b"\0" + file.read()
    except OSError:
        return False


def _environment() -> dict[str, str]:
    # No mark: it would sweep itself, and must outlive a sweep that ends the driver.
    kept = {name: os.environ[name] for name in ("TMPDIR",) if name in os.environ}
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**kept, NAME: f"{os.getpid()}:{owner_mark()}", "PYTHONPATH": paths}


def main(arguments: list[str]) -> None:
    """Wait for the driver's end, and sweep.

    Args:
        arguments: the program's name and the number of the inherited descriptor.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pid, _, mark = os.environ[NAME].partition(":")
    logs = _folders(int(arguments[1]), int(pid))
    deadline, quiet = time.monotonic() + SWEEP, 0
    while quiet < QUIET and time.monotonic() < deadline:
        quiet = 0 if end_bearers(Trace(mark, logs)) else quiet + 1
        time.sleep(LOOK)


def _folders(pipe: int, driver: int) -> tuple[str, ...]:
    """Read where workers print to, until the driver has ended."""
    text, poll = b"", select.poll()
    poll.register(pipe, select.POLLIN)
    with suppress(OSError):
        # A fork of the driver may hold the pipe's other end open.
        poll.register(os.pidfd_open(driver), select.POLLIN)
    while True:
        # What it has written comes first, though it may have ended long ago.
        patience = None if os.getppid() == driver else 0
        ready = dict(poll.poll(patience))
        read = os.read(pipe, _LINE) if pipe in ready else b""
        if not read:
            break
        text += read
    lines = text.decode("utf-8", "surrogateescape").split("\n")
    return tuple(filter(None, lines[:-1]))


if __name__ == "__main__":
    main(sys.argv)
