"""Turns and steps: which are open, and why a turn ends.

A log is *balanced* when no turn is open. A fork inherits the balanced completed-turn
prefix: every event up to and including the last ``turn/end``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from nestling.session.event import Event
from nestling.session.jsontext import JsonObject


class TurnTracker:
    """Follows the turns of one log, event by event.

    Attributes:
        turn: the open turn's number, or None.
        step: the open step's number, or None.
        last_turn: the number of the last turn that was started; 0 before the first.
        balanced_length: how many leading events end with the last ``turn/end``.
    """

    def __init__(self) -> None:
        self.turn: int | None = None
        self.step: int | None = None
        self.last_turn = 0
        self.balanced_length = 0

    def append(self, event: Event) -> None:
        """Take in the next event of the log."""
        if event.type == "turn/start":
            self.turn = self.last_turn = event.data["turn"]
        elif event.type == "step/start":
            self.step = event.data["step"]
        elif event.type == "step/end":
            self.step = None
        elif event.type == "turn/end":
            self.turn = self.step = None
            self.balanced_length = event.seq + 1


def tracked(events: Iterable[Event]) -> TurnTracker:
    """Return a tracker that has seen `events`."""
    tracker = TurnTracker()
    for event in events:
        tracker.append(event)
    return tracker


def balanced_prefix_length(events: Sequence[Event]) -> int:
    """Return how many leading events a fork of this log would inherit."""
    return tracked(events).balanced_length


AGENT_ERROR: Final = "AGENT_ERROR"
"""The code of a turn that ended because the agent's own code raised."""


def is_agent_error(reason: JsonObject) -> bool:
    """Tell whether a turn ended because the agent's own code raised."""
    error = reason.get("error")
    return type(error) is dict and error.get("code") == AGENT_ERROR


class TurnOutcome:
    """Why a turn ends, told from what happened in it.

    Precedence: a cancel; then an error of the agent's own code; then ``max-tokens``,
    which is sticky for the turn because the message was cut; then the failure of the
    last call; else it completed.

    Attributes:
        cancelled_by: who cancelled it, if somebody did.
        agent_failure: what the agent's code raised, if it did.
    """

    def __init__(self) -> None:
        self.cancelled_by: JsonObject | None = None
        self.agent_failure: JsonObject | None = None
        self._cut_off = False
        self._failure: JsonObject | None = None

    def call_finished(self, finish: JsonObject) -> None:
        """Take in the finish reason of the turn's next call."""
        kind = finish.get("kind")
        self._cut_off = self._cut_off or kind == "max-tokens"
        failed = kind in ("error", "aborted")
        self._failure = finish.get("failure", {}) if failed else None

    def reason(self) -> JsonObject:
        """Return the ``reason`` of the ``turn/end``."""
        if self.cancelled_by is not None:
            return {"kind": "aborted", "reason": self.cancelled_by}
        if self.agent_failure is not None:
            return {"kind": "error", "error": self.agent_failure}
        if self._cut_off:
            return {"kind": "max-tokens"}
        if self._failure is not None:
            return {"kind": "error", "error": self._failure}
        return {"kind": "completed"}
