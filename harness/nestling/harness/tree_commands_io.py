"""The commands that run trees: replays, recordings, live runs; and their scripts.

Each loads what it alone needs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import anyio

from nestling.driver.hub_io import Bounds
from nestling.driver.launcher_name import LauncherName
from nestling.driver.template_launcher_io import launcher_of
from nestling.harness.command_io import EXIT_FAILED, EXIT_OK, Result
from nestling.harness.growing_tree_io import GrowingTree
from nestling.harness.interrupts_io import end_anyway, unless_interrupted
from nestling.harness.printable import shown
from nestling.harness.scenario_io import load_scenario
from nestling.session.jsontext import JsonObject

T = TypeVar("T")


class How(NamedTuple):
    """How a tree is run, and what is told of it.

    Attributes:
        seconds: without progress, and in all, after which it ends.
        launcher: how workers start.
        as_json: whether one JSON object is printed, and the tree not drawn as it grows.
    """

    seconds: tuple[float, float]
    launcher: LauncherName
    as_json: bool


def script(path: Path, *, as_json: bool) -> Result:
    """Return the scripts of a scenario.

    Args:
        path: the scenario's.
        as_json: whether to return them as a JSON object.

    Raises:
        UnreadableError: if it cannot be read.
    """
    from nestling.harness.script_report import script_json, script_text

    loaded = load_scenario(path)
    return Result(script_json(loaded) if as_json else script_text(loaded))


def replay(
    path: Path,
    how: How,
    agent: str | None,
    speed: float,
    verify: Literal["off", "warn", "strict"] | None,
) -> Result:
    """Replay a scenario.

    Args:
        path: the scenario's.
        how: how it is run.
        agent: which agent to run; None for the scenario's own.
        speed: how fast answers are served.
        verify: what another request than recorded is; None for the scenario's own.

    Raises:
        KeyboardInterrupt: if a signal has ended it; everything is cleaned up then.
        NestlingError: if the scenario cannot be read or run.
    """
    from nestling.harness.casting_io import cast_of
    from nestling.harness.next_step import next_step
    from nestling.harness.replay_io import replay
    from nestling.harness.replay_report import report_json, report_text

    loaded = load_scenario(path)
    cast = cast_of(path, agent)
    with GrowingTree(is_wanted=not how.as_json) as tree:
        starts, bounds = launcher_of(how.launcher), Bounds(*how.seconds)
        work = partial(replay, loaded, bounds, starts, tree.watch, cast)
        work = partial(work, verify=verify, speed=speed)
        report = _carried_out(work, tree.close)
    if how.as_json:
        return _result(report_json(report), is_ok=report.is_ok)
    hint = None
    if agent is None and cast is not None:  # a refresh and a recording run that one
        folder = shown(shlex.quote(str(path)))
        commands = (f"`nestling {name} {folder}`" for name in ("refresh", "record"))
        hint = next_step(report.problems, *commands)
    return _result(report_text(report, hint), is_ok=report.is_ok)


def record(path: Path, how: How) -> Result:
    """Record a scenario.

    Args:
        path: the scenario's folder.
        how: how it is run.

    Raises:
        KeyboardInterrupt: if a signal has ended it; everything is cleaned up then.
        NestlingError: if the scenario cannot be read, run or written.
    """
    from nestling.harness.record_io import record
    from nestling.harness.record_report import record_json, record_text

    starts, bounds = launcher_of(how.launcher), Bounds(*how.seconds)
    # What a provider prints is not what this program has to say.
    with redirect_stdout(sys.stderr):
        report = _carried_out(partial(record, path, bounds, starts))
    output = record_json(report) if how.as_json else record_text(report)
    return _result(output, is_ok=report.is_ok)


def refresh(path: Path, how: How) -> Result:
    """Refresh a scenario.

    Args:
        path: the scenario's folder.
        how: how it is run.

    Raises:
        KeyboardInterrupt: if a signal has ended it; everything is cleaned up then.
        NestlingError: if the scenario cannot be read, run or written.
    """
    from nestling.harness.refresh_io import refresh
    from nestling.harness.refresh_report import refresh_json, refresh_text

    starts, bounds = launcher_of(how.launcher), Bounds(*how.seconds)
    report = _carried_out(partial(refresh, path, bounds, starts))
    output = refresh_json(report) if how.as_json else refresh_text(report)
    return _result(output, is_ok=report.is_ok)


def run(what: tuple[str, list[str], list[str], str], how: How) -> Result:
    """Run an agent.

    Args:
        what: the agent's reference, its prompts, its providers, the store's address.
        how: how it is run.

    Raises:
        KeyboardInterrupt: if a signal has ended it; everything is cleaned up then.
        NestlingError: if it cannot be run.
    """
    from nestling.harness.live_run_io import AgentRun
    from nestling.harness.live_run_report import live_run_json, live_run_text

    chosen = AgentRun(*what)
    with GrowingTree(is_wanted=not how.as_json) as tree:
        starts, bounds = launcher_of(how.launcher), Bounds(*how.seconds)
        work = partial(chosen.carry_out, bounds, starts, tree.watch)
        report = _carried_out(work, tree.close)
    output = live_run_json(report) if how.as_json else live_run_text(report)
    return _result(output, is_ok=report.is_ok)


def _carried_out(
    work: Callable[[], Awaitable[T]], at_last: Callable[[], None] = lambda: None
) -> T:
    """Do the work in an event loop, unless a signal ends it.

    Args:
        work: what.
        at_last: called, in any thread, before this process ends without it.

    Raises:
        KeyboardInterrupt: if one did.
    """
    abort = partial(end_anyway, at_last)
    report = anyio.run(partial(unless_interrupted, work, abort=abort))
    if report is None:
        raise KeyboardInterrupt
    return report


def _result(output: JsonObject | str, *, is_ok: bool) -> Result:
    return Result(output, EXIT_OK if is_ok else EXIT_FAILED)
