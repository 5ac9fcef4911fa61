"""The plan of a replay: for each recorded session what it gets, made once, at load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, TypeAlias

from nestling.driver.director import (
    Answer,
    CancelAt,
    Creation,
    EncodedChunks,
    KillAt,
    Prompt,
    Stops,
)
from nestling.harness.crashes import agent_cancels, crashes
from nestling.harness.delegation import is_by_code
from nestling.harness.pairing import first_prompt
from nestling.harness.scenario import RecordedSession
from nestling.harness.scripts import CallPlace, Entry, ScriptCall
from nestling.harness.tapes import CodeChild, make_tape
from nestling.harness.told import ToldTurn, told_turns
from nestling.session.boundary import own_events
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import Outcome, outcome
from nestling.wire.agent_reference import TAPE
from nestling.worker.tape import encode_tape

# What a hang streams before it falls silent (source: the format's replay reference).
_HANG_PREFIX: Final[tuple[JsonObject, ...]] = (
    {"type": "block-start", "index": 0, "blockType": "text"},
    {"type": "text-delta", "index": 0, "text": "partial"},
)


class PlannedCall(NamedTuple):
    """One entry of a script, ready to be served.

    Attributes:
        answer: how it is answered, placeholders not filled in.
        call: the entry and where it was recorded.
    """

    purpose: str
    answer: Answer
    call: ScriptCall


class RecordedResult(NamedTuple):
    """A recorded tool result.

    Attributes:
        seq: its event.
        body: ``{"block", "error"?, "meta"?}``.
    """

    seq: int
    body: JsonObject


class Plan(NamedTuple):
    """What one recorded session gets in a replay.

    Attributes:
        session: the recorded session.
        creation: its header without the seed facts, its tape, where it is stopped.
        tapes: that tape, and those of the workers that went on after a death.
        calls: the answers to its calls, in order.
        results: its recorded tool results by (turn, step, block).
        closing: those that a repair wrote, likewise.
        agent_stops: where an agent that plays it is stopped.
        told: what it was told, turn by turn.
        outcome: what it came to.
        code_children: the tool calls whose bodies delegated, as the same triples; None
            in the place of the block where an agent's code did.
        fatal_turns: the turns in which a worker died.
    """

    session: RecordedSession
    creation: Creation
    tapes: Sequence[bytes]
    calls: Sequence[PlannedCall]
    results: Mapping[tuple[int, int, int], RecordedResult]
    closing: Mapping[tuple[int, int, int], RecordedResult]
    agent_stops: Stops
    told: Sequence[ToldTurn]
    outcome: Outcome
    code_children: AbstractSet[tuple[int, int, int | None]] = frozenset()
    fatal_turns: AbstractSet[int] = frozenset()

    @property
    def recorded(self) -> Sequence[Event]:
        """The recorded log."""
        return self.session.recording.events

    @property
    def later_prompts(self) -> list[Prompt]:
        """What it was told in later turns than its first."""
        return [each.prompt for each in self.told[1:] if each.prompt is not None]

    @property
    def stops(self) -> Stops:
        """Where the session is stopped from outside."""
        return self.creation.stops

    @property
    def ends_dead(self) -> bool:
        """Whether nothing was recorded after its last worker's death."""
        return len(self.tapes) == len(self.stops.kills)

    def death_at(self, length: int) -> int | None:
        """Return which of its workers died when the log was so long, if one did."""
        for number, kill in enumerate(self.stops.kills):
            if kill.length == length:
                return number
        return None

    def is_cut_short(self, turn: int, length: int) -> bool:
        """Tell whether a worker dies in a turn, or an agent was cancelled in it by now.

        Args:
            length: how long the log is now.
        """
        if turn in self.fatal_turns:
            return True
        return any(
            stop.length <= length and turn == turn_at(self.recorded, stop.length)
            for stop in self.agent_stops.cancels
        )


