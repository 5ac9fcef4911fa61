"""What ``nestling doctor`` tells: what this system has, and what is done without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nestling.session.jsontext import JsonObject


class Check(NamedTuple):
    """One thing that was looked for.

    Attributes:
        name: what.
        is_present: whether it is there.
        found: what was found, for people.
        instead: what is used instead of what is not there; "" if there is no doing
            without it, and no worker can run.
    """

    name: str
    is_present: bool
    found: str
    instead: str = ""

    @property
    def is_fatal(self) -> bool:
        """Whether no worker can run for it."""
        return not self.is_present and not self.instead


class LeftOver(NamedTuple):
    """A run directory of a driver that is gone.

    Attributes:
        path: where.
        pid: what the driver's number was.
    """

    path: str
    pid: int


class Findings(NamedTuple):
    """All that was found.

    Attributes:
        checks: one after the other.
        launcher: how workers will be started.
        reason: why not as forks of a template, if so.
        left_over: what drivers have left; the next run removes it.
    """

    checks: Sequence[Check]
    launcher: str
    reason: str | None
    left_over: Sequence[LeftOver]

    @property
    def is_ok(self) -> bool:
        """Whether workers can run here."""
        return not any(check.is_fatal for check in self.checks)


def doctor_json(findings: Findings) -> JsonObject:
    """Return what is printed with ``--json``."""
    return {
        "verdict": "ok" if findings.is_ok else "failed",
        "launcher": findings.launcher,
        "reason": findings.reason,
        "checks": [
            {
                "name": check.name,
                "present": check.is_present,
                "found": check.found,
                "instead": check.instead if not check.is_present else "",
            }
            for check in findings.checks
        ],
        "leftOver": [
            {"path": each.path, "pid": each.pid} for each in findings.left_over
        ],
    }


def doctor_text(findings: Findings) -> str:
    """Return what is printed for people."""
    width = max(len(check.name) for check in findings.checks)
    lines = [_line(check, width) for check in findings.checks]
    lines.append("")
    reason = f": {findings.reason}" if findings.reason else ""
    lines.append(f"workers are started by: {findings.launcher}{reason}")
    lines += [
        f"left by driver {each.pid}, removed by the next run: {each.path}"
        for each in findings.left_over
    ]
    lines.append("workers can run here" if findings.is_ok else "no worker can run here")
    return "\n".join(lines)


def _line(check: Check, width: int) -> str:
    word = "ok     " if check.is_present else "missing"
    line = f"{word}  {check.name:<{width}}  {check.found}"
    if check.is_present:
        return line.rstrip()
    return f"{line}; instead: {check.instead}" if check.instead else line
