"""The plan of a replay: for each recorded session what it gets, made once, at load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from nestling.driver.director import Answer, Creation, EncodedChunks, Stops
from nestling.harness.delegation import is_by_code
from nestling.harness.pairing import first_prompt
from nestling.harness.scenario import RecordedSession
from nestling.harness.scripts import CallPlace, Entry, ScriptCall
from nestling.harness.tapes import CodeChild, make_tape
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
    """One entry of a script, ready to be served."""

    purpose: str
    answer: Answer


class Plan(NamedTuple):
    """What one recorded session gets in a replay.

    Attributes:
        session: the recorded session.
        creation: its header without the seed facts, its tape, where it is stopped.
        calls: the answers to its calls, in order.
        results: its recorded tool results by (turn, step, block).
        outcome: what it came to.
        code_children: the tool calls whose bodies delegated, as the same triples; None
            in the place of the block where an agent's code did.
    """

    session: RecordedSession
    creation: Creation
    calls: Sequence[PlannedCall]
    results: Mapping[tuple[int, int, int], JsonObject]
    outcome: Outcome
    code_children: AbstractSet[tuple[int, int, int | None]] = frozenset()

    @property
    def recorded(self) -> Sequence[Event]:
        """The recorded log."""
        return self.session.recording.events

    @property
    def stops(self) -> Stops:
        """Where the session is stopped from outside."""
        return self.creation.stops


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
    tape = make_tape(recording, by_code)
    header = recording.header.with_fields(seedLength=None, seedDigest=None)
    own = own_events(recording.events, recording.header.seed_length)
    return Plan(
        session,
        Creation(header, TAPE, encode_tape(tape.items), tape.stops),
        [_planned(call, own) for call in session.script],
        _results(session),
        outcome(own),
        {(place.turn, place.step, place.block) for place, _ in by_code},
    )


def _planned(call: ScriptCall, own: Sequence[Event]) -> PlannedCall:
    return PlannedCall(call.purpose, _answer(call.entry, call.place, own))


def _answer(entry: Entry, place: CallPlace | None, own: Sequence[Event]) -> Answer:
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


def _results(session: RecordedSession) -> dict[tuple[int, int, int], JsonObject]:
    results = {}
    for call in session.tool_calls:
        if call.result_seq is not None:
            data = session.recording.events[call.result_seq].data
            result = {"block": data["message"]["content"][0]}
            result.update({key: data[key] for key in ("error", "meta") if key in data})
            results[(call.turn, call.step, call.block)] = result
    return results
