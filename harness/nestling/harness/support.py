"""What a replay cannot do yet, or has nothing to do: told before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from nestling.harness.crashes import crash_point, last_closer
from nestling.harness.ledger import Problem
from nestling.harness.scenario import RecordedSession, Scenario
from nestling.harness.tool_calls import own_tool_calls
from nestling.session.delegation import DELEGATION_TOOLS


def hindrances(scenario: Scenario) -> list[Problem]:
    """Return why a scenario is not replayed at all; nothing if it is."""
    if not any(session.own_events for session in scenario.sessions):
        message = "the recording holds headers and not one event"
        return [Problem("nothing-to-replay", scenario.root.path, message)]
    return [
        Problem("not-supported", session.path, f"{session.recording.name}: {message}")
        for session in scenario.sessions
        for message in (*_unsupported_birth(scenario, session), *_unsupported(session))
    ]


def _unsupported_birth(scenario: Scenario, session: RecordedSession) -> Iterator[str]:
    """Tell what keeps a replay from delegating this session at its path again."""
    delegation, parent = session.delegation, session.parent_path
    if delegation is None or parent is None:
        return
    place = delegation.spawned_by
    if place.block is None:
        yield "it was delegated by code, which a replay does not run"
        return
    calls = own_tool_calls(scenario.by_path[parent].recording)
    (name,) = (call.name for call in calls if call.seq == delegation.call_seq)
    if name not in DELEGATION_TOOLS or place.n > 0:
        yield (
            f"delegation {place.n + 1} of the tool {name} (turn {place.turn}, step "
            f"{place.step}, block {place.block}) was made inside the tool, which a "
            "replay does not run"
        )


def _unsupported(session: RecordedSession) -> Iterator[str]:
    if session.path is None:
        yield (
            "no delegating tool call explains this session, so it has no spawn path "
            "to bind to"
        )
        return
    calls = own_tool_calls(session.recording)
    for call in calls:
        if call.context is not None and call.is_background:
            yield (
                f"turn {call.turn}, step {call.step}, block {call.block} delegates to "
                "a background child (run_in_background is true)"
            )
    died_at, repaired_at = (
        crash_point(session.recording),
        last_closer(session.recording),
    )
    if died_at is None or repaired_at is None:
        return
    if repaired_at + 1 < len(session.recording.events):
        yield (
            f"the session was resumed after a crash (event {repaired_at + 1} follows "
            "the closed turn)"
        )
    for call in calls:
        is_open = call.result_seq is None or call.result_seq >= died_at
        if call.context is not None and is_open and call.seq < died_at:
            yield (
                f"the session died while its child of turn {call.turn}, step "
                f"{call.step}, block {call.block} ran"
            )
