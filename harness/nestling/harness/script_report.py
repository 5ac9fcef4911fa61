"""What ``nestling script`` prints: the scripts of a scenario, as JSON or to be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nestling.harness.printable import shown
from nestling.harness.scenario import RecordedSession, Scenario
from nestling.harness.scripts import Entry, ScriptCall
from nestling.session.jsontext import JsonObject

_SHOWN_CHARS: Final = 60


def script_json(scenario: Scenario) -> JsonObject:
    """Return the scripts as one JSON object."""
    return {"sessions": [_session_json(scenario, each) for each in scenario.sessions]}


def _session_json(scenario: Scenario, session: RecordedSession) -> JsonObject:
    header = session.recording.header
    return {
        "path": session.path,
        "recordedId": header.id,
        "createdAt": header.created_at,
        "seedLength": header.seed_length,
        "events": len(session.recording.events),
        "primary": session is scenario.root,
        "entries": [call.entry.to_json() for call in session.script],
    }


def script_text(scenario: Scenario) -> str:
    """Return the scripts as text: a block a session, a line a call."""
    return "\n\n".join(
        "\n".join(_session_lines(session)) for session in scenario.sessions
    )


def _session_lines(session: RecordedSession) -> Iterator[str]:
    header = session.recording.header
    yield (
        f"{session.path or '(no path)'}  {session.kind}  {shown(header.id)}  "
        f"seedLength {header.seed_length}  events {len(session.recording.events)}"
    )
    if not session.script:
        yield "  no calls"
    for number, call in enumerate(session.script, start=1):
        yield f"  {number:>3}  {_place(call):<8}{_call(call)}".rstrip()


def _place(call: ScriptCall) -> str:
    if call.place is None or call.place.turn is None:
        return "-"
    step = "" if call.place.step is None else f"s{call.place.step}"
    return f"t{call.place.turn}{step}"


def _call(call: ScriptCall) -> str:
    entry = call.entry
    kind = entry.kind if call.purpose == "turn" else f"{entry.kind} ({call.purpose})"
    count = f"{len(entry.chunks)} chunks"
    return f"{kind:<17}{count:>11}  {shown(_end(entry)):<12}{_first_text(entry)}"


def _end(entry: Entry) -> str:
    """Say how a call ends: its finish, or what stops it."""
    if entry.kind == "throw":
        return str(entry.code)
    if entry.kind != "chunks":
        return "-" if entry.reason is None else str(entry.reason["kind"])
    last = entry.chunks[-1] if entry.chunks else {}
    return str(last["reason"].get("kind")) if last.get("type") == "finish" else "-"


def _first_text(entry: Entry) -> str:
    """Return the beginning of what a call says; else the tool it calls first."""
    text = "".join(_texts(entry)) or next(_tools(entry), "")
    cut = f"{text[:_SHOWN_CHARS]}…" if len(text) > _SHOWN_CHARS else text
    return shown(cut)


def _texts(entry: Entry) -> Iterator[str]:
    deltas = [chunk["text"] for chunk in entry.chunks if chunk["type"] == "text-delta"]
    if deltas:
        yield from deltas
        return
    for chunk in entry.chunks:
        block = chunk.get("block", {})
        if chunk["type"] == "block-end" and block.get("type") == "text":
            yield str(block.get("text", ""))


def _tools(entry: Entry) -> Iterator[str]:
    for chunk in entry.chunks:
        block = chunk.get("block", {})
        is_call = chunk["type"] == "tool-call-delta" or block.get("type") == "tool-call"
        name = chunk.get("name") or block.get("name")
        if is_call and name:
            yield f"calls {name}"
