"""Cancels live runs at moments of chance, and replays what the store has many times.

Usage: ``python scripts/stress_cancels.py [MOMENT …] [--count N] [--seed S]
[--delay SECONDS] [--later EVENTS]``.

A run is cancelled by ``run.cancel()`` or ``run.cancel_call()``, from outside, while it
goes on: some events after each of the moments that the tests know of, as many as the
seed has it. What is stored of it becomes a scenario, which is replayed N times under each
launcher, with its agent and as a tape, as ``stress_examples.py`` does. Exit code 0 if
every replay gave the recorded logs, else 1.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from stress_examples import LAUNCHERS, Arguments, stress

from nestling.driver.launcher_io import Launcher
from nestling.harness.harvest import harvest
from nestling.harness.scenario_write_io import write_scenario
from nestling.session.jsontext import dumps
from support.cancelled import MOMENTS, cancelled
from support.live import launcher_named


async def recorded(
    folder: Path, moment: str, launcher: Launcher, later: int
) -> dict[str, list[str]]:
    """Cancel a run, and write what is left of it as a scenario.

    Returns:
        Why the turns of its sessions ended, by path.
    """
    run = await cancelled(MOMENTS[moment], folder / "store", launcher, later)
    settings = {"agent": run.agent, "prompts": run.prompts}
    text = [f"{key} = {dumps(value).decode()}\n" for key, value in settings.items()]
    files = {"scenario.toml": "".join(text).encode(), **harvest(run.logs)}
    write_scenario(folder, files)
    return {path: run.reasons(path) for path in run.logs}


def main() -> int:
    """Record, replay, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Replays runs that were cancelled.")
    parser.add_argument("moments", nargs="*", metavar="MOMENT", help="; ".join(MOMENTS))
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--delay", type=float, default=0.02)
    parser.add_argument("--later", type=int, default=30)
    told = parser.parse_args()
    if not set(told.moments) <= set(MOMENTS):
        parser.error(f"moments are: {'; '.join(MOMENTS)}")
    chance = random.Random(told.seed)
    folders = []
    with tempfile.TemporaryDirectory() as box:
        for moment in told.moments or MOMENTS:
            later = chance.randint(0, told.later)
            launcher = chance.choice(LAUNCHERS)
            folder = Path(box, moment.replace(" ", "-"))
            reasons = anyio.run(
                recorded, folder, moment, launcher_named(launcher), later
            )
            folders.append(folder)
            print(f"{moment}, {later} events later, {launcher}: {reasons}", flush=True)
        return stress(Arguments(folders, told.count, told.seed, told.delay))


if __name__ == "__main__":
    sys.exit(main())
