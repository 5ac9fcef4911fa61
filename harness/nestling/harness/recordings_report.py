"""What a whole test run says of the recordings on disk: which nobody uses any more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

CONFIG: Final = "scenario.toml"
ROOT_LOG: Final = "session.jsonl"
OVERRIDE: Final = "replay.override.json"

_CHILD: Final = re.compile(r"session\.(.+)\.jsonl")
_LEFT_OVER: Final = re.compile(r"\..+\.(?:new|old|undo)")


class Facts(NamedTuple):
    """What a test run did, told by each of its processes as JSON values.

    Attributes:
        used: the folders that the markers of collected tests name, absolute.
        recorded: those that were recorded.
        refreshed: the files that a refresh changed, by folder.
        warned: what differs from what is recorded, and fails nothing.
        deselected: how many tests were collected and not run.
    """

    used: list[str]
    recorded: list[str]
    refreshed: dict[str, list[str]]
    warned: list[str]
    deselected: int = 0


def merged(told: Iterable[Facts]) -> Facts:
    """Return what several processes of one run did together."""
    used: set[str] = set()
    recorded: list[str] = []
    refreshed: dict[str, list[str]] = {}
    warned: dict[str, None] = {}
    deselected = 0
    for each in told:
        used.update(each.used)
        recorded += each.recorded
        refreshed.update(each.refreshed)
        warned.update(dict.fromkeys(each.warned))
        deselected = max(deselected, each.deselected)  # each has seen all tests
    return Facts(sorted(used), sorted(recorded), refreshed, sorted(warned), deselected)


def is_scenario(names: AbstractSet[str]) -> bool:
    """Tell by the names of its files whether a folder is one of a scenario."""
    return CONFIG in names or ROOT_LOG in names or any(map(_CHILD.fullmatch, names))


def orphans(names: AbstractSet[str]) -> Iterator[tuple[str, str]]:
    """Yield the files of a scenario's folder that belong to no scenario, and why.

    Args:
        names: of all its files.
    """
    has_root = ROOT_LOG in names
    numbers = {
        int(match[1])
        for name in names
        if (match := _CHILD.fullmatch(name)) and match[1].isdecimal()
    }
    for name in sorted(names):
        match = _CHILD.fullmatch(name)
        if _LEFT_OVER.fullmatch(name) and name[1:].startswith("session."):
            yield name, "left by a write that was killed"
        elif match is None:
            if name == OVERRIDE and not has_root:
                yield name, f"there is no {ROOT_LOG}"
        elif not has_root:
            yield name, f"there is no {ROOT_LOG}"
        elif not re.fullmatch("[1-9][0-9]*", match[1]):
            yield name, "children are numbered 1, 2, 3 and so on"
        elif int(match[1]) > 1 and int(match[1]) - 1 not in numbers:
            yield name, f"there is no session.{int(match[1]) - 1}.jsonl"


def done_lines(facts: Facts) -> Iterator[str]:
    """Yield what a run has written and what it warns of, a line each.

    Args:
        facts: of the run.
    """
    yield from (f"recorded: {folder}" for folder in facts.recorded)
    for folder, files in sorted(facts.refreshed.items()):
        yield f"refreshed: {folder} ({', '.join(files)})"
    yield from (f"warning: {line}" for line in facts.warned)


def left_lines(facts: Facts, found: Mapping[str, AbstractSet[str]]) -> Iterator[str]:
    """Yield what lies about, a line each: recordings without a test, stray files.

    Args:
        facts: of the run.
        found: the names of the files of every scenario's folder, by folder.
    """
    used = set(facts.used)
    for folder, names in sorted(found.items()):
        stray = list(orphans(names))
        if folder not in used and (CONFIG in names or ROOT_LOG in names):
            yield f"unused recording: {folder}"
        yield from (f"orphan file: {folder}/{name} ({why})" for name, why in stray)
