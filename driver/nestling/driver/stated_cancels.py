"""Cancels that are said ahead: at which place of which turn a run is cancelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from nestling.driver.director import CancelInstead, Cut
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject
from nestling.session.spawn_path import ROOT

USER: Final[JsonObject] = {"kind": "user"}
"""Why a turn is cancelled that a person cancels."""


class CancelPoint(NamedTuple):
    """Where a turn is cancelled: in a model call, or at a tool.

    Attributes:
        turn: the turn of the root in which it happens, from 1.
        path: the spawn path of the session whose call or tool it is.
        call: which model call of that session in that turn, from 1, those that are made
            again after a failure counted; or, of a tool, which call of it.
        after: once exactly so many chunks of the call were served.
        tool: the name of the tool instead: it is asked for, and not run. None for a
            model call.
        session: the session whose turn is cancelled, with all sessions below it.
    """

    turn: int
    path: str = ROOT
    call: int = 1
    after: int = 0
    tool: str | None = None
    session: str = ROOT


class StatedCancels:
    """Finds the places of a run where a turn is cancelled; each happens once."""

    def __init__(self, points: Sequence[CancelPoint]) -> None:
        self._points = list(points)
        self._turn = 0
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._closed: dict[CancelPoint, None] = {}

    def grown(self, path: str, event: Event) -> None:
        """Learn of an event of a session's log."""
        if not self._points:
            return
        if path == ROOT and event.type == "turn/start":
            self._turn = event.data["turn"]
            self._counts.clear()
        elif event.type == "turn/end" and event.data["reason"]["kind"] == "aborted":
            for point in self._points:
                if point.session == path and point.turn == self._turn:
                    self._closed[point] = None

    def on_call(self, path: str) -> Cut | None:
        """Count a model call; return where its answer is cut short, if anywhere."""
        point = self._next(path, None)
        return None if point is None else Cut(point.after, point.session, USER)

    def on_tool(self, path: str, name: str) -> CancelInstead | None:
        """Count a tool's call; return what is done instead of running it, if so."""
        point = self._next(path, name)
        return None if point is None else CancelInstead(point.session, USER)

    def _next(self, path: str, tool: str | None) -> CancelPoint | None:
        if not self._points:
            return None
        self._counts[path, tool] += 1
        count = self._counts[path, tool]
        for point in self._points:
            if point[:3] == (self._turn, path, count) and point.tool == tool:
                return point
        return None

    @property
    def unreached(self) -> Sequence[CancelPoint]:
        """The places that the run did not come to."""
        return [point for point in self._points if point not in self._closed]
