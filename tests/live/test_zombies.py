"""Many children come and go: no zombie stays, and nobody spins (D3)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

import anyio
import pytest

from nestling.driver import Driver
from nestling.driver.processes_io import Process, descendants
from nestling.harness import Answer, ScriptedModel
from support.launchers import LAUNCHERS
from support.live import launcher_named, reference
from support.processes import have_ended, needs_linux, pidfds

pytestmark = needs_linux

COUNT = int(os.environ.get("LC_NESTLING_CHILDREN", "24"))
"""So many children; the fault catalogue asks for 500."""
AT_ONCE = 8
SECONDS = 30 + COUNT
DEFUNCT = 1.0
"""Seconds for which a child may be a zombie."""


class Zombies:
    """The zombies below this process, and since when each has been one."""

    def __init__(self) -> None:
        self.since: dict[Process, float] = {}
        self.longest = 0.0
        self.looks = 0

    def look(self) -> None:
        """Look at them now."""
        now = time.monotonic()
        dead = [each for each in descendants(os.getpid()) if not each.is_alive]
        self.since = {each: self.since.get(each, now) for each in dead}
        ages = (now - since for since in self.since.values())
        self.longest = max([self.longest, *ages])
        self.looks += 1


def busy(pids: Iterable[int]) -> dict[int, float]:
    """The seconds of processor time that those processes have used which live."""
    tick = os.sysconf("SC_CLK_TCK")
    used = {}
    for pid in pids:
        with suppress(FileNotFoundError), open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            used[pid] = sum(map(int, fields[11:13])) / tick
    return used


@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("launcher", LAUNCHERS)
async def test_many_children(launcher: str) -> None:
    """All have answered; then who waits for the end of the run is cancelled."""
    zombies, ended = Zombies(), 0
    answers = {"go": Answer("never").hangs()}
    model = ScriptedModel(lambda request: "done", by_prompt=answers)
    options = {"count": COUNT, "at_once": AT_ONCE}
    began = time.monotonic()
    with anyio.fail_after(SECONDS):
        async with Driver(
            providers={"m": model}, launcher=launcher_named(launcher)
        ) as driver:
            run = await driver.start(
                reference("stopped:has_many"), "go", options=options
            )
            async for grown in run.events():
                if grown.event.type in ("turn/start", "turn/end"):
                    zombies.look()
                    ended += grown.event.type == "turn/end"
                if grown.path == "/" and grown.event.type == "request/header":
                    break
            took = time.monotonic() - began
            assert ended == COUNT
            below = [each.pid for each in descendants(os.getpid()) if each.is_alive]
            before = busy([os.getpid(), *below])
            with pidfds(*below) as fds:
                assert not have_ended(fds, DEFUNCT), "the root waits"
                zombies.look()
                assert zombies.since == {}
                after = busy(before)
                used = sum(after[pid] - before[pid] for pid in after)
            assert used < DEFUNCT / 4, f"waiting took {used} s of processor time"
            with anyio.CancelScope() as scope:
                scope.cancel()
                await run.close()
        zombies.look()
        assert zombies.since == {}
    assert zombies.longest < DEFUNCT
    sys.stderr.write(  # seen with -rP
        f"{COUNT} children, {launcher}: {took:.1f} s, {zombies.looks} looks, longest "
        f"zombie {1000 * zombies.longest:.0f} ms, {used:.2f} s of processor time a second\n"
    )
