"""Replays every example many times under stress, and wants one tree of each.

Usage: ``python scripts/stress_examples.py [NAME …] [--count N] [--seed S]
[--delay SECONDS]``. A name is an example's, or the path of a scenario's folder.

Each is replayed N times under each launcher, with its agent and as a tape. Every
worker waits a random while before each of its calls, and other processes keep the
processors busy, by chance, too: how many and when follows from the seed that is printed.
What is left of a replay, all logs of its tree, is written as files with their times
blanked. All replays of an example must give the same bytes, which are those of the
recording. Exit code 0 if so and no replay had a problem, else 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import secrets
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import msgspec
from stress_worker import FOLDER

from nestling.driver.exits import Log
from nestling.driver.hub_io import Bounds
from nestling.driver.launcher_io import ExecLauncher, Launcher
from nestling.driver.template_launcher_io import TemplateLauncher
from nestling.harness import ReplayReport, Scenario, cast_of, load_scenario, replay
from nestling.session.spawn_path import sort_key
from nestling.session.writing import encode_header, encode_rows

EXAMPLES: Final = Path(__file__).resolve().parent.parent / "examples"
ENTRY: Final = "stress_worker"
LAUNCHERS: Final = ("template", "exec")
AGENTS: Final = (None, "tape")
BOUNDS: Final = Bounds(stall=60, timeout=300)
MOST_BUSY: Final = 3
"""So many processes keep the processors busy, at most."""

BUSY: Final = """
import random, sys, time
chance, end = random.Random(sys.argv[1]), time.monotonic() + 600
while time.monotonic() < end:
    until = time.monotonic() + chance.uniform(0, 0.05)
    while time.monotonic() < until:
        pass
    time.sleep(chance.uniform(0, 0.05))
"""
"""Works and rests by turns; ends by itself should nobody end it."""


class Arguments(NamedTuple):
    """What the script was told.

    Attributes:
        folders: those of the scenarios.
        repeats: replays of an example under one launcher with one kind of agent.
        seed: what all chance comes from.
        delay: the longest wait before a call, in seconds.
    """

    folders: Sequence[Path]
    repeats: int
    seed: str
    delay: float


# --- trees ---------------------------------------------------------------------


def tree_bytes(logs: Mapping[str, Log]) -> bytes:
    """Return the logs of a tree as its files would hold them, times blanked."""
    parts = []
    for path in sorted(logs, key=sort_key):
        header, events = logs[path]
        timeless = [msgspec.structs.replace(event, time=0) for event in events]
        blank = msgspec.structs.replace(header, created_at=0)
        parts += [path.encode(), b"\n", encode_header(blank), encode_rows(timeless)]
    return b"".join(parts)


def recorded(scenario: Scenario) -> Mapping[str, Log]:
    """Return the recorded logs of a scenario."""
    return {
        path: Log(session.recording.header, session.recording.events)
        for path, session in scenario.by_path.items()
    }


# --- stress --------------------------------------------------------------------


@contextmanager
def busy(chance: random.Random) -> Iterator[None]:
    """Keep the processors busy."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(chance.randint(0, MOST_BUSY)):
            command = [sys.executable, "-S", "-c", BUSY, str(chance.random())]
            running.append(subprocess.Popen(command))
        yield
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


class Found:
    """What the replays of one example came to.

    Attributes:
        trees: how often each tree came out, by its digest.
        problems: what replays had to say, and how often.
        calls: how many calls workers were served.
        delays: how many calls were delayed, and by how many seconds in all.
    """

    def __init__(self) -> None:
        self.trees: Counter[str] = Counter()
        self.problems: Counter[str] = Counter()
        self.calls = 0
        self.delays = (0, 0.0)

    def add(self, report: ReplayReport, launcher: str, delays: Sequence[float]) -> None:
        """Count one replay in."""
        self.trees[hashlib.sha256(tree_bytes(report.logs)).hexdigest()] += 1
        for problem in report.problems:
            self.problems[f"{problem.kind} {problem.path}: {problem.message}"] += 1
        if report.launcher != launcher:
            self.problems[f"from {report.launcher}, not {launcher}"] += 1
        served = sum(account.served for account in report.accounts.values())
        # A call of which nothing was recorded is served nothing.
        if served > len(delays):
            self.problems[f"{served} calls, of which {len(delays)} were delayed"] += 1
        self.calls += served
        count, seconds = self.delays
        self.delays = (count + len(delays), seconds + sum(delays))


