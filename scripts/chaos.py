"""Runs examples while processes die and stop, models dawdle and disks fail.

Usage: ``python scripts/chaos.py [EXAMPLE …] [--count N] [--seed S] [--run K]
[--launcher template|exec|both] [--store memory|jsonl|sqlite|any] [--faults KIND,…]
[--json]``.

Each run is one example, by chance live (its own agent, its scripted model, a driver) or
as a replay with its agent or as a tape, and by chance meets no fault, one, or several
(``chaos_faults.py``). Whatever happens, it must end in bounded time, and either be the
undisturbed tree or say honestly that it is not: every log valid and closed, no success
told of a child that did not complete, no call answered with what was said to another
one, nothing lost in the store, and nothing left behind (``chaos_checks.py``). A run that
only met what is harmless must be the undisturbed tree.

A run that is not as it must be is printed, with what leads to it again, and the others
go on. Exit code 0 if there was none, else 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import anyio
from chaos_checks import (
    Leftovers,
    Logs,
    Tree,
    calls_of,
    descriptors,
    log_problems,
    misrouted_live,
    misrouted_replay,
    own,
    recorded,
    result_problems,
    store_problems,
    tree_of,
)
from chaos_faults import (
    HARMLESS,
    KINDS,
    LIMITS,
    LIVE_ONLY,
    TEMPLATE_ONLY,
    TEMPLATES,
    Fault,
    FaultyBackend,
    Model,
    Scene,
    Stage,
    drawn,
    set_up,
)

from nestling.driver import Driver
from nestling.driver.exits import Birth
from nestling.driver.hub_io import Bounds
from nestling.driver.launcher_io import ExecLauncher, Launcher
from nestling.driver.started_run_io import RunResult, StartedRun
from nestling.driver.template_io import Template
from nestling.driver.template_launcher_io import TemplateLauncher
from nestling.harness import Cast, Scenario, cast_of, load_scenario, replay
from nestling.harness.record_io import load_provider
from nestling.harness.scenario_config_io import ScenarioConfig, require_config
from nestling.session.errors import NestlingError
from nestling.session.outcome import outcome
from nestling.session.store_backend import Backend
from nestling.session.store_io import SessionStore, backend_of

EXAMPLES: Final = Path(__file__).resolve().parent.parent / "examples"
NAMES: Final = ("deep", "fan-out", "first-turn-fork", "mixed", "retry")
"""Whose trees are the same each time; in ``twins`` it is a race who is first."""
LAUNCHERS: Final = ("template", "exec")
STORES: Final = ("memory", "jsonl", "sqlite")
MODES: Final = ("live", "live", "live", "agent", "tape")
BOUNDS: Final = Bounds(stall=8.0, timeout=30.0)
BOUND: Final = 40.0
"""Seconds within which a run must have ended, whatever happens."""
ACKNOWLEDGED: Final = 3.0
"""Seconds within which a cancel must be acknowledged, on a machine that is busy."""
MOST_RUNS: Final = 12
"""So many runs a driver has, at most."""
DESCRIPTORS: Final = 8
"""So many more may be open after a run than at its driver's start: a template, files."""


class Example(NamedTuple):
    """One example.

    Attributes:
        moments: about how many there are in a run of it.
        trees: its recorded tree, without times.
    """

    name: str
    scenario: Scenario
    config: ScenarioConfig
    cast: Cast | None
    moments: int
    tree: Tree


def loaded(name: str) -> Example:
    """Load an example."""
    scenario, config = load_scenario(EXAMPLES / name), require_config(EXAMPLES / name)
    logs = recorded(scenario)
    moments = sum(8 + 3 * len(calls_of(log)) for log in logs.values())
    tree = tree_of(logs, scenario.root.id, scenario.root.id)
    the_cast = cast_of(EXAMPLES / name, None)
    return Example(name, scenario, config, the_cast, moments, tree)


class Plan(NamedTuple):
    """What is to happen in one run.

    Attributes:
        seed: leads to all of it.
        mode: ``live``, ``agent`` or ``tape``.
    """

    seed: str
    example: Example
    mode: str
    faults: Sequence[Fault]

    def __str__(self) -> str:
        faults = ", ".join(map(str, self.faults)) or "no fault"
        return f"{self.seed} ({self.example.name}, {self.mode}: {faults})"


class Setting(NamedTuple):
    """Under what some runs take place: one driver."""

    launcher: str
    store: str


