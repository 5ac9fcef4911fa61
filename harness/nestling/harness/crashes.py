"""Where recorded workers died, and where turns were cancelled: read off the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from nestling.driver.director import CancelAt
from nestling.session.event import Event
from nestling.session.reading import Recording
from nestling.session.repair import NOT_STARTED, OUTCOME_UNKNOWN
from nestling.worker.tool_results import ABORTED
from nestling.worker.tool_results import NOT_STARTED as NOT_RUN

_CLOSERS_ID: Final = "interrupted-tool-result-"
"""So begins the message id of every result that a repair wrote (the format's)."""


class Crash(NamedTuple):
    """A worker's death in the middle of a turn.

    Attributes:
        length: how many events were durable then, as far as the log tells: a ``step/end``
            before the closers may be one of them.
        turn: the turn it died in.
        turn_end: the ``turn/end`` of the repair.
    """

    length: int
    turn: int
    turn_end: int


def crashes(recording: Recording) -> list[Crash]:
    """Return the deaths of a recorded session's workers, oldest first.

    Only the session's own events count: an inherited crash was the parent's.
    """
    events, boundary = recording.events, recording.header.seed_length
    return [
        Crash(_first_closer(events, seq, boundary), events[seq].data["turn"], seq)
        for seq in range(boundary, len(events))
        if _is_interrupted_end(events[seq])
    ]


def ends_dead(events: Sequence[Event]) -> bool:
    """Tell whether a log ends with a turn that its worker died in."""
    return bool(events) and _is_interrupted_end(events[-1])


def _first_closer(events: Sequence[Event], turn_end: int, boundary: int) -> int:
    first = turn_end
    while first > boundary and is_closer(events[first - 1]):
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
    """Tell whether an event is the result that a repair gave an unanswered call.

    It may say what a child had come to: then only its message's id tells.
    """
    return is_unknown(event) or _has_closers_id(event)


def _has_closers_id(event: Event) -> bool:
    if event.type != "tool/result" or type(event.data) is not dict:
        return False
    message = event.data.get("message")
    message_id = message.get("id") if type(message) is dict else None
    return type(message_id) is str and message_id.startswith(_CLOSERS_ID)


def is_unknown(event: Event) -> bool:
    """Tell whether an event is such a result, and says that nothing more is known."""
    return _code(event) in (NOT_STARTED, OUTCOME_UNKNOWN)


def _code(event: Event) -> object:
    if event.type != "tool/result" or type(event.data) is not dict:
        return None
    error = event.data.get("error")
    return error.get("code") if type(error) is dict else None


# --- cancels -------------------------------------------------------------------


def first_of_cancel(events: Sequence[Event], turn_end: int) -> int:
    """Return where an agent was cancelled whose turn ends so.

    What follows, the results of the calls that were given up and the ends, is what a
    live session writes of its own accord once it is cancelled.

    Args:
        events: the session's.
        turn_end: the seq of its aborted ``turn/end``.
    """
    first = turn_end
    while first > 0 and _follows_cancel(events, first - 1):
        first -= 1
    return first


def _follows_cancel(events: Sequence[Event], seq: int) -> bool:
    event = events[seq]
    match event.type:
        case "step/end":
            return True
        case "tool/result":
            return _code(event) in (ABORTED, NOT_RUN)
        case "tool/call":  # it was logged only to be answered
            return _code(events[seq + 1]) == NOT_RUN
    return False


def agent_cancels(
    events: Sequence[Event], cancels: Sequence[CancelAt]
) -> list[CancelAt]:
    """Return where an agent is cancelled that plays a tape's session.

    Args:
        events: the recorded log.
        cancels: where the tape is: right before the end of its turn.
    """
    return [
        stop._replace(length=first_of_cancel(events, stop.length)) for stop in cancels
    ]
