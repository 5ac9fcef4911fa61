"""What a run of an agent came to, as one JSON object or as text with the tree in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nestling.driver.exits import Log
from nestling.driver.started_run_io import RunResult
from nestling.harness.drawn_tree import drawn_labels
from nestling.harness.printable import shown
from nestling.harness.record_report import printed_lines
from nestling.harness.replay_report import LABEL_WIDTH, counted, cut
from nestling.session.boundary import own_events
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import outcome
from nestling.session.spawn_path import ROOT, sort_key


class LiveRunReport(NamedTuple):
    """The result of a run.

    Attributes:
        session_id: the root's.
        result: what the root came to.
        logs: what each session has left, by spawn path.
        losses: the spawn paths of sessions that did not end by themselves, and why.
        printed: what the workers printed, by spawn path.
        ending: ``done``, or what ended the run: ``stall``, ``timeout``, ``aborted``.
        store: the address of the store that has its sessions; None if none has.
    """

    session_id: str
    result: RunResult
    logs: Mapping[str, Log]
    losses: tuple[tuple[str, str], ...]
    printed: Mapping[str, str]
    ending: str | None
    store: str | None

    @property
    def is_ok(self) -> bool:
        """Whether the root completed all that it was told."""
        return self.result.stop_reason == "completed" and self.ending == "done"


def noticed(event: Event) -> str | None:
    """Return what a person who watches wants to see of an event, if anything."""
    data = event.data
    match event.type:
        case "step/start":
            return f"turn {data['turn']}, step {data['step']}: waits for the model"
        case "assistant/message":
            return f"said {_said(data)}"
        case "tool/call":
            return f"runs {shown(str(data.get('name', 'a tool')))}"
        case "turn/end":
            return f"turn {data['turn']} ended: {data['reason']['kind']}"
        case _:
            return None


def _said(data: JsonObject) -> str:
    content = data.get("message", data).get("content", [])
    text = "".join(b["text"] for b in content if b.get("type") == "text")
    calls = sum(block.get("type") == "tool-call" for block in content)
    return text if text or not calls else counted(calls, "tool call")


def live_run_json(report: LiveRunReport) -> JsonObject:
    """Return the report as the object that ``nestling run --json`` prints."""
    result = report.result
    return {
        "verdict": "ok" if report.is_ok else "failed",
        "sessionId": report.session_id,
        "stopReason": result.stop_reason,
        "output": result.text,
        "diagnostic": result.diagnostic,
        "ending": report.ending,
        "store": report.store,
        "losses": [{"path": path, "message": why} for path, why in report.losses],
        "sessions": [
            _session(path, report.logs[path])
            for path in sorted(report.logs, key=sort_key)
        ],
    }


def _session(path: str, log: Log) -> JsonObject:
    header = log.header
    came_to = outcome(own_events(log.events, header.seed_length))
    return {
        "path": path,
        "kind": _kind(path, log),
        "id": header.id,
        "depth": header.delegation_depth or 0,
        "seedLength": header.seed_length,
        "events": len(log.events),
        "stopReason": came_to.stop_reason,
        "output": came_to.text,
    }


def _kind(path: str, log: Log) -> str:
    if path == ROOT or log.header.spawned_by is None:
        return "root"
    return log.header.spawned_by.context


def live_run_text(report: LiveRunReport) -> str:
    """Return the report as text: the tree, what went wrong, what the root said."""
    labels = drawn_labels(report.logs)
    lines = [
        f"{label:<{LABEL_WIDTH}} {_facts(path, report.logs[path])}".rstrip()
        for path, label in labels.items()
    ]
    if not report.is_ok:
        lines += printed_lines(report.printed)
    lines += [f"lost {shown(path)}: {shown(why)}" for path, why in report.losses]
    result = report.result
    if report.is_ok:
        lines.append(f"ok: {report.session_id}{_kept(report)}")
    else:
        why = result.diagnostic or f"the run was ended ({report.ending})"
        ended = report.ending == "done" and result.diagnostic is None
        reason = result.stop_reason if ended else f"{result.stop_reason}: {shown(why)}"
        lines.append(f"failed: {report.session_id}{_kept(report)}, {reason}")
    return "\n".join([*lines, *(["", result.text] if result.text else [])])


def _kept(report: LiveRunReport) -> str:
    return "" if report.store is None else f" in {shown(report.store)}"


def _facts(path: str, log: Log) -> str:
    session = _session(path, log)
    seed = f"{session['seedLength']} inherited" if session["seedLength"] else ""
    said = f"{session['stopReason']}  {cut(session['output'])}"
    return f"{session['kind']:<6} {session['events']:>5} events {seed:<14} {said}"
