"""How fast workers start, and how much memory they have of their own.

Usage: ``python scripts/bench_launch.py [--rounds N] [--idle N] [--json]``.

One run, all kinds in turn, so that they meet the same machine:

- ``template``, ``exec``: a replay of one session, from the order to start its worker
  until the hub hears of its first chunk, which is the worker's upload after its first
  call. In between are hello, create, ready, the call, the disk, the answer. The time
  until the hello alone is shown, too.
- ``bare fork``: a warm, frozen, single-threaded process forks; the fork says hello.
- ``forkserver``: the same replay with the same worker, started by ``multiprocessing``'s
  forkserver with the same modules preloaded. (The product does not use it; it is what
  others would.) ``forkserver hello`` is the bare hello from it.
- ``fresh``: the same hello from a new interpreter that imports the same modules.

Memory is what a process shares with nobody (``Private_*`` of ``smaps_rollup``), of
workers that wait for the answer to their first call.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.forkserver
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import bench_launch_peers as peers
import zmq
from bench_launch_forkserver import ForkserverLauncher

from nestling.driver.director import Answer, CallRequest, EncodedChunks, Stop
from nestling.driver.hub_io import Bounds, HubLoop
from nestling.driver.launcher_io import ExecLauncher, Launcher, WorkerProcess
from nestling.driver.run_io import run_tree
from nestling.driver.template_launcher_io import TemplateLauncher
from nestling.driver.workers_io import Workers
from nestling.harness.compose import Composer, Tree, spawn_call, text
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario, build_scenario
from nestling.session.reading import read_recording
from nestling.wire.codec import decode_for_hub
from nestling.wire.messages import Events, Hello, Stream

Timed = Callable[[], float]
TARGETS: Final = (
    ("template", "bare fork", 2.5, "at most"),
    ("template hello", "bare fork", 2.5, "at most"),
    ("forkserver", "template", 2.0, "at least"),
    ("exec", "template", 8.0, "at least"),
)
USS_TARGET_MB: Final = 4.0
PEERS: Final = peers.__file__


# --- what is replayed ----------------------------------------------------------


def one_session() -> Scenario:
    """Compose a session that makes one small call."""
    root = Composer("one", 1_700_000_000_000)
    root.turn("Say yes.")
    root.says(text("yes"))
    root.end()
    return _scenario(root)


def fan_out(count: int) -> Scenario:
    """Compose a session with so many children, all asked for in one message."""
    root = Composer("many", 1_700_000_000_000)
    root.turn("Ask them all.")
    calls = root.says(*[spawn_call(f"ask {n}", f"Say {n}.") for n in range(count)])
    root.calls(*calls)
    children = [root.spawn(call) for call in calls]
    for child in children:
        child.turn()
        child.says(text("yes"))
        child.end()
    for child in children:
        root.returns(child)
    root.step()
    root.says(text("done"))
    root.end()
    return _scenario(root)


def _scenario(root: Composer) -> Scenario:
    files = Tree(root).files()
    recordings = [read_recording(content, name) for name, content in files.items()]
    return build_scenario("bench", recordings, None)


# --- our launchers -------------------------------------------------------------


class Moments:
    """When things happened in the hub of a run, in seconds."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def note(self, what: str) -> None:
        """Keep the first time of something."""
        self.at.setdefault(what, time.perf_counter())


@contextmanager
def noted(moments: Moments) -> Iterator[None]:
    """Note what happens in every hub meanwhile."""
    start, received = Workers.start, HubLoop._received

    def told_start(self: Workers, launch: str, module: str = "") -> None:
        moments.note("start")
        start(self, launch, module)

    def told_received(
        self: HubLoop, user: str, routing_id: bytes, frames: list[bytes]
    ) -> None:
        message = decode_for_hub(frames)[0]
        if isinstance(message, Hello | Stream):
            moments.note(type(message).__name__)
        elif isinstance(message, Events) and "Stream" in moments.at:
            moments.note("chunk")
        received(self, user, routing_id, frames)

    Workers.start, HubLoop._received = told_start, told_received  # type: ignore[method-assign]
    try:
        yield
    finally:
        Workers.start, HubLoop._received = start, received  # type: ignore[method-assign]


