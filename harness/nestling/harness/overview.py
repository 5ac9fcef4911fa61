"""What one session comes to, told in a line: how it began, how far it got, how it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from nestling.harness.scenario import Scenario
from nestling.session.boundary import own_events
from nestling.session.chunk import is_finish
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import outcome
from nestling.session.shape import shape_problem

_TOLD: Final = frozenset(
    {"turn/start", "turn/end", "assistant/chunk", "assistant/message"}
)


class Read(NamedTuple):
    """One session as it was found.

    Attributes:
        id: its id.
        header: its header; None if that cannot be read.
        events: what is stored of it, unrepaired; None if that cannot be read.
        closers: how many events would close its last turn.
        tail: why a torn tail was left out, or "".
        is_live: somebody is writing it.
        problem: why it cannot be loaded, or "".
        is_unsupported: because it is intact and of another build.
    """

    id: str
    header: Header | None
    events: Sequence[Event] | None
    closers: int = 0
    tail: str = ""
    is_live: bool = False
    problem: str = ""
    is_unsupported: bool = False


class Overview(NamedTuple):
    """What is said of one session.

    Attributes:
        path: its spawn path; None if that is not known.
        kind: ``root``, ``spawn``, ``fork``; None if its header cannot be read.
        id: its id.
        parent: its parent's id.
        created_at: epoch milliseconds.
        events: how many are stored; None if they cannot be read.
        inherited: how many of them it inherited.
        turns: its own turns.
        calls: its own model calls, open ones included.
        state: ``live`` while somebody writes it; ``damaged`` or ``unsupported`` if it
            cannot be loaded; ``open`` if its last turn is; ``new`` without a turn of its
            own; else why its last turn ended: ``completed, aborted, interrupted`` ...
        closers: how many events would close that turn.
        note: what is wrong with it, or "".
        text: the last that it said.
    """

    path: str | None
    kind: str | None
    id: str
    parent: str | None
    created_at: int | None
    events: int | None
    inherited: int
    turns: int
    calls: int
    state: str
    closers: int
    note: str
    text: str

    def to_json(self) -> JsonObject:
        """Return it as an object of ``--json``."""
        own = None if self.events is None else max(0, self.events - self.inherited)
        return {
            "path": self.path,
            "kind": self.kind,
            "id": self.id,
            "parent": self.parent,
            "createdAt": self.created_at,
            "events": self.events,
            "seedLength": self.inherited,
            "own": own,
            "turns": self.turns,
            "calls": self.calls,
            "state": self.state,
            "closers": self.closers,
            "problem": self.note or None,
            "output": self.text,
        }


def kind_of(header: Header) -> str:
    """Return ``root``, ``spawn`` or ``fork``, as the header tells."""
    if header.parent_session is None:
        return "root"
    if header.spawned_by is not None:
        return header.spawned_by.context
    return "fork" if header.seed_length else "spawn"


def overview(read: Read, path: str | None) -> Overview:
    """Return what is said of a session; nothing that its log holds is an error here."""
    header = read.header
    length = 0 if header is None else header.seed_length
    told = [e for e in own_events(read.events or (), length) if _can_be_told(e)]
    note = read.problem or (f"torn tail: {read.tail}" if read.tail else "")
    return Overview(
        path=path,
        kind=None if header is None else kind_of(header),
        id=read.id,
        parent=None if header is None else header.parent_session,
        created_at=None if header is None else header.created_at,
        events=None if read.events is None else len(read.events),
        inherited=length,
        turns=sum(event.type == "turn/start" for event in told),
        calls=_calls(told),
        state=_state(read, told),
        closers=read.closers,
        note=note,
        text=outcome(told).text,
    )


def _can_be_told(event: Event) -> bool:
    """Tell whether an event has the shape that is read here; recordings may be old."""
    return event.type in _TOLD and shape_problem(event) is None


def _calls(told: Iterable[Event]) -> int:
    calls, is_open = 0, False
    for event in told:
        if event.type == "assistant/chunk":
            calls += not is_open
            is_open = not is_finish(event.data["chunk"])
        elif event.type != "assistant/message":
            is_open = False
    return calls


def _state(read: Read, told: Sequence[Event]) -> str:
    if read.problem:
        return "unsupported" if read.is_unsupported else "damaged"
    if read.is_live:
        return "live"
    for event in reversed(told):
        if event.type == "turn/start":
            return "open"
        if event.type == "turn/end":
            return str(event.data["reason"]["kind"])
    return "new"


def recorded_reads(scenario: Scenario) -> list[tuple[Read, str | None, str]]:
    """Return the sessions of a scenario, each with its spawn path and kind."""
    return [
        (
            Read(each.id, each.recording.header, each.recording.events),
            each.path,
            each.kind,
        )
        for each in scenario.sessions
    ]
