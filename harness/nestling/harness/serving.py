"""What a call of a replay is answered with: its entry, filled in, and in its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from nestling.driver.director import Answer, CallRequest, Pace
from nestling.harness.from_request import filled_event, has_placeholders, resolve
from nestling.harness.plan import Plan, answer_of
from nestling.harness.scripts import ScriptCall
from nestling.session.boundary import own_events
from nestling.session.event import Event
from nestling.session.outcome import Outcome, outcome

Place = tuple[str, int, int]
"""A spawn path, the number of a call, from 1, and how many chunks were served."""


class Serving:
    """Serves the scripts of one replay."""

    def __init__(
        self,
        plans: Mapping[str, Plan],
        expected: Mapping[str, list[Event]],
        speed: float = 0.0,
        gates: Iterable[Place] = (),
    ) -> None:
        """Prepare to serve.

        Args:
            plans: of each session, by spawn path.
            expected: the recorded logs that live ones are compared with, likewise: what
                placeholders come to is filled in there, too.
            speed: 0 to serve at once, 1 as it was recorded, N to be N times as fast.
            gates: where answers are held.

        Raises:
            ValueError: if the speed is none, or nothing is recorded where a gate is.
        """
        if not (math.isfinite(speed) and speed >= 0):
            raise ValueError(f"speed must be 0 or more and finite, found {speed!r}")
        self._plans = plans
        self._expected = expected
        self._speed = speed
        self._filled_in: set[str] = set()
        self._gates: dict[tuple[str, int], list[int]] = {}
        for gate in gates:
            self._add_gate(gate)

    def _add_gate(self, gate: Place) -> None:
        path, call, chunk = gate
        where = f"the gate at chunk {chunk} of call {call} of session {path}"
        plan = self._plans.get(path)
        if plan is None:
            raise ValueError(f"{where}: recorded are {', '.join(self._plans)}")
        if not 1 <= call <= len(plan.calls):
            raise ValueError(f"{where}: recorded are {len(plan.calls)} calls")
        count = len(plan.calls[call - 1].answer.chunks)
        if not 0 <= chunk <= count:
            raise ValueError(f"{where}: recorded are {count} chunks")
        chunks = self._gates.setdefault((path, call), [])
        if chunk in chunks:
            raise ValueError(f"{where}: there are two of them")
        chunks.append(chunk)
        chunks.sort()

    def answer(self, path: str, call: CallRequest) -> Answer:
        """Return the answer to a call.

        Args:
            path: the spawn path of the session that makes it.
            call: the call, its number that of an entry of the session's script.

        Raises:
            UnreadableError: if a placeholder of the entry cannot be filled in.
        """
        plan = self._plans[path]
        planned = plan.calls[call.number]
        answer = planned.answer
        if has_placeholders(planned.call.entry):
            answer = self._filled(path, call.number, call.messages)
        pace = self._pace(path, call.number + 1, planned.call)
        return answer if pace is None else answer._replace(pace=pace)

    def recorded_outcome(self, path: str) -> Outcome:
        """Return what a recorded session came to, placeholders filled in."""
        plan = self._plans[path]
        if path not in self._filled_in:
            return plan.outcome
        seed_length = plan.session.recording.header.seed_length
        return outcome(own_events(self._expected[path], seed_length))

    def _filled(
        self, path: str, number: int, messages: Callable[[], Sequence[object]]
    ) -> Answer:
        """Fill in an entry, and what the log says of its call up to the next one."""
        plan, found = self._plans[path], dict[str, str]()
        call = plan.calls[number].call
        entry = resolve(call.entry, messages(), found)
        if call.place is not None:
            self._filled_in.add(path)
            expected = self._expected[path]
            later = [each.call.place for each in plan.calls[number + 1 :]]
            end = next((p.first_seq for p in later if p is not None), len(expected))
            for seq in range(call.place.first_seq, end):
                expected[seq] = filled_event(expected[seq], found)
        return answer_of(entry, call.place, plan.session.own_events)

    def _pace(self, path: str, number: int, call: ScriptCall) -> Pace | None:
        gates = self._gates.get((path, number), ())
        waits: Sequence[float] = ()
        if self._speed:
            waits = recorded_waits(self._plans[path].recorded, call, self._speed)
        if not gates and not any(waits):
            return None
        return Pace(number, waits, gates)


def recorded_waits(
    events: Sequence[Event], call: ScriptCall, speed: float
) -> list[float]:
    """Return how long each chunk of a recorded call came after what was before it.

    Args:
        events: the session's log.
        call: the call; one that only an override knows has no times.
        speed: so many times as fast.

    Returns:
        Seconds for each chunk, none of them less than 0; fewer than there are chunks
        where the log does not say.
    """
    place = call.place
    if place is None:
        return []
    times = [
        event.time
        for event in events[place.first_seq : place.end_seq]
        if event.type == "assistant/chunk" or call.purpose == "summary"
    ]
    before = events[place.first_seq - 1].time if place.first_seq else times[0]
    earlier = [before, *times[:-1]]
    gaps = [after - time for time, after in zip(earlier, times, strict=True)]
    return [max(0, gap) / 1000 / speed for gap in gaps]