def start_one(launcher: Launcher, scenario: Scenario, hellos: list[float]) -> float:
    """Replay one session; return the seconds until its first chunk."""
    moments = Moments()
    with noted(moments):
        anyio.run(run_tree, ReplayDirector(scenario), launcher)
    hellos.append(moments.at["Hello"] - moments.at["start"])
    return moments.at["chunk"] - moments.at["start"]


# --- the comparators -----------------------------------------------------------


class Hub:
    """Where comparators say hello."""

    def __init__(self, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.endpoint = f"ipc://{folder / 'hub'}"
        context = stack.enter_context(zmq.Context())
        self._sock = stack.enter_context(context.socket(zmq.ROUTER))
        self._sock.bind(self.endpoint)
        self._count = 0

    def timed(self, start: Callable[[str], Callable[[], object]]) -> float:
        """Start a peer; return the seconds until its hello. Then wait for its end."""
        self._count += 1
        begun = time.perf_counter()
        wait = start(f"peer{self._count}")
        who, _ = self._sock.recv_multipart()
        seconds = time.perf_counter() - begun
        self._sock.send_multipart([who, b"welcome"])
        wait()
        return seconds


def bare_fork(hub: Hub, stack: ExitStack) -> Timed:
    """Prepare a process that forks on request."""
    command = [sys.executable, PEERS, "fork", hub.endpoint]
    zygote = stack.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    )

    def start(name: str) -> Callable[[], object]:
        assert zygote.stdin is not None
        zygote.stdin.write(f"{name}\n")
        zygote.stdin.flush()
        return lambda: None

    return partial(hub.timed, start)


