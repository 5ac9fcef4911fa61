"""Recording a scenario: its agent is run, and what the tree leaves becomes its files.

Nothing is written before the whole tree has ended well and the recording was seen to
replay; a recording that fails leaves the old one as it was.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from nestling.driver.driver_io import Driver
from nestling.driver.exits import Log
from nestling.driver.hub_io import Bounds
from nestling.driver.launcher_io import Launcher
from nestling.driver.launcher_name import LauncherName
from nestling.driver.started_run_io import StartedRun
from nestling.driver.template_launcher_io import launcher_of
from nestling.harness.crashes import ends_dead
from nestling.harness.folder_lock_io import held
from nestling.harness.harvest import mistakes, read_harvest
from nestling.harness.ledger import Problem
from nestling.harness.record_report import RecordReport
from nestling.harness.saving_io import recorded_files
from nestling.harness.scenario_config_io import ScenarioConfig, require_config
from nestling.harness.scenario_write_io import (
    ScenarioChangedError,
    logs_in,
    write_scenario,
)
from nestling.harness.steps import cancel_points, described_point
from nestling.session.errors import AgentReferenceError, StoreError, described
from nestling.session.request import Provider
from nestling.session.spawn_path import ROOT
from nestling.wire.agent_reference import parse_reference
from nestling.worker.references_io import load_object

_ATTEMPTS: Final = 20
"""So often others may write a recording while this one is held against it."""


async def record(
    folder: Path,
    bounds: Bounds | None = None,
    launcher: Launcher | None = None,
    provider: Provider | None = None,
) -> RecordReport:
    """Record a scenario.

    Args:
        folder: the scenario's, with its ``scenario.toml``.
        bounds: when a run that does not move is over.
        launcher: how workers are started.
        provider: answers every model call; by default the one that the scenario names.

    Raises:
        UnreadableError: if the configuration is missing or not readable.
        AgentReferenceError: if the agent or the provider cannot be loaded.
        LaunchError: if there is no place for the run's directory.
        StoreError: if the recording could not be written; the old one is there then.
    """
    config = require_config(folder)
    answering = load_provider(config.provider) if provider is None else provider
    starts = launcher_of(LauncherName.AUTO) if launcher is None else launcher
    logs, lost, printed = await _run(config, answering, starts, bounds or Bounds())
    wrong = [*lost, *(Problem("recording-failed", *each) for each in mistakes(logs))]
    if wrong:
        return RecordReport(None, tuple(wrong), printed)
    for _ in range(_ATTEMPTS):
        kept = _kept_logs(folder)
        files, problems = recorded_files(folder, logs, config.normalisers_at(folder))
        scenario = read_harvest(folder.name or str(folder), files)
        try:
            if not problems:
                write_scenario(folder, files, kept)
        except ScenarioChangedError:
            continue  # what it was held against is not what is there now
        return RecordReport(scenario, tuple(problems), printed)
    raise StoreError(f"{folder}: others write it all the time; it is as they left it")


def _kept_logs(folder: Path) -> dict[str, bytes]:
    try:
        with held(folder, shared=True):
            return logs_in(folder)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror or error}") from None


async def _run(
    config: ScenarioConfig,
    provider: Provider,
    launcher: Launcher,
    bounds: Bounds,
) -> tuple[Mapping[str, Log], list[Problem], Mapping[str, str]]:
    """Run the tree; return its logs, what happened that must not, what was printed."""
    providers = {"*": provider}
    async with Driver(providers=providers, launcher=launcher, bounds=bounds) as driver:
        first, *others = config.prompts
        run = await driver.start(
            config.agent,
            first,
            session_id=config.name,
            options=config.options,
            cancels=cancel_points(config.steps),
        )
        await run.result()
        for prompt in others:
            # One by one: a cancel takes with it what has not begun.
            if run.is_done:
                break
            await run.send(prompt)
            await run.result()
        logs = await run.close()
    if run.end is not None and run.end.ending != "done":
        waits = "; ".join(f"{path} waits for {what}" for path, what in run.end.waiting)
        message = f"the run was ended ({run.end.ending}): {waits}"
        return logs, [Problem("stall", ROOT, message)], run.printed
    lost = [
        Problem("worker-lost", path, why)
        for path, why in run.losses
        # Who never began has left nothing that could be recorded.
        if config.deaths == "refused" or not ends_dead(logs[path].events)
    ]
    return logs, lost or _unreached(run), run.printed


def _unreached(run: StartedRun) -> list[Problem]:
    """Tell of the cancels that were stated and did not happen."""
    return [
        Problem(
            "recording-failed",
            point.path,
            f"step {point.turn} was to be cancelled at {described_point(point)}, "
            "which it did not come to",
        )
        for point in run.unreached
    ]


def load_provider(reference: str) -> Provider:
    """Load what answers model calls: a provider, or a function that makes one.

    Args:
        reference: ``module:name`` or ``path/file.py:name``.

    Raises:
        AgentReferenceError: if there is none.
    """
    searched = list(sys.path)
    try:
        found: Any = load_object(parse_reference(reference))
    finally:
        sys.path[:] = searched  # workers find what the caller finds, and no more
    if _is_provider(found):
        return found  # type: ignore[no-any-return]  # just looked at
    if callable(found) and not inspect.isclass(found) and _takes_nothing(found):
        made = _made(reference, found)
        if _is_provider(made):
            return made  # type: ignore[no-any-return]  # likewise
        found = made
    raise AgentReferenceError(
        f"{reference} is {found!r}, expected a provider (an async generator function "
        "that takes a request, a ScriptedModel) or a function that makes one"
    )


def _made(reference: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - it is the user's code
        raise AgentReferenceError(
            f"{reference} raises when it is called: {described(error)}"
        ) from None


def _is_provider(found: object) -> bool:
    call = found if inspect.isroutine(found) else getattr(type(found), "__call__", None)  # noqa: B004 - to look at it, not for it
    return inspect.isasyncgenfunction(call)


def _takes_nothing(function: Callable[..., object]) -> bool:
    try:
        return not inspect.signature(function).parameters
    except (TypeError, ValueError):  # some of those that are not written in Python
        return False