def make_plan(
    session: RecordedSession, children: Sequence[RecordedSession] = ()
) -> Plan:
    """Make the plan of a recorded session.

    Args:
        session: which.
        children: the sessions that it delegated.

    Raises:
        UnreadableError: if no tape can be made of its log (see ``make_tape``).
    """
    recording = session.recording
    by_code = [
        CodeChild(child.delegation.spawned_by, first_prompt(child.own_events) or "")
        for child in children
        if child.delegation is not None and is_by_code(child.delegation)
    ]
    turns = [c.delegation.spawned_by.turn for c in children if c.delegation is not None]
    tape = make_tape(recording, by_code, turns)
    stops = tape.stops
    if not stops.kills and _never_began(session):
        stops = stops._replace(kills=(KillAt(len(recording.events)),))
    header = recording.header.with_fields(seedLength=None, seedDigest=None)
    own = own_events(recording.events, recording.header.seed_length)
    tapes = [encode_tape(part) for part in tape.parts]
    results, closing = _results(session)
    return Plan(
        session,
        Creation(header, TAPE, tapes[0], stops),
        tapes,
        [_planned(call, own) for call in session.script],
        results,
        closing,
        stops._replace(cancels=_agent_cancels(recording.events, stops, turns)),
        told_turns(own),
        outcome(own),
        {(place.turn, place.step, place.block) for place, _ in by_code},
        {crash.turn for crash in crashes(recording)},
    )


def _never_began(session: RecordedSession) -> bool:
    """Tell whether a child of ours died before its first turn: each is told its task."""
    if session.delegation is None or session.is_foreign:
        return False
    return not any(event.type == "turn/start" for event in session.own_events)


def _agent_cancels(
    events: Sequence[Event], stops: Stops, turns: Sequence[int]
) -> tuple[CancelAt, ...]:
    return tuple(
        cancel._replace(
            children=sum(turn <= turn_at(events, cancel.length) for turn in turns)
        )
        for cancel in agent_cancels(events, stops.cancels)
    )


def turn_at(events: Sequence[Event], length: int) -> int:
    """Return the last turn that a log of this length has begun."""
    for event in reversed(events[:length]):
        if event.type == "turn/start":
            turn: int = event.data["turn"]
            return turn
    return 0


def _planned(call: ScriptCall, own: Sequence[Event]) -> PlannedCall:
    answer = answer_of(call.entry, call.place, own)
    return PlannedCall(call.purpose, answer, call)


def answer_of(entry: Entry, place: CallPlace | None, own: Sequence[Event]) -> Answer:
    """Return the answer that an entry of a script stands for.

    Args:
        entry: the entry.
        place: where its call was recorded, if it was.
        own: the own events of the session.
    """
    chunks = EncodedChunks(entry.chunks)
    match entry.kind:
        case "throw":
            failure = {"message": entry.message, "code": entry.code}
            return Answer(chunks, failure=failure)
        case "abort":
            return Answer(chunks, cut=(entry.reason or {}).get("reason", {}))
        case "crash":
            return Answer(chunks, hangs=True)
        case "hang":
            cause = _abort_cause(place, own)
            prefix = EncodedChunks(_HANG_PREFIX)
            return Answer(prefix, cut=cause, hangs=cause is None)
        case _:
            return Answer(chunks)


def _abort_cause(place: CallPlace | None, own: Sequence[Event]) -> JsonObject | None:
    """Return why the turn of a call was aborted, if it was."""
    if place is None:
        return None
    for event in own:
        if event.type == "turn/end" and event.data["turn"] == place.turn:
            reason = event.data["reason"]
            aborted = reason["kind"] == "aborted"
            return reason.get("reason", {}) if aborted else None
    return None


_Results: TypeAlias = dict[tuple[int, int, int], RecordedResult]


def _results(session: RecordedSession) -> tuple[_Results, _Results]:
    """Return the recorded tool results: those that came, and those of repairs."""
    results: _Results = {}
    closing: _Results = {}
    repairs = [range(c.length, c.turn_end) for c in crashes(session.recording)]
    for call in session.tool_calls:
        seq = call.result_seq
        if seq is not None:
            data = session.recording.events[seq].data
            body = {"block": data["message"]["content"][0]}
            body.update({key: data[key] for key in ("error", "meta") if key in data})
            is_closing = any(seq in repair for repair in repairs)
            found = closing if is_closing else results
            found[(call.turn, call.step, call.block)] = RecordedResult(seq, body)
    return results, closing
