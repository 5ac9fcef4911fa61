"""Saving what a driver has run as a scenario, so that it can be replayed from now on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from nestling.driver.exits import Log
from nestling.harness.harvest import harvest, mistakes, read_harvest
from nestling.harness.ledger import Problem
from nestling.harness.normalise import Normalisers
from nestling.harness.placeless import placeless
from nestling.harness.record_report import RecordReport
from nestling.harness.recording_check import problems_of_replay
from nestling.harness.scenario_config_io import load_config
from nestling.harness.scenario_io import CONFIG_NAME, load_scenario
from nestling.harness.scenario_write_io import write_scenario
from nestling.harness.steadied import steadied
from nestling.session.errors import NestlingError, UnreadableError
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject, check, dumps, shown
from nestling.session.spawn_path import ROOT
from nestling.wire.agent_reference import absolute, parse_reference


def save_scenario(
    folder: Path | str,
    logs: Mapping[str, Log],
    *,
    agent: str,
    prompts: Sequence[str] | None = None,
    provider: str = "",
    options: JsonObject | None = None,
    tools: str = "recorded",
) -> RecordReport:
    """Save what a run has left as a scenario: its logs and a ``scenario.toml``.

    Args:
        folder: the scenario's; made if it is missing. A ``scenario.toml`` that is there
            is left alone.
        logs: what ``StartedRun.close`` or ``StartedRun.logs`` returned.
        agent: the root's agent reference, as the driver was given it.
        prompts: what the root was told, turn by turn; by default, what its log says.
        provider: who answers if the scenario is recorded anew, a reference.
        options: what the root's code was told.
        tools: whether a replay serves ``recorded`` results or runs tools ``live``.

    Returns:
        What was saved; or the problems for which nothing was written: a log that ends in
        a program's mistake, or one that does not replay.

    Raises:
        UnreadableError: if the prompts cannot be told from the root's log, or the
            ``scenario.toml`` that is there is not readable.
        AgentReferenceError: if a reference is none.
        JsonDomainError: if the options are no JSON.
        StoreError: if not all could be written.
    """
    folder = Path(folder)
    told = list(_told(logs[ROOT]) if prompts is None else prompts)
    check({"options": options or {}, "prompts": told})
    settings = {
        "agent": _reference(agent, folder),
        "provider": _reference(provider, folder) if provider else None,
        "tools": tools,
        "prompts": told,
    }
    config = load_config(folder)
    normalisers = Normalisers() if config is None else config.normalisers_at(folder)
    files, problems = recorded_files(folder, logs, normalisers)
    if problems:
        return RecordReport(None, tuple(problems), {})
    if config is None:
        files = {**files, CONFIG_NAME: _toml(settings, options or {})}
    write_scenario(folder, files)
    return RecordReport(load_scenario(folder), (), {})


def recorded_files(
    folder: Path, logs: Mapping[str, Log], normalisers: Normalisers
) -> tuple[dict[str, bytes], list[Problem]]:
    """Return the logs of a scenario that was run anew, and why they may be none.

    What is equal to the recording that is in the folder, if one is, is written as it is
    there.

    Args:
        folder: the scenario's.
        logs: what the run has left, by spawn path.
        normalisers: those in force.
    """
    problems = [Problem("recording-failed", *each) for each in mistakes(logs)]
    if problems:
        return {}, problems
    fresh = placeless(logs, normalisers)
    try:
        kept = {p: s.recording for p, s in load_scenario(folder).by_path.items()}
    except NestlingError:
        kept = {}  # there is none, or none that can be read
    files = harvest(steadied(fresh, kept, normalisers))
    scenario = read_harvest(folder.name or str(folder), files)
    return files, problems_of_replay(scenario)


def _reference(reference: str, folder: Path) -> str:
    """Return a reference as a scenario in `folder` writes it."""
    found = parse_reference(str(absolute(parse_reference(reference), os.getcwd())))
    place, colon, name = str(found).rpartition(":")
    if not os.path.isabs(place):
        return str(found)
    return f"{os.path.relpath(place, folder.absolute())}{colon}{name}"


def _told(root: Log) -> list[str]:
    """Return what the user said in each turn of a root."""
    prompts: list[str] = []
    for event in root.events:
        if event.type == "turn/start":
            prompts.append("")
        elif event.type == "user/message" and prompts and not prompts[-1]:
            prompts[-1] = _text(event)
    return prompts


def _text(event: Event) -> str:
    blocks = event.data["content"]
    if any(block.get("type") != "text" for block in blocks) or len(blocks) != 1:
        raise UnreadableError(
            f"event {event.seq}: found the prompt {shown(blocks)}, expected one block of "
            "text; a scenario.toml holds texts only"
        )
    return str(blocks[0]["text"])


def _toml(settings: Mapping[str, object], options: JsonObject) -> bytes:
    lines = [f"{key} = {_value(each)}" for key, each in settings.items() if each]
    if options:
        lines.append(f"options = {_value(options)}")
    return ("\n".join(lines) + "\n").encode()


def _value(value: object) -> str:
    """Write a JSON value as TOML, on one line.

    Raises:
        UnreadableError: if it is null, which TOML has not.
    """
    if value is None:
        raise UnreadableError("options: found null, which scenario.toml cannot hold")
    if isinstance(value, dict):
        pairs = (f"{_quoted(key)} = {_value(each)}" for key, each in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return _quoted(value)
    return dumps(value).decode()


def _quoted(text: str) -> str:
    return dumps(text).decode().replace("\x7f", "\\u007f")
