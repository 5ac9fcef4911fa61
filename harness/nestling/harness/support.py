"""What a replay cannot do yet, or has nothing to do: told before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from nestling.harness.crashes import is_closing_result
from nestling.harness.ledger import Problem
from nestling.harness.scenario import RecordedSession, Scenario
from nestling.session.delegation import delegation_result
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import outcome
from nestling.session.spawn_path import child_path
from nestling.session.turns import tracked


def hindrances(scenario: Scenario) -> list[Problem]:
    """Return why a scenario is not replayed at all; nothing if it is."""
    if not any(session.own_events for session in scenario.sessions):
        message = "the recording holds headers and not one event"
        return [Problem("nothing-to-replay", scenario.root.path, message)]
    unsupported = [
        Problem("not-supported", session.path, f"{session.recording.name}: {message}")
        for session in scenario.sessions
        for message in (*_unsupported(session), *_went_on(scenario, session))
    ]
    return unsupported + list(_missing_children(scenario))


def _missing_children(scenario: Scenario) -> Iterator[Problem]:
    """Tell which children a tree of our own must have, and has not.

    Where a recording says ``spawnedBy`` it was made here, and every delegation that
    went well has left a log. Other systems have children without one.
    """
    if not scenario.is_own:
        return
    for session in scenario.sessions:
        if session.path is None:
            continue
        for call in session.tool_calls:
            path = child_path(session.path, call.place)
            went_well = call.context is not None and call.is_error is False
            if went_well and path not in scenario.by_path:
                message = (
                    f"{session.recording.name}: the delegation of turn {call.turn}, "
                    f"step {call.step}, block {call.block} went well, "
                    "but its child's log is missing"
                )
                yield Problem("tree-differs", path, message)


def _open_end(session: RecordedSession) -> Iterator[str]:
    """Tell of a log that stops in mid-turn: nothing says how it would go on."""
    events = session.recording.events
    turn = tracked(events).turn
    if turn is not None:
        yield (
            f"the recording ends inside turn {turn} (event {len(events) - 1}, "
            f"{events[-1].type}), expected a turn/end"
        )


def _went_on(scenario: Scenario, child: RecordedSession) -> Iterator[str]:
    """Tell of a child of ours that did more after its parent had heard of it.

    Somebody resumed it by its id. Nothing says when that was.
    """
    delegation, parent = child.delegation, scenario.by_path.get(child.parent_path or "")
    if delegation is None or parent is None or child.is_foreign:
        return
    by, own = delegation.spawned_by, child.own_events
    for call in parent.tool_calls:
        is_its = (call.turn, call.step, call.block) == (by.turn, by.step, by.block)
        if not is_its or call.context is None or call.result_seq is None:
            continue
        result = parent.recording.events[call.result_seq]
        if is_closing_result(result):
            continue  # then its parent had died, and what it did since was before
        ends = [n for n, e in enumerate(own, start=1) if e.type == "turn/end"]
        block = result.data["message"]["content"][0]
        told = [n for n in ends if _says(block, delegation_result(outcome(own[:n])))]
        if told and told[-1] != ends[-1]:
            yield (
                f"its parent was told what it had come to by event "
                f"{own[told[-1] - 1].seq}, and it went on by itself after that"
            )


def _says(block: JsonObject, result: JsonObject) -> bool:
    return all(block.get(key) == value for key, value in result.items())


def _unsupported(session: RecordedSession) -> Iterator[str]:
    if session.path is None:
        yield (
            "no delegating tool call explains this session, so it has no spawn path "
            "to bind to"
        )
        return
    yield from _open_end(session)
    for call in session.tool_calls:
        was_refused = call.is_error is True
        if call.context is not None and call.is_background and not was_refused:
            yield (
                f"turn {call.turn}, step {call.step}, block {call.block} delegates to "
                "a background child (run_in_background is true)"
            )
