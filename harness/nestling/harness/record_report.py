"""What a recording came to, as one JSON object or as text with the tree in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nestling.harness.drawn_tree import drawn_labels
from nestling.harness.ledger import Problem
from nestling.harness.printable import shown
from nestling.harness.replay_report import LABEL_WIDTH, counted, cut, problem_lines
from nestling.harness.scenario import RecordedSession, Scenario
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import outcome


class RecordReport(NamedTuple):
    """What a recording came to.

    Attributes:
        scenario: what was recorded, written or not; None if nothing could be read.
        problems: why it was not written; empty if it was.
        printed: what the workers printed, by spawn path.
    """

    scenario: Scenario | None
    problems: tuple[Problem, ...]
    printed: Mapping[str, str]

    @property
    def is_ok(self) -> bool:
        """Whether the recording was written."""
        return not self.problems


def record_json(report: RecordReport) -> JsonObject:
    """Return the report as the object that ``nestling record --json`` prints."""
    sessions = () if report.scenario is None else report.scenario.sessions
    return {
        "verdict": "ok" if report.is_ok else "failed",
        "problems": [problem._asdict() for problem in report.problems],
        "sessions": [_session(session) for session in sessions],
    }


def _session(session: RecordedSession) -> JsonObject:
    came_to = outcome(session.own_events)
    return {
        "path": session.path,
        "kind": session.kind,
        "id": session.id,
        "depth": session.depth,
        "seedLength": session.seed_length,
        "events": len(session.recording.events),
        "calls": len(session.script),
        "stopReason": came_to.stop_reason,
        "output": came_to.text,
    }


def record_text(report: RecordReport) -> str:
    """Return the report as text: the tree, the problems, the verdict."""
    sessions = () if report.scenario is None else report.scenario.sessions
    labels = drawn_labels(each.path for each in sessions if each.path is not None)
    lines = [
        f"{labels.get(each.path or '', ''):<{LABEL_WIDTH}} {_facts(each)}".rstrip()
        for each in sessions
    ]
    if not report.is_ok:
        lines += printed_lines(report.printed)
    lines += problem_lines(report.problems)
    if not report.is_ok or report.scenario is None:
        return "\n".join([*lines, "failed: nothing was written"])
    name, count = shown(report.scenario.name), counted(len(sessions), "session")
    return "\n".join(
        [*lines, f"ok: {name}, {count} recorded, and seen to replay as a tape"]
    )


def _facts(session: RecordedSession) -> str:
    came_to = outcome(session.own_events)
    calls = counted(len(session.script), "call")
    seed = f"{session.seed_length} inherited" if session.seed_length else ""
    said = f"{came_to.stop_reason}  {cut(came_to.text)}"
    return f"{session.kind:<6} {calls:<10} {seed:<14} {said}"


def printed_lines(printed: Mapping[str, str]) -> Iterator[str]:
    """Yield what workers printed, each line with the spawn path before it."""
    for path, text in printed.items():
        for line in text.splitlines():
            yield f"[{path}] {shown(line)}"
