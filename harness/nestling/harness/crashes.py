"""Where a recorded worker died: the first of the closers that repaired its log."""

from __future__ import annotations

from nestling.session.event import Event
from nestling.session.reading import Recording
from nestling.session.repair import NOT_STARTED, OUTCOME_UNKNOWN


def crash_point(recording: Recording) -> int | None:
    """Return how many events were durable when the recorded worker died.

    Only the session's own events count: an inherited crash was the parent's. None if
    no own turn was closed by a repair.
    """
    events = recording.events
    for seq in range(recording.header.seed_length, len(events)):
        if _is_interrupted_end(events[seq]):
            return _first_closer(recording, seq)
    return None


def last_closer(recording: Recording) -> int | None:
    """Return the seq of the ``turn/end`` that repaired the crash, if there was one."""
    events = recording.events
    for seq in range(recording.header.seed_length, len(events)):
        if _is_interrupted_end(events[seq]):
            return seq
    return None


def _first_closer(recording: Recording, turn_end: int) -> int:
    first = turn_end
    while first > recording.header.seed_length and is_closer(
        recording.events[first - 1]
    ):
        first -= 1
    return first


def _is_interrupted_end(event: Event) -> bool:
    if event.type != "turn/end" or type(event.data) is not dict:
        return False
    reason = event.data.get("reason")
    return type(reason) is dict and reason.get("kind") == "interrupted"


def is_closer(event: Event) -> bool:
    """Tell whether an event before an interrupted ``turn/end`` can be a closer."""
    if event.type == "step/end":
        return True
    return is_closing_result(event)


def is_closing_result(event: Event) -> bool:
    """Tell whether an event is the result that a repair gave an unanswered call."""
    if event.type != "tool/result" or type(event.data) is not dict:
        return False
    error = event.data.get("error")
    code = error.get("code") if type(error) is dict else None
    return code in (NOT_STARTED, OUTCOME_UNKNOWN)
