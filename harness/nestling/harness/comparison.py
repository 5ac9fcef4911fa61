"""Comparing one live session with the recorded one while it grows.

A session that a tape plays must be the recorded one, event for event. One that an agent
plays is compared in two parts.

- The *skeleton* is what the loop makes of what the model says: turns, steps, chunks, the
  model's messages, tool calls. It must be the recorded one, whatever the level.
- *Inputs* are what the model is told: everything else. Where one differs, or is missing
  or new, that is *pending* until the session's next call. Then the request that the live
  log leads to is held against the one that the recorded log leads to, and the level says
  what a difference is: a problem, a warning, or nothing. What is pending when the session
  ends, no model ever saw; it is judged alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

from nestling.harness.compare import SKELETON, event_difference
from nestling.harness.ledger import ProblemKind
from nestling.harness.matching import Matcher
from nestling.harness.request_diff import changes_text, request_changes
from nestling.session.errors import AppendError
from nestling.session.event import Event
from nestling.session.request import request_of

Verify: TypeAlias = Literal["off", "warn", "strict"]


class Finding(NamedTuple):
    """Something that is not as recorded.

    Attributes:
        kind: of what kind.
        message: what, where, and what was recorded.
        is_problem: whether it fails the replay; else it is a warning.
    """

    kind: ProblemKind
    message: str
    is_problem: bool = True


class CallAt(NamedTuple):
    """A model call that a session opens.

    Attributes:
        number: which of the session's, from 1.
    """

    number: int
    turn: int
    step: int

    def __str__(self) -> str:
        return f"call {self.number} (turn {self.turn}, step {self.step})"


class Comparison(Protocol):
    """Compares one session."""

    @property
    def position(self) -> int:
        """How many recorded events were found in the live log."""
        ...

    @property
    def log(self) -> Sequence[Event]:
        """The live log so far, as far as it was compared."""
        ...

    @property
    def has_other_inputs(self) -> bool:
        """Whether an input was found to be another, missing or new."""
        ...

    def take(self, event: Event) -> Sequence[Finding]:
        """Compare the next event of the live log; a problem is the last thing found."""
        ...

    def call(self, at: CallAt) -> Finding | None:
        """Compare the request of a call that is opened now."""
        ...

    def inherit(self, parent: Comparison) -> None:
        """Know of the parent's, before a child that it forks begins."""
        ...

    def lost(self) -> Finding | None:
        """Know that a worker died here: what follows closes its turn."""
        ...

    def end(self) -> Finding | None:
        """Compare what is left when the session has ended."""
        ...


class TapeComparison:
    """Compares a session that a tape plays, event for event.

    Attributes:
        position: how many events were found equal.
    """

    has_other_inputs = False

    def __init__(self, recorded: Sequence[Event]) -> None:
        self.position = 0
        self._recorded = recorded

    @property
    def log(self) -> Sequence[Event]:
        """The live log so far: it is the recorded one."""
        return self._recorded[: self.position]

    def take(self, event: Event) -> Sequence[Finding]:
        """Compare the next event with the one at the same place."""
        problem = _difference_at(event, self._recorded, event.seq)
        if problem is not None:
            return (Finding("log-differs", f"event {event.seq}: {problem}"),)
        self.position = event.seq + 1
        return ()

    def call(self, at: CallAt) -> None:
        """Do nothing: equal logs lead to equal requests."""

    def inherit(self, parent: Comparison) -> None:
        """Do nothing: what was inherited is compared like everything else."""

    def lost(self) -> None:
        """Do nothing: what closes a turn is compared like everything else."""

    def end(self) -> Finding | None:
        """Tell whether the log is as long as the recorded one."""
        return _cut_short(self.position, self.position, self._recorded)


class _Deviation(NamedTuple):
    """An input that is another, missing or new.

    Attributes:
        text: which, and how.
        shifts: whether the live log is longer or shorter for it.
        is_missing: whether the live log does not have it.
        is_inherited: whether it is the parent's, and reported there if nobody sees it.
    """

    text: str
    shifts: bool = False
    is_missing: bool = False
    is_inherited: bool = False