def launcher_of(name: str, stack: ExitStack) -> Launcher:
    """Return a launcher of delayed workers; a template stays warm between replays."""
    if name == "exec":
        return ExecLauncher(ENTRY)
    return stack.enter_context(TemplateLauncher(entry=ENTRY))


def stressed(example: Path, arguments: Arguments, folder: Path) -> Found:
    """Replay one example in every way."""
    found, name = Found(), example.name
    scenario = load_scenario(example)
    for launcher in LAUNCHERS:
        with ExitStack() as stack:
            starts = launcher_of(launcher, stack)
            for agent in AGENTS:
                cast = cast_of(example, agent)
                run = partial(replay, scenario, BOUNDS, starts, cast=cast)
                for number in range(arguments.repeats):
                    seed = f"{arguments.seed}/{name}/{launcher}/{agent}/{number}"
                    report, delays = one(run, seed, arguments.delay, folder)
                    found.add(report, launcher, delays)
                print(f"  {name}, {launcher}, {agent or 'agent'}: done", flush=True)
    return found


def one(
    run: Callable[[], Awaitable[ReplayReport]], seed: str, delay: float, folder: Path
) -> tuple[ReplayReport, list[float]]:
    """Replay once; return how it went and the delays that workers had."""
    (folder / "seed").write_text(f"{seed} {delay}")
    (folder / "delays").write_text("")
    with busy(random.Random(seed)):
        report = anyio.run(run)
    return report, [float(line) for line in (folder / "delays").open()]


# --- the table -----------------------------------------------------------------


def show(name: str, found: Found, wanted: str) -> bool:
    """Print the line of one example; return whether it is as it must be."""
    count, seconds = found.delays
    mean = 1000 * seconds / count if count else 0
    is_one = list(found.trees) == [wanted]
    is_right = is_one and not found.problems
    print(
        f"{name:<24} {found.trees.total():>7} {found.calls:>7} {mean:>8.1f} "
        f"{len(found.trees):>5} {found.problems.total():>8}  "
        f"{'as recorded' if is_one else 'NOT AS RECORDED':<15}  {wanted}"
    )
    for problem, times in found.problems.items():
        print(f"    {times} times: {problem}")
    for digest, times in found.trees.items():
        if digest != wanted:
            print(f"    {times} times: {digest}")
    return is_right


def parsed() -> Arguments:
    """Read the command line."""
    names = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    parser = argparse.ArgumentParser(description="Replays the examples under stress.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--delay", type=float, default=0.02)
    told = parser.parse_args()
    folders = [
        EXAMPLES / name if name in names else Path(name) for name in told.names or names
    ]
    if not all(folder.is_dir() for folder in folders):
        parser.error(f"examples are {', '.join(names)}; or give a scenario's folder")
    return Arguments(folders, told.count, told.seed, told.delay)


def main() -> int:
    """Read the command line, replay, print, and return the exit code."""
    return stress(parsed())


def stress(arguments: Arguments) -> int:
    """Replay and print; return the exit code."""
    print(
        f"{arguments.repeats} replays each of {len(arguments.folders)} examples under "
        f"{' and '.join(LAUNCHERS)}, with the agent and as a tape; --seed "
        f"{arguments.seed}, delays up to {1000 * arguments.delay:g} ms, up to "
        f"{MOST_BUSY} busy processes",
        flush=True,
    )
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        for example in arguments.folders:
            found[example] = stressed(example, arguments, Path(folder))
    print(
        f"\n{'example':<24} replays   calls delay/ms trees problems  {'':<15}  sha256"
    )
    verdicts = []
    for example, each in found.items():
        logs = recorded(load_scenario(example))
        wanted = hashlib.sha256(tree_bytes(logs)).hexdigest()
        verdicts.append(show(example.name, each, wanted))
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