def settings(seed: str, first: int, launchers: str, stores: str) -> tuple[Setting, int]:
    """Choose a driver for some runs, and for how many."""
    chance = random.Random(f"{seed}/driver/{first}")
    launcher = chance.choice(LAUNCHERS) if launchers == "both" else launchers
    store = chance.choice(STORES) if stores == "any" else stores
    return Setting(launcher, store), chance.choice((1, 2, 5, MOST_RUNS))


def planned(
    seed: str,
    number: int,
    examples: Sequence[Example],
    among: Sequence[str],
    at: Setting,
) -> Plan:
    """Choose what happens in a run."""
    chance = random.Random(f"{seed}/{number}")
    example, mode = chance.choice(examples), chance.choice(MODES)
    kinds = [
        kind
        for kind in among
        if (mode == "live" or kind not in LIVE_ONLY)
        and (at.launcher == "template" or kind not in TEMPLATE_ONLY)
        and (at.store != "memory" or kind != "disk-full")
    ]
    faults = drawn(chance, kinds, example.moments)
    return Plan(f"{seed} --run {number}", example, mode, faults)


class Ended(NamedTuple):
    """How a run ended.

    Attributes:
        says_so: whether it says itself that something went wrong.
        problems: what is wrong with how it ended.
        reported: the sessions that a replay has stopped because they differed.
        births: how workers came to be, by spawn path.
    """

    logs: Logs
    root_id: str
    says_so: bool
    problems: list[str]
    reported: AbstractSet[str] = frozenset()
    births: Mapping[str, Birth] = {}


COUNTED: Final = (
    *("runs", "undisturbed", "honest errors", "failed", "live", "replays"),
    *(
        "sessions",
        "calls",
        "fallbacks",
        "misrouted",
        "lies",
        "lost",
        "leaked",
        "not ended",
    ),
)


class Totals:
    """What is counted over all runs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.longest = 0.0
        self.slowest_cancel = 0.0
        self.began = time.monotonic()

    def object(self) -> dict[str, Any]:
        """Return all of it, for people or for JSON."""
        return {
            **{name: self.counts[name] for name in COUNTED},
            "faults": dict(sorted(self.faults.items())),
            "longest run, seconds": round(self.longest, 2),
            "slowest cancel, seconds": round(self.slowest_cancel, 3),
            "seconds": round(time.monotonic() - self.began, 1),
        }


# --- one driver, and its runs ------------------------------------------------------------


class Theatre:
    """One driver, with what it runs on."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.folder = folder
        self.setting = setting
        self.launcher: Launcher = ExecLauncher()
        if setting.launcher == "template":
            self.launcher = TemplateLauncher(bounds=TEMPLATES)
        scheme = setting.store
        path = folder / ("runs.db" if scheme == "sqlite" else "runs")
        address = "memory:" if scheme == "memory" else f"{scheme}:{path}"
        self.backend = FaultyBackend(backend_of(address))
        self.store = SessionStore(cast(Backend, self.backend))
        self.model: Model | None = None
        self.driver = Driver(
            store=self.store,
            providers={"*": self._answer},
            launcher=self.launcher,
            limits=LIMITS,
        )

    async def _answer(self, request: Any) -> AsyncIterator[Any]:
        assert self.model is not None
        async for chunk in self.model(request):
            yield chunk

    def template(self) -> Template | None:
        """Return the template that the next worker comes from, if there is one."""
        if not isinstance(self.launcher, TemplateLauncher):
            return None
        return self.launcher._held[-1]._current


@asynccontextmanager
async def theatre(setting: Setting) -> AsyncIterator[Theatre]:
    """Open a driver, and close it."""
    folder = Path(tempfile.mkdtemp(prefix="store-"))
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        built = Theatre(setting, folder)
        stack.callback(built.store.close)
        if isinstance(built.launcher, TemplateLauncher):
            stack.enter_context(built.launcher)
        await stack.enter_async_context(built.driver)
        yield built


async def live(at: Theatre, plan: Plan, scene: Scene) -> Ended:
    """Run an example's agent."""
    example, config = plan.example, plan.example.config
    chance = random.Random(plan.seed)
    delays = [fault for fault in plan.faults if fault.kind == "delay"]
    scene.struck.extend(delays)
    model = Model(load_provider(config.provider), chance, is_late=bool(delays))
    at.model = model
    failing = [fault for fault in plan.faults if fault.kind == "store-error"]
    at.backend.arm(scene, failing)
    root_id = f"{example.scenario.root.id}-{secrets.token_hex(6)}"
    run = await at.driver.start(
        config.agent, config.prompts, session_id=root_id, options=config.options
    )
    scene.run = run
    result = await run.result()
    logs = await run.close()
    problems = [f"misrouted: {each}" for each in misrouted_live(logs, model.said)]
    failed = any(f.kind in ("store-error", "disk-full") for f in scene.struck)
    at.backend.arm(scene, ())
    scene.relieve()
    found = store_problems(at.store, logs, failed=failed)
    problems += [f"lost: {each}" for each in found]
    problems += live_problems(run, result, logs)
    births = {} if run.end is None else run.end.births
    told = says_so(run, result, logs)
    return Ended(logs, root_id, told, problems, births=births)


