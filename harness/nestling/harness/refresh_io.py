"""Refreshing a scenario: what its agents tell the model now becomes what is expected.

The tree is replayed with its agent, the recorded answers served, and no provider asked.
What it leaves is written in the place of the recording: all of its files or none. What
is equal is left as it is, to the byte (see ``steadied``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from nestling.driver.exits import Log
from nestling.driver.hub_io import Bounds
from nestling.driver.launcher_io import Launcher
from nestling.harness.folder_lock_io import held
from nestling.harness.harvest import read_harvest
from nestling.harness.normalise import Normalisers
from nestling.harness.placeless import placeless
from nestling.harness.recording_check import problems_of_replay
from nestling.harness.refresh_report import RefreshReport
from nestling.harness.replay_io import replay
from nestling.harness.scenario import Scenario
from nestling.harness.scenario_config_io import ScenarioConfig, load_config
from nestling.harness.scenario_io import CONFIG_NAME, load_scenario
from nestling.harness.scenario_write_io import (
    ScenarioChangedError,
    logs_in,
    write_scenario,
)
from nestling.harness.steadied import steadied
from nestling.session.errors import StoreError, UnreadableError
from nestling.session.writing import encode_header, encode_rows

_ATTEMPTS: Final = 20
"""So often others may write a recording while it is refreshed."""


class _Kept(NamedTuple):
    """A scenario as it stands in its folder."""

    config: ScenarioConfig
    scenario: Scenario
    files: Mapping[str, bytes]


async def refresh(
    folder: Path, bounds: Bounds | None = None, launcher: Launcher | None = None
) -> RefreshReport:
    """Refresh a scenario.

    What the model is told is written anew: prompts, tools, tool results. What it said is
    left alone; where the agents make another call of it, or miss one, or have another
    child, nothing is written. Safe beside others that do the same, in other processes.

    Args:
        folder: the scenario's, with its ``scenario.toml`` and its logs.
        bounds: when a replay that does not move is over.
        launcher: how workers are started.

    Raises:
        UnreadableError: if the configuration or a log is missing or not readable.
        AgentReferenceError: if a reference in the configuration is none.
        LaunchError: if there is no place for the run's directory.
        StoreError: if not all could be written; the recording is then as it was.
    """
    for _ in range(_ATTEMPTS):
        kept = _read(folder)
        cast = kept.config.cast(folder=folder)
        report = await replay(kept.scenario, bounds, launcher, cast=cast, verify="off")
        if not report.is_ok:
            return RefreshReport(report, ())
        normalisers = kept.config.normalisers_at(folder)
        files = _files(kept, report.logs, normalisers)
        problems = problems_of_replay(read_harvest(kept.scenario.name, files))
        if problems:
            return RefreshReport(report._replace(problems=tuple(problems)), ())
        try:
            changed = write_scenario(folder, files, kept.files)
        except ScenarioChangedError:
            continue  # what was replayed is not what is there now
        return RefreshReport(report, tuple(changed))
    raise StoreError(
        f"{folder}: the recording was written by others, {_ATTEMPTS} times, while it was "
        "being refreshed; it is as they left it"
    )


def _read(folder: Path) -> _Kept:
    config = load_config(folder)
    if config is None:
        raise UnreadableError(
            f"{folder}: found no {CONFIG_NAME}, expected one that names the agent whose "
            "recording is refreshed"
        )
    try:
        with held(folder, shared=True):
            return _Kept(config, load_scenario(folder), logs_in(folder))
    except OSError as error:
        raise UnreadableError(f"{folder}: {error.strerror or error}") from None


def _files(
    kept: _Kept, logs: Mapping[str, Log], normalisers: Normalisers
) -> dict[str, bytes]:
    """Return what each file is to hold; what is equal holds what it does."""
    recordings = {p: each.recording for p, each in kept.scenario.by_path.items()}
    fresh = placeless(logs, normalisers)
    made = steadied(fresh, recordings, normalisers, is_same_tree=True)
    files: dict[str, bytes] = {}
    for path, recording in recordings.items():
        log = made[path]
        is_same = _is_same(log, Log(recording.header, recording.events))
        rows = encode_header(log.header) + encode_rows(log.events)
        files[recording.name] = kept.files[recording.name] if is_same else rows
    return files


def _is_same(one: Log, other: Log) -> bool:
    """Tell whether two logs are the same, times included."""
    if one.header.row() != other.header.row() or len(one.events) != len(other.events):
        return False
    pairs = zip(one.events, other.events, strict=True)
    return all(
        mine.time == kept.time and mine.content() == kept.content()
        for mine, kept in pairs
    )
