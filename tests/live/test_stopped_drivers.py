"""Drivers that are stopped for a while, and go on."""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

from support.killed_drivers import delegation, mortal
from support.launchers import LAUNCHERS
from support.live import reference
from support.processes import Lines, have_ended, needs_linux, pidfds, wait_stopped

pytestmark = needs_linux

SILENCE = "3.5"
"""Seconds; a beat comes every two, and one that is late is no reason to be ended."""


def workers_of(told: Lines) -> list[int]:
    """Wait until a driver waits for the answers of two children; return all workers."""
    workers, missing = [], {"hangs hang a", "hangs hang b"}
    while missing:
        line = told.next()
        missing.discard(line)
        if line.startswith("worker "):
            workers.append(int(line.removeprefix("worker ")))
    assert len(workers) == 3
    return workers


def test_they_suspect_nobody(tmp_path: Path, box: Path) -> None:
    """Stopped for longer than anybody may be silent: who waited for it is not to blame.

    One with each launcher, side by side, as most of it is waiting.
    """
    go = "\n".join(delegation("subagent", f"hang {each}") for each in "ab")
    drivers: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        theirs: list[int] = []
        for launcher in LAUNCHERS:
            store, more = f"jsonl:{tmp_path / launcher}", (launcher, SILENCE)
            context = mortal(store, reference("family:parent"), go, more=more)
            driver, told = stack.enter_context(context)
            drivers.append(driver)
            theirs += stack.enter_context(pidfds(*workers_of(told)))
        fds = stack.enter_context(pidfds(*(driver.pid for driver in drivers)))
        for driver in drivers:
            driver.send_signal(signal.SIGSTOP)
            wait_stopped(driver.pid)
        assert not have_ended(fds, 4.5), "they are stopped"
        for driver in drivers:
            driver.send_signal(signal.SIGCONT)
        # Long enough for whoever is taken to have been silent that long to be ended.
        assert not have_ended(fds, 3.0)
        assert [fd for fd in theirs if have_ended([fd], 0.0)] == []
        for driver in drivers:
            driver.kill()
        assert have_ended([*fds, *theirs], 2.0)
    for left in box.glob("nestling-*"):
        shutil.rmtree(left)