def live_problems(run: StartedRun, result: RunResult, logs: Logs) -> list[str]:
    """Return where the result of a live run is none."""
    problems = []
    if run.end is None or run.end.ending != "done":
        problems.append(f"not ended: {run.end}")
    came_to = outcome(own(logs["/"]))
    if result.stop_reason == "completed" and came_to.stop_reason != "completed":
        problems.append(f"lie: the result is {result}, the root's log {came_to}")
    return problems


def says_so(run: StartedRun, result: RunResult, logs: Logs) -> bool:
    """Tell whether a live run says that something went wrong in it."""
    reasons = [
        event.data["reason"]["kind"]
        for log in logs.values()
        for event in own(log)
        if event.type == "turn/end"
    ]
    is_cut = any(reason != "completed" for reason in reasons)
    return is_cut or bool(run.losses) or result.stop_reason != "completed"


async def replayed(at: Theatre, plan: Plan, scene: Scene) -> Ended:
    """Replay an example."""
    scenario = plan.example.scenario
    the_cast = None if plan.mode == "tape" else plan.example.cast
    report = await replay(scenario, BOUNDS, at.launcher, cast=the_cast)
    found = misrouted_replay(report.logs, scenario)
    problems = [f"misrouted: {each}" for each in found]
    reported = {p.path for p in report.problems if p.path and p.kind != "worker-lost"}
    says_so = bool(report.problems)
    return Ended(
        report.logs, scenario.root.id, says_so, problems, reported, report.births
    )


async def played(at: Theatre, plan: Plan, scene: Scene) -> tuple[list[str], Ended]:
    """Carry out one run, and look at what it came to."""
    scene.before(at.template())
    act = live if plan.mode == "live" else replayed
    ended = await act(at, plan, scene)
    problems = ended.problems
    problems += [f"lie: {each}" for each in log_problems(ended.logs)]
    found = result_problems(ended.logs, scene.told, ended.reported)
    problems += [f"lie: {each}" for each in found]
    return problems, ended


def judged(plan: Plan, scene: Scene, ended: Ended, totals: Totals) -> list[str]:
    """Say whether a tree is the undisturbed one, and what is wrong if it is not."""
    name = plan.example.scenario.root.id
    is_same = tree_of(ended.logs, name, ended.root_id) == plan.example.tree
    totals.counts["undisturbed"] += is_same
    totals.counts["honest errors"] += not is_same and ended.says_so
    if is_same:
        return []
    if not ended.says_so:
        return ["lie: another tree, and nothing says why"]
    if all(fault.kind in HARMLESS for fault in scene.struck):
        return ["disturbed by what is harmless"]
    return []


