"""How fast a death is noticed, a tree is cancelled, and many workers start and stop.

Usage: ``python scripts/bench_supervision.py [--deaths N] [--trees N] [--workers N]
[--launcher template|exec] [--json]``.

- Deaths: children that wait for their model are killed (SIGKILL), one after the other.
  *Noticed* is when the hub's thread hears that the process has ended; *told* is when the
  hub has taken its end in, all that it had left being swept and reaped.
- Trees: a root, two children, six below each: 15 workers. From the cancel of its turn
  until the root has its result, and from a stop until nothing of the run is left; then
  the same stop where the leaves block, and ignore SIGTERM: that is the whole ladder.
- Workers: so many at once, each in the middle of an answer. How many start in a second,
  what memory each has that it shares with nobody, how long a stop takes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import anyio

from nestling.driver import Driver, ExecLauncher, Limits, Request, TemplateLauncher
from nestling.driver.exits import Exit
from nestling.driver.hub_io import HubLoop
from nestling.driver.launcher_io import Launcher, WorkerProcess
from nestling.driver.started_run_io import StartedRun
from nestling.driver.workers_io import Workers

AGENTS: Final = Path(__file__).resolve().with_name("bench_supervision_agents.py")
AGENT: Final = f"{AGENTS}:tree"
FAMILY: Final = 20
"""So many children a root has whose deaths are looked at."""


async def hangs(request: Request) -> AsyncIterator[dict[str, Any]]:
    """Begin an answer, and never end it."""
    yield {"type": "block-start", "index": 0, "blockType": "text"}
    yield {"type": "text-delta", "index": 0, "text": "So far "}
    await anyio.sleep_forever()


class Spy:
    """Takes note of when workers start, and when their ends are noticed.

    Attributes:
        pids: of the workers that run, by launch.
    """

    def __init__(self) -> None:
        self.pids: dict[str, int] = {}
        self._noticed: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._ends = threading.Condition()
        started, ended, exited = Workers._started, Workers._ended, HubLoop._exited

        def on_start(workers: Workers, launch: str, process: WorkerProcess) -> None:
            self.pids[launch] = process.pid
            started(workers, launch, process)

        def on_end(workers: Workers, launch: str) -> None:
            self._noticed[launch] = time.monotonic()
            ended(workers, launch)

        def on_exit(hub: HubLoop, launch: str, exit: Exit) -> None:
            exited(hub, launch, exit)
            with self._ends:
                self._told[launch] = time.monotonic()
                self.pids.pop(launch, None)
                self._ends.notify_all()

        Workers._started = on_start  # type: ignore[method-assign, assignment]
        Workers._ended = on_end  # type: ignore[method-assign, assignment]
        HubLoop._exited = on_exit  # type: ignore[method-assign, assignment]

    def kill(self, launch: str) -> tuple[float, float]:
        """Kill a worker; return after how many ms its end was noticed, and told."""
        self._told.pop(launch, None)
        pidfd = os.pidfd_open(self.pids[launch])
        began = time.monotonic()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        with self._ends:
            assert self._ends.wait_for(lambda: launch in self._told, 30)
        ends = self._noticed[launch], self._told[launch]
        return (ends[0] - began) * 1000, (ends[1] - began) * 1000


async def until_all_talk(run: StartedRun, count: int, kind: str) -> None:
    """Wait until so many leaves have begun."""
    begun: set[str] = set()
    async for grown in run.events():
        if grown.event.type == kind and grown.path != "/":
            begun.add(grown.path)
        if len(begun) == count:
            return


async def started(
    driver: Driver, levels: list[int], leaves: int, *, stubborn: bool = False
) -> StartedRun:
    """Start a tree, and wait until its leaves are in the middle of their answers."""
    options = {"levels": levels, "stubborn": stubborn}
    run = await driver.start(AGENT, "go", options=options)
    kind = "turn/start" if stubborn else "assistant/chunk"
    await until_all_talk(run, leaves if not stubborn else sum_of(levels), kind)
    return run


def own_memory(pid: int) -> float:
    """Return what a process shares with nobody, in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "Private_" in line) / 1024


def sum_of(levels: Sequence[int]) -> int:
    """Return how many sessions are below a root."""
    total, level = 0, 1
    for width in levels:
        level *= width
        total += level
    return total


async def deaths(driver: Driver, spy: Spy, count: int) -> dict[str, Any]:
    """Kill children."""
    noticed: list[float] = []
    told: list[float] = []
    while len(noticed) < count:
        run = await started(driver, [FAMILY], FAMILY)
        for number in range(1, FAMILY + 1):
            each = await anyio.to_thread.run_sync(spy.kill, f"w{number}")
            noticed.append(each[0])
            told.append(each[1])
        await run.result()
        await run.close()
    return {
        "deaths": len(noticed),
        **{f"noticed {k}": v for k, v in quantiles(noticed).items()},
        **{f"told {k}": v for k, v in quantiles(told).items()},
    }


def quantiles(times: Sequence[float]) -> dict[str, float]:
    """Return p50, p99 and the worst."""
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    found = {"p50 ms": cuts[49], "p99 ms": cuts[98], "max ms": max(times)}
    return {name: round(value, 2) for name, value in found.items()}


async def trees(driver: Driver, count: int) -> dict[str, Any]:
    """Cancel and stop trees."""
    cancels, stops, ladders = [], [], []
    for _ in range(count):
        run = await started(driver, [2, 6], 12)
        began = time.monotonic()
        await run.cancel()
        await run.result()
        cancels.append(time.monotonic() - began)
        await run.close()
        run = await started(driver, [2, 6], 12)
        stops.append(await stopped(run))
    for _ in range(min(count, 2)):
        run = await started(driver, [2, 6], 12, stubborn=True)
        ladders.append(await stopped(run))
    return {
        "trees": count,
        "cancel until result, s": round(statistics.median(cancels), 3),
        "stop until all is gone, s": round(statistics.median(stops), 3),
        "stop of stubborn leaves, s": round(statistics.median(ladders), 2),
    }


async def stopped(run: StartedRun) -> float:
    """Stop a run; return the seconds until nothing of it was left."""
    began = time.monotonic()
    await run.stop()
    return time.monotonic() - began


async def many(driver: Driver, spy: Spy, count: int) -> dict[str, Any]:
    """Have many workers at once."""
    began = time.monotonic()
    run = await started(driver, [count - 1], count - 1)
    took = time.monotonic() - began
    pids = list(spy.pids.values())
    memory = [own_memory(pid) for pid in pids]
    seconds = await stopped(run)
    return {
        "workers": len(pids),
        "started per s": round(count / took, 1),
        "own memory, median MB": round(statistics.median(memory), 2),
        "own memory, all MB": round(sum(memory)),
        "clean stop, s": round(seconds, 2),
    }


async def measure(told: argparse.Namespace) -> dict[str, Any]:
    """Measure all of it."""
    spy, found = Spy(), {"launcher": told.launcher}
    launcher: Launcher = ExecLauncher()
    if told.launcher == "template":
        launcher = TemplateLauncher((str(AGENTS),))
    limits = Limits(silence=60.0, start_timeout=300.0)
    async with Driver(
        providers={"bench": hangs}, launcher=launcher, limits=limits
    ) as driver:
        if told.deaths:
            found |= await deaths(driver, spy, told.deaths)
        if told.trees:
            found |= await trees(driver, told.trees)
        if told.workers:
            found |= await many(driver, spy, told.workers)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--deaths", type=int, default=200)
    parser.add_argument("--trees", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--launcher", choices=("template", "exec"), default="template")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = anyio.run(measure, told)
    if told.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<28} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
