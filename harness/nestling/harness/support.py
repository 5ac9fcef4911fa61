"""What a replay cannot do yet, or has nothing to do: told before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from nestling.harness.crashes import is_closing_result
from nestling.harness.ledger import Problem
from nestling.harness.scenario import RecordedSession, Scenario
from nestling.session.delegation import delegation_result
from nestling.session.event import Event
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
        for message in _unsupported(session)
    ]
    unsupported += [Problem("not-supported", *each) for each in _went_on(scenario)]
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


def _went_on(scenario: Scenario) -> Iterator[tuple[str | None, str]]:
    """Tell of children of ours that did more after their parents had heard of them.

    Somebody resumed them by their ids. Nothing says when that was.
    """
    for parent in scenario.sessions:
        children = scenario.children(parent)
        if not children or parent.path is None:
            continue
        calls = {(c.turn, c.step, c.block): c for c in parent.tool_calls}
        for child in children:
            if child.delegation is None or child.is_foreign:
                continue
            by = child.delegation.spawned_by
            call = None if by.block is None else calls.get((by.turn, by.step, by.block))
            if call is None or call.context is None or call.result_seq is None:
                continue
            result = parent.recording.events[call.result_seq]
            # A repair's was told to nobody that lived: it may be older than the rest.
            seq = None if is_closing_result(result) else _told_at(child, result)
            if seq is not None:
                message = (
                    "its parent was told what it had come to by event "
                    f"{seq}, and it went on by itself after that: somebody resumed it "
                    "by its id, and no log says when. Expected a child that its parent "
                    "heard of last; replay the parent from a copy whose child ends "
                    f"with event {seq}"
                )
                yield child.path, f"{child.recording.name}: {message}"


def _told_at(child: RecordedSession, result: Event) -> int | None:
    """Return which end of a turn, not its last, a child's parent was told of."""
    own = child.own_events
    block = result.data["message"]["content"][0]
    ends = [n for n, event in enumerate(own, start=1) if event.type == "turn/end"]
    if len(ends) < 2 or _says(block, delegation_result(outcome(own))):
        return None
    for end in reversed(ends[:-1]):
        if _says(block, delegation_result(outcome(own[:end]))):
            return own[end - 1].seq
    return None


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
