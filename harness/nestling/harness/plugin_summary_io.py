"""The plugin's part of pytest's terminal summary."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nestling.harness.recordings_report import Facts, done_lines, left_lines
from nestling.harness.recordings_scan_io import scan

_NARROWING = (
    "keyword",
    "markexpr",
    "deselect",
    "ignore",
    "ignore_glob",
    "lf",
    "last_failed",
    "stepwise",
    "maxfail",
    "collectonly",
)
"""Options by which pytest runs less than everything."""


def write(
    reporter: pytest.TerminalReporter,
    config: pytest.Config,
    facts: Facts,
    *,
    is_whole: bool,
) -> None:
    """Write what was recorded and refreshed, and what no test uses.

    Args:
        reporter: pytest's.
        config: pytest's.
        facts: what the run did.
        is_whole: whether nothing is known that was left out of the run.
    """
    lines = [*done_lines(facts)]
    if is_whole and (roots := _whole_roots(config)):
        lines += left_lines(facts, scan(roots, config.getini("norecursedirs")))
    if lines:
        reporter.write_sep("=", "nestling")
        for line in lines:
            reporter.write_line(_shorter(line, config.invocation_params.dir))


def _whole_roots(config: pytest.Config) -> list[Path]:
    """Return the folders that a whole suite is collected from; none if it was a part."""
    if any(config.getoption(name, None) for name in _NARROWING):
        return []
    whole = [config.rootpath / each for each in config.getini("testpaths")]
    whole = whole or [config.rootpath]
    start = config.invocation_params.dir
    given = {Path(os.path.realpath(start / each)) for each in config.args}
    needed = [Path(os.path.realpath(each)) for each in whole if each.exists()]
    is_covered = all(
        any(each == one or each.is_relative_to(one) for one in given) for each in needed
    )
    return needed if is_covered else []


def _shorter(line: str, start: Path) -> str:
    """Return a line with its paths as they are seen from where pytest was called."""
    return line.replace(f"{start}{os.sep}", "")
