"""What a run has left, as the files of a scenario; and whether it may be one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from nestling.driver.exits import Log
from nestling.driver.live_director import STARTED_AS
from nestling.harness.scenario import Scenario, build_scenario
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import shown
from nestling.session.reading import read_recording
from nestling.session.spawn_path import sort_key
from nestling.session.writing import encode_header, encode_rows

ROOT_FILE: Final = "session.jsonl"

SPOILT_BY: Final = frozenset(
    {
        "AGENT_ERROR",
        "BAD_CHUNK",
        "NO_PROVIDER",
        "PROVIDER_ERROR",
        "SCRIPT_EXHAUSTED",
    }
)
"""Codes of failures that are mistakes in a program, not what a model does."""


def harvest(logs: Mapping[str, Log]) -> dict[str, bytes]:
    """Return the files of a scenario: the root's first, then in spawn-path order.

    Args:
        logs: what each session has left, by spawn path.
    """
    ordered = sorted(logs, key=sort_key)
    return {
        _file_name(number): encode_header(_header(logs[path]))
        + encode_rows(logs[path].events)
        for number, path in enumerate(ordered)
    }


def _header(log: Log) -> Header:
    """Return a header without the place of its agent, which is this machine's."""
    return log.header.with_fields(**{STARTED_AS: None})


def _file_name(number: int) -> str:
    return f"session.{number}.jsonl" if number else ROOT_FILE


def read_harvest(name: str, files: Mapping[str, bytes]) -> Scenario:
    """Read files of ``harvest`` back, as whoever replays them will.

    Raises:
        UnreadableError: if they cannot be.
    """
    recordings = [read_recording(data, file) for file, data in files.items()]
    return build_scenario(name, recordings)


def mistakes(logs: Mapping[str, Log]) -> Iterator[tuple[str, str]]:
    """Yield, by spawn path, what in a run's logs is a program's mistake."""
    for path, log in logs.items():
        for event in log.events[log.header.seed_length :]:
            failure = _failure(event)
            if failure is not None and failure.get("code") in SPOILT_BY:
                where = f"event {event.seq}, {event.type}"
                said = failure.get("message")
                yield path, f"{where}: {failure['code']}: {shown(said)}"
                break


def _failure(event: Event) -> Mapping[str, object] | None:
    """Return the failure that an event tells of, if it tells of one."""
    if event.type == "assistant/chunk" and event.data["chunk"]["type"] == "finish":
        found = event.data["chunk"]["reason"].get("failure")
    elif event.type == "turn/end":
        found = event.data["reason"].get("error")
    else:
        return None
    return found if isinstance(found, dict) else None