def forkserver(hub: Hub) -> Timed:
    """Prepare a forkserver."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["bench_launch_peers", "bench_launch_forkserver"],
    )
    # Else the server does not find that module, and says nothing about it.
    os.environ["PYTHONPATH"] = str(Path(PEERS).parent)
    multiprocessing.forkserver.ensure_running()
    del os.environ["PYTHONPATH"]
    # Else every process imports this script once more, with all that it imports.
    del sys.modules["__main__"].__file__

    def start(name: str) -> Callable[[], object]:
        process = context.Process(target=peers.hello, args=(hub.endpoint, name))
        process.start()
        return process.join

    return partial(hub.timed, start)


def fresh(hub: Hub) -> Timed:
    """Prepare nothing."""

    def start(name: str) -> Callable[[], object]:
        command = [sys.executable, PEERS, "hello", hub.endpoint, name]
        return subprocess.Popen(command).wait

    return partial(hub.timed, start)


# --- memory --------------------------------------------------------------------


class Silent(ReplayDirector):
    """Answers the root and lets all others wait."""

    def on_stream(self, call: CallRequest) -> Answer | Stop:
        """Answer a call, or never."""
        if self.plan_of(call.session_id).creation.header.id == "many":
            return super().on_stream(call)
        return Answer(EncodedChunks(()), hangs=True)


def idle_memory(launcher: Launcher, count: int) -> list[float]:
    """Return the own memory of so many idle workers, in MB."""
    pids: set[int] = set()
    waiting = 0
    found: list[float] = []
    received, started = HubLoop._received, Workers._started

    def told_started(self: Workers, launch: str, process: WorkerProcess) -> None:
        if launch != "w0":  # the root's
            pids.add(process.pid)
        started(self, launch, process)

    def told_received(
        self: HubLoop, user: str, routing_id: bytes, frames: list[bytes]
    ) -> None:
        nonlocal waiting
        received(self, user, routing_id, frames)
        if user != "w0" and isinstance(decode_for_hub(frames)[0], Stream):
            waiting += 1
            if waiting == count:
                found.extend(map(_own_memory, pids))
                self.abort("aborted")

    HubLoop._received, Workers._started = told_received, told_started  # type: ignore[method-assign]
    try:
        bounds = Bounds(stall=120, timeout=300)
        director = Silent(fan_out(count))
        director.limits = director.limits._replace(start_timeout=120.0)
        anyio.run(partial(run_tree, director, launcher, bounds))
    finally:
        HubLoop._received, Workers._started = received, started  # type: ignore[method-assign]
    return found


def _own_memory(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kilobytes = sum(int(line.split()[1]) for line in lines if "Private_" in line)
    return kilobytes / 1024


# --- the run -------------------------------------------------------------------


def measured(rounds: int, idle: int) -> dict[str, Any]:
    """Measure everything."""
    times: dict[str, list[float]] = {}
    scenario = one_session()
    with ExitStack() as stack:
        hub = Hub(stack)
        warm = stack.enter_context(TemplateLauncher())
        hellos: dict[str, list[float]] = {
            "template hello": [],
            "exec hello": [],
            "forkserver worker's hello": [],
        }
        serves = forkserver(hub)
        other = ForkserverLauncher()
        kinds: dict[str, Timed] = {
            "bare fork": bare_fork(hub, stack),
            "template": partial(start_one, warm, scenario, hellos["template hello"]),
            "forkserver": partial(
                start_one, other, scenario, hellos["forkserver worker's hello"]
            ),
            "forkserver hello": serves,
            "exec": partial(start_one, ExecLauncher(), scenario, hellos["exec hello"]),
            "fresh": fresh(hub),
        }
        for number in range(rounds + 1):
            for kind, timed in kinds.items():
                seconds = timed()
                if number:  # the first one of each kind warms up
                    times.setdefault(kind, []).append(seconds)
        times.update({kind: found[1:] for kind, found in hellos.items()})
        memory = {
            "template": idle_memory(warm, idle),
            "exec": idle_memory(ExecLauncher(), idle),
        }
    return {
        "rounds": rounds,
        "milliseconds": {kind: _summary(t, 1000) for kind, t in times.items()},
        "ratios": [_ratio(times, *target) for target in TARGETS],
        "idle": {"workers": idle, "target_mb": USS_TARGET_MB}
        | {kind: _summary(found, 1) for kind, found in memory.items()},
    }


def _summary(values: Sequence[float], factor: float) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered) * factor, 2),
        "p95": round(ordered[int(len(ordered) * 0.95)] * factor, 2),
    }


def _ratio(
    times: dict[str, list[float]], kind: str, other: str, target: float, bound: str
) -> dict[str, Any]:
    ratio = statistics.median(times[kind]) / statistics.median(times[other])
    is_met = ratio <= target if bound == "at most" else ratio >= target
    name = f"{kind} / {other}"
    expected = f"{bound} {target:g}"
    return {"of": name, "ratio": round(ratio, 2), "expected": expected, "met": is_met}


def show(found: dict[str, Any]) -> None:
    """Print what was measured as a table."""
    print(f"{'ms, ' + str(found['rounds']) + ' rounds':<24}  median     p95")
    for kind, each in found["milliseconds"].items():
        print(f"{kind:<24} {each['median']:>7.2f} {each['p95']:>7.2f}")
    print()
    for each in found["ratios"]:
        verdict = "met" if each["met"] else "NOT MET"
        print(f"{each['of']:<24} {each['ratio']:>7.2f}  {each['expected']}: {verdict}")
    idle = found["idle"]
    print(f"\nown MB, {idle['workers']} idle         median     p95")
    for kind in ("template", "exec"):
        print(f"{kind:<24} {idle[kind]['median']:>7.2f} {idle[kind]['p95']:>7.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast workers start.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--idle", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measured(arguments.rounds, arguments.idle)
    if arguments.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
