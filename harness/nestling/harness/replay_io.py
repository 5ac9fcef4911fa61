"""Replaying a scenario across processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from nestling.driver.caller_loop_io import CallerLoop
from nestling.driver.feeder_io import Feeder, Timer
from nestling.driver.hub_io import Bounds, Ending, RunEnd
from nestling.driver.instructions import Notice
from nestling.driver.launcher_io import Launcher
from nestling.driver.launcher_name import LauncherName
from nestling.driver.run_io import run_tree
from nestling.driver.template_launcher_io import launcher_of
from nestling.harness.comparison import Verify
from nestling.harness.gates_io import Gate
from nestling.harness.ledger import ProblemKind
from nestling.harness.normalise import Normalisers
from nestling.harness.replay_director import Cast, ReplayDirector
from nestling.harness.replay_report import ReplayReport
from nestling.harness.scenario import Scenario
from nestling.harness.support import hindrances

_PROBLEM_OF: Final[dict[Ending, ProblemKind]] = {
    "stall": "stall",
    "timeout": "timeout",
    "aborted": "worker-lost",
    "unkillable": "worker-lost",
}


def _ignore(_: Notice) -> None:
    """Watch nothing."""


async def replay(
    scenario: Scenario,
    bounds: Bounds | None = None,
    launcher: Launcher | None = None,
    watch: Callable[[Notice], None] = _ignore,
    cast: Cast | None = None,
    *,
    verify: Verify | None = None,
    normalisers: Normalisers | None = None,
    speed: float = 0.0,
    gates: Sequence[Gate] = (),
    timer: Timer | None = None,
) -> ReplayReport:
    """Replay a scenario with one process a session, and compare.

    Args:
        scenario: what was recorded.
        bounds: when a replay that does not move is over.
        launcher: how workers are started; forked from a template by default, where
            the system has what that needs.
        watch: called in the hub's thread as sessions start, call and end.
        cast: the agents that run it; tape agents by default.
        verify: what it is if an agent tells its model something else than recorded: a
            problem (``strict``), a warning (``warn``), or nothing (``off``). By default
            as the cast says, else ``strict`` for what was recorded here and ``off`` for
            other logs. A tape is always exact.
        normalisers: what may be another from run to run; by default the cast's.
        speed: 0 to serve answers at once, 1 as their chunks were recorded, N to be N
            times as fast.
        gates: hold answers at a chunk, each until it is released.
        timer: the clock of a replay at some speed; the system's by default.

    Raises:
        UnreadableError: if a recorded log cannot be made into a tape.
        ValueError: if the speed is none, or nothing is recorded where a gate is.
        LaunchError: if there is no place for the run's directory.
    """
    launcher = launcher_of(LauncherName.AUTO) if launcher is None else launcher
    hindered = hindrances(scenario)
    if hindered:
        return ReplayReport(scenario, tuple(hindered), {}, {}, {})
    if cast is not None and verify is not None:
        cast = cast._replace(verify=verify)
    if cast is not None and normalisers is not None:
        cast = cast._replace(normalisers=normalisers)
    places = [gate.place for gate in gates]
    director = ReplayDirector(scenario, cast, speed=speed, gates=places)
    bounds = Bounds() if bounds is None else bounds
    feeder = Feeder(gates, timer)
    async with _listening(gates):
        end = await run_tree(director, launcher, bounds, watch, feeder)
    _judge(director, end, bounds)
    for gate in gates:
        if not gate.is_reached:
            message = f"the replay has ended and did not come to {gate}"
            director.ledger.report("stall", gate.place[0], message)
    ledger = director.ledger
    return ReplayReport(
        scenario,
        tuple(ledger.problems),
        ledger.accounts,
        end.births,
        end.logs,
        tuple(ledger.warnings),
        ledger.nearest,
    )


@asynccontextmanager
async def _listening(gates: Sequence[Gate]) -> AsyncIterator[None]:
    """Tell those who wait for gates, in the running event loop."""
    if not gates:
        yield
        return
    caller = CallerLoop()
    await caller.__aenter__()
    try:
        for gate in gates:
            gate.bind(caller.post)
        yield
    finally:
        # What the body has raised is the caller's: it is not to be wrapped in a group.
        await caller.__aexit__(None, None, None)
        for gate in gates:
            gate.end()


def _judge(director: ReplayDirector, end: RunEnd, bounds: Bounds) -> None:
    if end.ending == "done":
        director.close()
        return
    seconds = {"stall": bounds.stall, "timeout": bounds.timeout}.get(end.ending)
    after = "" if seconds is None else f" after {seconds:g} s"
    waits = "; ".join(f"{path} waits for {what}" for path, what in end.waiting)
    # The last path is the deepest of the tree's last branch: what others wait for.
    path = end.waiting[-1][0] if end.waiting else None
    message = f"the replay was ended{after}: {waits or 'nothing was waited for'}"
    director.ledger.report(_PROBLEM_OF[end.ending], path, message)
