"""What a replay came to, as one JSON object or as text with the tree in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nestling.harness.ledger import Account, Problem
from nestling.harness.scenario import RecordedSession, Scenario
from nestling.harness.script_report import shown
from nestling.session.jsontext import JsonObject

_SHOWN_CHARS = 48


class ReplayReport(NamedTuple):
    """The result of a replay.

    Attributes:
        launcher: how workers were started.
        accounts: the ledger's account of each session, by spawn path.
        pids: the process of each session that had one, by spawn path.
    """

    scenario: Scenario
    launcher: str
    problems: Sequence[Problem]
    accounts: Mapping[str, Account]
    pids: Mapping[str, int]

    @property
    def is_ok(self) -> bool:
        """Whether the tree came out as recorded."""
        return not self.problems


def report_json(report: ReplayReport) -> JsonObject:
    """Return the report as the object that ``nestling replay --json`` prints."""
    return {
        "verdict": "ok" if report.is_ok else "failed",
        "problems": [problem._asdict() for problem in report.problems],
        "launcher": report.launcher,
        "sessions": [_session(report, each) for each in report.scenario.sessions],
    }


def _session(report: ReplayReport, session: RecordedSession) -> JsonObject:
    account = report.accounts.get(session.path or "")
    outcome = None if account is None else account.outcome
    return {
        "path": session.path,
        "kind": session.kind,
        "recordedId": session.id,
        "id": None if account is None else account.id,
        "pid": report.pids.get(session.path or ""),
        "depth": session.depth,
        "seedLength": None if account is None else account.seed_length,
        "calls": {
            "recorded": len(session.script),
            "served": 0 if account is None else account.served,
        },
        "stopReason": None if outcome is None else outcome.stop_reason,
        "output": None if outcome is None else outcome.text,
        "logMatches": account is not None and _matches(session, account),
    }


def _matches(session: RecordedSession, account: Account) -> bool:
    is_whole = account.logged == len(session.recording.events)
    return account.has_settled and is_whole and not account.is_different


def report_text(report: ReplayReport) -> str:
    """Return the report as text: the tree, the problems, the verdict."""
    return "\n".join([*tree_lines(report), *_problem_lines(report), _verdict(report)])


def tree_lines(report: ReplayReport) -> Iterator[str]:
    """Yield the tree, one line a session."""
    for session in report.scenario.sessions:
        account = report.accounts.get(session.path or "")
        yield f"{tree_label(session.path):<24} {_facts(session, account)}".rstrip()


def tree_label(path: str | None) -> str:
    """Return a spawn path as an entry of a drawn tree."""
    if path is None:
        return "(no path)"
    elements = [element for element in path.split("/") if element]
    if not elements:
        return "/"
    return "   " * (len(elements) - 1) + "└─ " + shown(elements[-1])


def _facts(session: RecordedSession, account: Account | None) -> str:
    if account is None or account.id is None:
        return f"{session.kind:<6} not started"
    calls = f"{account.served}/{len(session.script)} calls"
    seed = f"  {account.seed_length} inherited" if account.seed_length else ""
    log = "log matches" if _matches(session, account) else "log differs"
    outcome = account.outcome
    if outcome is None:
        return f"{session.kind:<6} {calls}{seed}  has not ended"
    return (
        f"{session.kind:<6} {calls}{seed}  {log}  {outcome.stop_reason}  "
        f"{cut(outcome.text)}"
    )


def cut(text: str) -> str:
    """Return the beginning of a text, safe on one line of a terminal."""
    is_long = len(text) > _SHOWN_CHARS
    return shown(f"{text[:_SHOWN_CHARS]}…" if is_long else text)


def _problem_lines(report: ReplayReport) -> Iterator[str]:
    for problem in report.problems:
        where = "" if problem.path is None else f" {shown(problem.path)}"
        yield f"{problem.kind}{where}: {shown(problem.message)}"


def _verdict(report: ReplayReport) -> str:
    name = shown(report.scenario.name)
    if report.is_ok:
        count = len(report.scenario.sessions)
        return f"ok: {name}, {count} sessions as recorded ({report.launcher})"
    count = len(report.problems)
    return f"failed: {name}, {count} problem{'s' if count > 1 else ''}"
