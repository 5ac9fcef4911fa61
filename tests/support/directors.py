"""A director that does what a test wrote into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nestling.driver.director import (
    Answer,
    CallRequest,
    Creation,
    Delegation,
    DelegationDecision,
    EncodedChunks,
    Limits,
    Loss,
    Lost,
    Real,
    Settlement,
    Stop,
    Stops,
    ToolDecision,
    ToolRequest,
    Unanswered,
)
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import Outcome
from support.session_logs import delta, finish


def saying(*chunks: JsonObject, **more: Any) -> Answer:
    """An answer of these chunks, or of two and a finish."""
    given = chunks or (delta("h"), delta("i"), finish())
    return Answer(EncodedChunks(given), **more)


class Scripted:
    """A director that does what the test wrote into it.

    Attributes:
        answers: to calls, by session id, in order; a short one without.
        decisions: on delegations, by path; a real child, of that id, without.
        tools: what tool calls get, by call id; nothing without.
        stops: where sessions are stopped, by id.
        objections: why a session must not start or go on, by id.
        is_open: whether the root may be told more.
        seen: the types of the events it was shown, by session id.
        lost: what becomes of sessions whose workers die, one after the other, by id.
        losses: those deaths, by id.
        settled: how sessions ended, by id.
        refused: what workers refused: (id, reason, detail).
        idle: what sessions came to when they waited for prompts: (id, prompts, what).
        calls: the calls it was asked to answer.
        delegations: the delegations it was asked about.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = Limits() if limits is None else limits
        self.answers: dict[str, list[Answer]] = {}
        self.decisions: dict[str, DelegationDecision] = {}
        self.tools: dict[str, ToolDecision] = {}
        self.stops: dict[str, Stops] = {}
        self.objections: dict[str, str] = {}
        self.is_open = False
        self.seen: dict[str, list[str]] = {}
        self.lost: dict[str, list[Lost]] = {}
        self.losses: dict[str, list[Loss]] = {}
        self.settled: dict[str, Settlement] = {}
        self.refused: list[tuple[str, str, str]] = []
        self.idle: list[tuple[str, int, Outcome]] = []
        self.calls: list[CallRequest] = []
        self.delegations: list[Delegation] = []

    def creation(self, session_id: str) -> Creation:
        header = Header(session_id, 0, {})
        return Creation(header, "tape", b"[]", self.stops.get(session_id, Stops()))

    def on_root(self) -> Creation:
        return self.creation("root")._replace(is_open=self.is_open)

    def on_delegate(self, delegation: Delegation) -> DelegationDecision:
        self.delegations.append(delegation)
        path = delegation.path
        return self.decisions.get(path, Real(self.creation(path)))

    def on_created(
        self, session_id: str, header: Header, events: Sequence[Event]
    ) -> Stop | None:
        self.seen[session_id] = [event.type for event in events]
        return self._objection(f"{session_id} created")

    def _objection(self, key: str) -> Stop | None:
        reason = self.objections.get(key)
        return None if reason is None else Stop(reason)

    def on_stream(self, call: CallRequest) -> Answer:
        self.calls.append(call)
        answers = self.answers.get(call.session_id, [])
        return answers.pop(0) if answers else saying()

    def on_tool(self, request: ToolRequest) -> ToolDecision:
        return self.tools.get(request.call_id, Unanswered())

    def on_events(self, session_id: str, events: Sequence[Event]) -> Stop | None:
        self.seen[session_id] += [event.type for event in events]
        return self._objection(session_id)

    def on_idle(self, session_id: str, prompts: int, outcome: Outcome) -> None:
        self.idle.append((session_id, prompts, outcome))

    def on_refused(self, session_id: str, reason: str, detail: str) -> None:
        self.refused.append((session_id, reason, detail))

    def on_lost(self, session_id: str, loss: Loss) -> Lost:
        self.losses.setdefault(session_id, []).append(loss)
        planned = self.lost.get(session_id, [])
        return planned.pop(0) if planned else Lost()

    def on_settled(self, session_id: str, settlement: Settlement) -> JsonObject | None:
        assert session_id not in self.settled, "a session settles once"
        self.settled[session_id] = settlement
        return None
