"""What a refresh came to, as one JSON object or as text."""

from __future__ import annotations

from typing import Final, NamedTuple

from nestling.harness.printable import shown
from nestling.harness.replay_report import (
    ReplayReport,
    counted,
    problem_lines,
    report_json,
    tree_lines,
)
from nestling.session.jsontext import JsonObject

ADVICE: Final = (
    "failed: nothing was written. A refresh writes anew what the model is told, never "
    "what it said: `nestling record` makes the recording anew"
)


class RefreshReport(NamedTuple):
    """What a refresh came to.

    Attributes:
        report: the replay that it stands on; its ``problems`` say why nothing was
            written.
        changed: the names of the files that were written; none if all are as they were.
    """

    report: ReplayReport
    changed: tuple[str, ...]

    @property
    def is_ok(self) -> bool:
        """Whether the recording is what the agents do now."""
        return self.report.is_ok


def refresh_json(refreshed: RefreshReport) -> JsonObject:
    """Return the report as the object that ``nestling refresh --json`` prints."""
    return {**report_json(refreshed.report), "changed": list(refreshed.changed)}


def refresh_text(refreshed: RefreshReport) -> str:
    """Return the report as text: the tree, the problems, what was written."""
    report = refreshed.report
    lines = [*tree_lines(report), *problem_lines(report.problems)]
    if not refreshed.is_ok:
        return "\n".join([*lines, ADVICE])
    lines += [f"written: {shown(name)}" for name in refreshed.changed]
    name, count = shown(report.scenario.name), len(refreshed.changed)
    wrote = f"{counted(count, 'file')} written" if count else "nothing changed"
    return "\n".join([*lines, f"ok: {name}, {wrote}"])