class AgentComparison:
    """Compares a session that an agent plays.

    Attributes:
        position: how many recorded events were found in the live log, inputs that are
            others included.
        has_other_inputs: whether an input was found to be another, missing or new.
    """

    def __init__(
        self,
        recorded: Sequence[Event],
        seed_length: int,
        verify: Verify,
        matcher: Matcher,
        stops: Iterable[int] = (),
        deaths: Iterable[int] = (),
    ) -> None:
        """Prepare a comparison.

        Args:
            recorded: the recorded log.
            seed_length: how many of its events were inherited.
            verify: what another request is: a problem, a warning, nothing.
            matcher: what is the same.
            stops: the lengths of the recorded log at which the session is stopped from
                outside.
            deaths: those at which its workers died.
        """
        self.position = 0
        self.has_other_inputs = False
        self._told: set[tuple[str, ...]] = set()
        self._recorded = recorded
        self._seed_length = seed_length
        self._verify = verify
        self._matcher = matcher
        self._stops = sorted(stops)
        self._barriers = set(deaths)
        self._live: list[Event] = []
        self._place_of: list[int | None] = []
        self._segment: list[Event] = []
        self._pending: list[_Deviation] = []
        self._opened: tuple[CallAt, int] | None = None

    @property
    def log(self) -> Sequence[Event]:
        """The live log so far."""
        return self._live

    # --- events ------------------------------------------------------------------

    def take(self, event: Event) -> Sequence[Finding]:
        """Compare the next event, or keep it until more of its kind are known."""
        self._live.append(event)
        self._place_of.append(None)
        if event.type in SKELETON:
            finding = self._settled()
            if finding is not None and finding.is_problem:
                return (finding,)
            both = (finding, self._skeleton(event))
            return [each for each in both if each is not None]
        at = self.position
        is_next = not self._segment and self._is_input(at)
        if is_next and self._differs_at(event, at) is None:
            self._place_of[event.seq] = at
            self.position += 1
        else:
            self._segment.append(event)
        return ()

    def _skeleton(self, event: Event) -> Finding | None:
        problem = self._differs_at(event, self.position)
        if problem is not None:
            return Finding("log-differs", f"{problem}{self._before()}")
        self._place_of[event.seq] = self.position
        self.position += 1
        return None

    def _before(self) -> str:
        """Name the first input that differed and was not judged yet: a likely cause."""
        if not self._pending or self._verify == "off":
            return ""
        return f"; before that, {self._pending[0].text}"

    def _differs_at(self, event: Event, at: int) -> str | None:
        """Say how a live event differs from the recorded one at a place."""
        was = "" if at == event.seq else f" (recorded event {at})"
        moved = self._place_of if self.has_other_inputs else None
        problem = _difference_at(event, self._recorded, at, self._matcher, moved)
        return None if problem is None else f"event {event.seq}{was}: {problem}"

    # --- inputs ------------------------------------------------------------------

    def _end_of_inputs(self) -> int:
        """Return where the recorded inputs end that stand at the position."""
        end = self.position
        while self._is_input(end):
            end += 1
        return end

    def _is_input(self, at: int) -> bool:
        """Tell whether there is a recorded input at a place that belongs to it."""
        if at >= len(self._recorded) or at in self._barriers:
            return False
        return self._recorded[at].type not in SKELETON

    def _settled(self) -> Finding | None:
        """Compare the inputs since the last skeleton event, of which no more come."""
        recorded = self._recorded[self.position : self._end_of_inputs()]
        live, self._segment = self._segment, []
        opened, self._opened = self._opened, None
        if not live and not recorded:
            return None
        if len(live) != len(recorded):
            self.has_other_inputs = True
        found = self._deviations(live, recorded)
        self.has_other_inputs = True
        self.position += len(recorded)
        if 0 < self.position <= self._seed_length:
            found = [each._replace(is_inherited=True) for each in found]
        self._pending += found
        if opened is not None and all(each.is_missing for each in found):
            at, length = opened
            return self._judged(at, length) or self._misplaced_stop(found)
        return self._misplaced_stop(found)

    def _deviations(
        self, live: Sequence[Event], recorded: Sequence[Event]
    ) -> list[_Deviation]:
        """Pair the inputs at one place; those at the end that are equal, others in order."""
        shorter, last = min(len(live), len(recorded)), 0
        while last < shorter:
            one, other = live[-1 - last], recorded[-1 - last]
            if self._differs_at(one, other.seq) is not None:
                break
            self._place_of[one.seq] = other.seq
            last += 1
        mine, others = live[: len(live) - last], recorded[: len(recorded) - last]
        found = []
        for one, other in zip(mine, others, strict=False):
            problem = self._differs_at(one, other.seq)
            self._place_of[one.seq] = other.seq
            if problem is not None:
                found.append(_Deviation(problem))
        for one in mine[len(others) :]:
            text = f"event {one.seq}: {one.type} was not recorded"
            found.append(_Deviation(text, shifts=True))
        for other in others[len(mine) :]:
            text = f"recorded event {other.seq}: {other.type} is missing"
            found.append(_Deviation(text, shifts=True, is_missing=True))
        return found

    def _misplaced_stop(self, found: Sequence[_Deviation]) -> Finding | None:
        """Refuse to go on where the log is to be stopped at a length, and has another."""
        shift = next((each for each in found if each.shifts), None)
        ahead = [stop for stop in self._stops if stop >= self.position]
        if shift is None or not ahead or self.position <= self._seed_length:
            return None
        if self._verify == "strict":
            return Finding("log-differs", shift.text)
        return Finding(
            "not-supported",
            f"{shift.text}; the session is stopped later, after {ahead[0]} events, and "
            "this place cannot be found in a log of another length: record it again",
        )

    # --- judging -----------------------------------------------------------------

    def call(self, at: CallAt) -> Finding | None:
        """Compare the requests, if an input differed since the last call."""
        if self._pending or self._segment:
            finding = self._settled()
            if finding is not None and finding.is_problem:
                return finding
            return self._judged(at, len(self._live)) or finding
        # Inputs that are not there yet may come while the call is open, as they may
        # have come in the recording; the next event tells.
        self._opened = at, len(self._live)
        return None

    def _judged(self, at: CallAt, length: int) -> Finding | None:
        pending, self._pending = self._pending, []
        if not pending or self._verify == "off":
            return None
        try:
            recorded = request_of(self._recorded[: self.position])
        except AppendError as error:
            text = f"{at}: the recorded request cannot be rebuilt: {error}"
            return self._finding("request-differs", text)
        changes = request_changes(
            request_of(self._live[:length]), recorded, self._matcher
        )
        if not changes:
            return self._unseen(pending)
        new = [change for change in changes if change.key not in self._told]
        self._told.update(change.key for change in changes)
        if not new:
            return None
        return self._finding("request-differs", f"{at}: {changes_text(new)}")

    def _unseen(self, pending: Sequence[_Deviation]) -> Finding | None:
        """Report what no model saw."""
        own = [each for each in pending if not each.is_inherited]
        if not own or self._verify == "off":
            return None
        return self._finding("log-differs", own[0].text)

    def _finding(self, kind: ProblemKind, text: str) -> Finding:
        return Finding(kind, text, is_problem=self._verify == "strict")

    def inherit(self, parent: Comparison) -> None:
        """Do not tell again what was told of the parent: a fork shares its messages."""
        if isinstance(parent, AgentComparison):
            self._told |= parent._told

    def lost(self) -> Finding | None:
        """Take what comes now for what closes the turn of a worker that died."""
        finding = self._settled()
        self._barriers.discard(self.position)
        return finding

    def end(self) -> Finding | None:
        """Compare what is left when the session has ended."""
        finding = self._settled()
        if finding is not None and finding.is_problem:
            return finding
        short = _cut_short(len(self._live), self.position, self._recorded)
        if short is not None:
            return short._replace(message=f"{short.message}{self._before()}")
        pending, self._pending = self._pending, []
        return finding or self._unseen(pending)


def _difference_at(
    event: Event,
    recorded: Sequence[Event],
    at: int,
    matcher: Matcher | None = None,
    place_of: Sequence[int | None] | None = None,
) -> str | None:
    if at >= len(recorded):
        return f"it is {event.type}, the recorded log has only {len(recorded)} events"
    return event_difference(event, recorded[at], matcher, place_of)


def _cut_short(length: int, position: int, recorded: Sequence[Event]) -> Finding | None:
    if position >= len(recorded):
        return None
    return Finding(
        "log-differs",
        f"the log ended after {length} events; recorded was "
        f"{recorded[position].type} next, {len(recorded)} in all",
    )