class Company:
    """Carries out runs, one after the other."""

    def __init__(
        self, box: Path, say: Callable[[str], None], *, is_verbose: bool
    ) -> None:
        self.totals = Totals()
        self._is_verbose = is_verbose
        self._left = Leftovers(box)
        self._say = say

    async def season(self, setting: Setting, plans: Sequence[Plan]) -> None:
        """Carry out some runs with one driver."""
        before = descriptors()
        async with theatre(setting) as at:
            most = descriptors() + DESCRIPTORS
            for plan in plans:
                await self._evening(at, plan, most)
        found = list(self._left.of_driver(before))
        self._count(plans[-1], f"{setting}, its driver closed", found)

    async def _evening(self, at: Theatre, plan: Plan, most: int) -> None:
        scene = Scene(
            [
                fault
                for fault in plan.faults
                if fault.kind not in ("delay", "store-error")
            ],
            at.folder,
        )
        Stage.scene = scene
        began = time.monotonic()
        problems = [f"not ended: after {BOUND:g} s"]
        # If not even the end comes, this says where every thread is.
        faulthandler.dump_traceback_later(3 * BOUND, exit=True)
        try:
            with anyio.move_on_after(BOUND):
                problems, ended = await played(at, plan, scene)
                problems += judged(plan, scene, ended, self.totals)
                self._measure(ended)
        except NestlingError as error:
            problems = [f"raised: {error!r}"]
        finally:
            if scene.run is not None:
                scene.run.thread.abort()
            await scene.close()
            Stage.scene = None
        took = time.monotonic() - began
        template = at.template()
        stays = frozenset([template.pid] if template is not None else [])
        problems += self._left.of_run(stays, most)
        faulthandler.cancel_dump_traceback_later()
        if scene.slowest > ACKNOWLEDGED:
            problems.append(f"a cancel was acknowledged after {scene.slowest:.1f} s")
        self._score(plan, scene, took)
        struck = ", ".join(map(str, scene.struck)) or "nothing"
        moments = f"{scene.moments} moments"
        what = f"{plan}, {at.setting}, {took:.1f} s, {moments}, struck: {struck}"
        if self._is_verbose:
            print(what, file=sys.stderr, flush=True)
        self._count(plan, what, problems)

    def _measure(self, ended: Ended) -> None:
        self.totals.counts["sessions"] += len(ended.logs)
        calls = sum(len(calls_of(log)) for log in ended.logs.values())
        self.totals.counts["calls"] += calls
        reasons = [each.reason for each in ended.births.values() if each.reason]
        self.totals.counts["fallbacks"] += len(reasons)
        if reasons and self._is_verbose:
            print(f"    {len(reasons)} by exec: {reasons[0]}", file=sys.stderr)

    def _score(self, plan: Plan, scene: Scene, took: float) -> None:
        totals = self.totals
        totals.counts["runs"] += 1
        totals.counts["live" if plan.mode == "live" else "replays"] += 1
        totals.faults.update(fault.kind for fault in scene.struck)
        totals.longest = max(totals.longest, took)
        totals.slowest_cancel = max(totals.slowest_cancel, scene.slowest)

    def _count(self, plan: Plan, what: str, problems: Sequence[str]) -> None:
        if not problems:
            return
        self.totals.counts["failed"] += 1
        for kind in ("misrouted", "lost", "leaked", "not ended"):
            self.totals.counts[kind] += sum(p.startswith(kind) for p in problems)
        self.totals.counts["lies"] += sum(p.startswith("lie") for p in problems)
        self._say(f"FAILED --seed {what}")
        for problem in problems:
            self._say(f"    {problem[:2000]}")


# --- the program ---------------------------------------------------------------------------


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help=", ".join(NAMES))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--run", type=int, help="only this one of the seed's runs")
    parser.add_argument("--launcher", choices=(*LAUNCHERS, "both"), default="template")
    parser.add_argument("--store", choices=(*STORES, "any"), default="any")
    parser.add_argument("--faults", help=f"only these: {', '.join(KINDS)}")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="say what is run")
    told = parser.parse_args(arguments)
    if not set(told.examples) <= set(NAMES):
        parser.error(f"examples are {', '.join(NAMES)}")
    told.faults = told.faults.split(",") if told.faults else list(KINDS)
    if not set(told.faults) <= KINDS.keys():
        parser.error(f"faults are {', '.join(KINDS)}")
    return told


async def perform(told: argparse.Namespace, company: Company) -> None:
    """Carry out all runs."""
    examples = [loaded(name) for name in told.examples or ("deep", "fan-out")]
    first = 0
    while first < told.count or told.run is not None:
        setting, length = settings(told.seed, first, told.launcher, told.store)
        length = length if told.run is not None else min(length, told.count - first)
        numbers = range(first, first + length)
        if told.run is not None:
            if told.run not in numbers:
                first += length
                continue
            numbers = range(told.run, told.run + 1)
        plans = [planned(told.seed, n, examples, told.faults, setting) for n in numbers]
        await company.season(setting, plans)
        if told.run is not None:
            return
        first += length


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    told = parsed(arguments)
    set_up()
    box = Path(tempfile.mkdtemp(prefix="nc-")).resolve()
    os.environ["TMPDIR"] = tempfile.tempdir = str(box)
    os.environ.pop("XDG_RUNTIME_DIR", None)

    def say(text: str) -> None:
        print(text, file=sys.stderr if told.json else sys.stdout, flush=True)

    company = Company(box, say, is_verbose=told.verbose)
    try:
        anyio.run(perform, told, company)
    finally:
        with suppress(OSError):
            shutil.rmtree(box)
    totals = company.totals.object()
    if told.json:
        print(json.dumps({"seed": told.seed, **totals}))
    else:
        struck = totals.pop("faults")
        print(f"seed {told.seed}: " + "; ".join(f"{k} {v}" for k, v in totals.items()))
        print("faults: " + ", ".join(f"{kind} {n}" for kind, n in struck.items()))
    return 1 if company.totals.counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
