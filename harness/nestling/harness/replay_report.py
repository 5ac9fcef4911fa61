"""What a replay came to, as one JSON object or as text with the tree in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from nestling.driver.exits import Birth, Log
from nestling.harness.drawn_tree import drawn_labels
from nestling.harness.ledger import Account, Problem
from nestling.harness.ledger_report import ledger_json, ledger_lines
from nestling.harness.nearest import Nearest
from nestling.harness.printable import shown
from nestling.harness.scenario import RecordedSession, Scenario
from nestling.session.jsontext import JsonObject

_SHOWN_CHARS = 48
LABEL_WIDTH = 24


class ReplayReport(NamedTuple):
    """The result of a replay.

    Attributes:
        accounts: the ledger's account of each session, by spawn path.
        births: the process of each session that had one, by spawn path.
        logs: what each session has left, by spawn path.
        warnings: what would be problems if requests were verified strictly.
        nearest: for calls and children that the recording does not have, the recorded
            call that is most like it, by the spawn path of who asked.
    """

    scenario: Scenario
    problems: Sequence[Problem]
    accounts: Mapping[str, Account]
    births: Mapping[str, Birth]
    logs: Mapping[str, Log]
    warnings: Sequence[Problem] = ()
    nearest: Mapping[str, Nearest] = MappingProxyType({})

    @property
    def is_ok(self) -> bool:
        """Whether the tree came out as recorded."""
        return not self.problems

    @property
    def launcher(self) -> str | None:
        """How the workers were started; ``mixed`` if not all alike, None if none was."""
        launchers = {birth.launcher for birth in self.births.values()}
        return "mixed" if len(launchers) > 1 else next(iter(launchers), None)

    @property
    def fallbacks(self) -> list[str]:
        """Why workers were not started as they were meant to be, each reason once."""
        reasons = (birth.reason for birth in self.births.values())
        return list(dict.fromkeys(reason for reason in reasons if reason is not None))


def report_json(report: ReplayReport) -> JsonObject:
    """Return the report as the object that ``nestling replay --json`` prints."""
    fallbacks = {"fallbacks": report.fallbacks} if report.fallbacks else {}
    return {
        "verdict": "ok" if report.is_ok else "failed",
        "problems": [problem._asdict() for problem in report.problems],
        "warnings": [warning._asdict() for warning in report.warnings],
        "ledger": ledger_json(report),
        "launcher": report.launcher,
        **fallbacks,
        "sessions": [_session(report, each) for each in report.scenario.sessions],
    }


def _session(report: ReplayReport, session: RecordedSession) -> JsonObject:
    account = report.accounts.get(session.path or "")
    birth = report.births.get(session.path or "")
    outcome = None if account is None else account.outcome
    return {
        "path": session.path,
        "kind": session.kind,
        "recordedId": session.id,
        "id": None if account is None else account.id,
        "pid": None if birth is None else birth.pid,
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
    is_equal = is_whole and not account.is_different and not account.has_other_inputs
    return account.has_settled and is_equal


def report_text(report: ReplayReport, hint: str | None = None) -> str:
    """Return the report as text: the tree, the problems, the verdict.

    Args:
        report: the report.
        hint: a line before the verdict, which says what can be done.
    """
    fallbacks = [f"not from the template: {shown(r)}" for r in report.fallbacks]
    lines = [*tree_lines(report), *fallbacks, *problem_lines(report.problems)]
    lines += [f"warning: {line}" for line in problem_lines(report.warnings)]
    if not report.is_ok:
        lines += ledger_lines(report)
    if hint is not None:
        lines.append(hint)
    return "\n".join([*lines, _verdict(report)])


def tree_lines(report: ReplayReport) -> Iterator[str]:
    """Yield the tree, one line a session."""
    sessions = report.scenario.sessions
    labels = drawn_labels(each.path for each in sessions if each.path is not None)
    for session in sessions:
        label = labels.get(session.path or "", "(no path)")
        account = report.accounts.get(session.path or "")
        yield f"{label:<{LABEL_WIDTH}} {_facts(session, account)}".rstrip()


def _facts(session: RecordedSession, account: Account | None) -> str:
    if account is None or account.id is None:
        return f"{session.kind:<6} not started"
    calls = f"{account.served}/{len(session.script)} calls"
    seed = f"{account.seed_length} inherited" if account.seed_length else ""
    known = f"{session.kind:<6} {calls:<10} {seed:<14}"
    outcome = account.outcome
    if outcome is None:
        return f"{known} has not ended"
    return (
        f"{known} {_log_state(session, account):<14} {outcome.stop_reason}  "
        f"{cut(outcome.text)}"
    )


def _log_state(session: RecordedSession, account: Account) -> str:
    if _matches(session, account):
        return "log matches"
    if account.is_different:
        return "log differs"
    return "inputs differ" if account.has_other_inputs else "log incomplete"


def cut(text: str) -> str:
    """Return the beginning of a text, safe on one line of a terminal."""
    is_long = len(text) > _SHOWN_CHARS
    return shown(f"{text[:_SHOWN_CHARS]}…" if is_long else text)


def problem_lines(problems: Iterable[Problem]) -> Iterator[str]:
    """Yield problems, one line each, and the lines of a diff below it."""
    for problem in problems:
        where = "" if problem.path is None else f" {shown(problem.path)}"
        first, *others = problem.message.split("\n")
        below = "".join(f"\n  {shown(line)}" for line in others)
        yield f"{problem.kind}{where}: {shown(first)}{below}"


def _verdict(report: ReplayReport) -> str:
    name = shown(report.scenario.name)
    if report.is_ok:
        sessions = counted(len(report.scenario.sessions), "session")
        return f"ok: {name}, {sessions} as recorded ({report.launcher})"
    return f"failed: {name}, {counted(len(report.problems), 'problem')}"


def counted(count: int, what: str) -> str:
    """Return a number with its noun, in the plural where it must be."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
