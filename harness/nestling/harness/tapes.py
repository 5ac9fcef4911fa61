"""Making a tape: what a tape agent is told of its recorded session.

| in a tape | events |
|---|---|
| a marker; the loop produces it | turn/start, turn/end, step/start, step/end, assistant/chunk, assistant/message, tool/call, tool/result |
| left out; made with the session | the session/end-seed at the boundary |
| a marker with the rest of its event | a marked compaction/summary, whose answer is served |
| markers, told by its children | a delegation by code, which leaves no event in its parent |
| an input, appended where it stood | everything else; replacements on the surface, too |

With it come the places where the session was stopped from outside, which the hub
does again: a turn cancelled while no call was open, and a worker's death. What a
session did after one was another worker's part: it has a tape of its own, which begins
after what closed the turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nestling.driver.director import CancelAt, KillAt, Stops
from nestling.harness.crashes import crashes
from nestling.harness.tool_calls import own_tool_calls
from nestling.session.boundary import own_events
from nestling.session.chunk import is_finish
from nestling.session.errors import UnreadableError
from nestling.session.event import Event
from nestling.session.header import SpawnedBy
from nestling.session.jsontext import JsonObject
from nestling.session.reading import Recording
from nestling.session.shape import shape_problem
from nestling.session.surface import is_replacement
from nestling.session.turns import is_agent_error
from nestling.worker.tape import (
    Call,
    CallInput,
    Delegate,
    Hold,
    Input,
    Item,
    Message,
    Settle,
    StepEnd,
    StepStart,
    Summary,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
)


class Tape(NamedTuple):
    """The tapes of a session's workers, and where it is stopped from outside."""

    parts: list[list[Item]]
    stops: Stops

    @property
    def items(self) -> list[Item]:
        """The first worker's tape, which is the whole of it where none died."""
        return self.parts[0]


class CodeChild(NamedTuple):
    """A child that no delegation tool's call started: code did, maybe inside a tool."""

    spawned_by: SpawnedBy
    prompt: str


def make_tape(
    recording: Recording,
    children: Sequence[CodeChild] = (),
    turns: Sequence[int] = (),
) -> Tape:
    """Make the tape of a recorded session.

    Args:
        recording: its header and events.
        children: those of its children that code started.
        turns: the turn in which each of its children was delegated, whatever by.

    Raises:
        UnreadableError: if an event that the loop produces is malformed, or a tool
            call or result belongs to no block of its step's message.
    """
    seed_length = recording.header.seed_length
    writer = _TapeWriter(recording, children)
    events = own_events(recording.events, seed_length)
    if events and events[0].type == "session/end-seed" and seed_length > 0:
        events = events[1:]  # it is made with the session
    first = events[0].seq if events else 0
    parts, kills, start = [], [], first
    for crash in crashes(recording):
        for event in events[start - first : crash.length - first]:
            writer.take(event)
        writer.hold()
        parts.append(writer.cut())
        started = sum(turn <= crash.turn for turn in turns)
        kills.append(KillAt(crash.length, started))
        start = crash.turn_end + 1
    rest = events[start - first :]
    for event in rest:
        writer.take(event)
    if rest or not parts:
        parts.append(writer.cut())
    return Tape(parts, Stops(tuple(writer.cancels), tuple(kills)))


class _TapeWriter:
    """Turns own events into tape items, one after the other."""

    def __init__(self, recording: Recording, children: Sequence[CodeChild]) -> None:
        self.items: list[Item] = []
        self.cancels: list[CancelAt] = []
        self._recording = recording
        self._chunks = 0
        self._inputs: list[CallInput] = []
        self._is_in_call = False
        self._was_cut = False
        self._calls_in_turn = 0
        self._children = _by_place(children)
        self._has_children = False
        inherited = recording.events[: recording.header.seed_length]
        self._has_header = any(e.type == "request/header" for e in inherited)
        calls = own_tool_calls(recording)
        self._block_of_call = {call.seq: call.block for call in calls}
        self._block_of_result = {
            call.result_seq: call.block for call in calls if call.result_seq is not None
        }

    def take(self, event: Event) -> None:
        """Add what `event` comes to."""
        problem = shape_problem(event)
        if problem is not None:
            raise UnreadableError(f"{self._recording.place(event.seq)}: {problem}")
        if event.type == "assistant/chunk":
            self._chunk(event)
        elif event.type in _MARKERS and not is_replacement(event.surface_op):
            self._end_call()
            self._marker(event)
        else:
            self._input(event)

    def hold(self) -> None:
        """End the tape where the recorded worker died."""
        self._end_call()
        self._has_children = False
        self.items.append(Hold())

    def cut(self) -> list[Item]:
        """Return the tape so far, and begin another one."""
        items, self.items = self.items, []
        return items

    # --- calls -----------------------------------------------------------------

    def _chunk(self, event: Event) -> None:
        if not self._is_in_call:
            self._is_in_call, self._chunks, self._inputs = True, 0, []
            self._calls_in_turn += 1
        self._chunks += 1
        if is_finish(event.data["chunk"]):
            self._end_call(has_finished=True)

    def _end_call(self, *, has_finished: bool = False) -> None:
        if self._is_in_call:
            self.items.append(Call(inputs=tuple(self._inputs)))
            self._is_in_call, self._was_cut = False, not has_finished

    # --- inputs ----------------------------------------------------------------

    def _input(self, event: Event) -> None:
        self._has_header = self._has_header or event.type == "request/header"
        if self._is_in_call:
            self._inputs.append(CallInput(self._chunks, event.content()))
            return
        content = event.content()
        if is_summary_call(event):
            told = {k: v for k, v in event.data.items() if k not in _ANSWERED}
            self.items.append(Summary({**content, "data": told}))
        else:
            self.items.append(Input(content))

    # --- markers ---------------------------------------------------------------

    def _marker(self, event: Event) -> None:
        data = event.data
        match event.type:
            case "turn/start":
                self._calls_in_turn, self._was_cut = 0, False
                self.items.append(TurnStart(data["turn"]))
                self._delegate(data["turn"], 0, None)
            case "step/start":
                self._settle()
                self.items.append(StepStart(data["turn"], data["step"]))
                self._delegate(data["turn"], data["step"], None)
            case "assistant/message":
                self.items.append(self._message(data["message"]))
            case "tool/call":
                block = self._block(event, self._block_of_call)
                self.items.append(ToolCall(block))
                self._delegate(data["turn"], data["step"], block)
            case "tool/result":
                self._settle()
                block = self._block(event, self._block_of_result)
                self.items.append(ToolResult(block, data["message"]["id"]))
            case "step/end":
                self._settle()
                self.items.append(StepEnd())
            case "turn/end":
                self._settle()
                self._turn_end(event)

    # --- children of code ------------------------------------------------------

    def _delegate(self, turn: int, step: int, block: int | None) -> None:
        for place, prompt in self._children.get((turn, step, block), ()):
            self.items.append(
                Delegate(
                    "fork" if place.context == "fork" else "spawn",
                    prompt,
                    block,
                    place.n,
                    place.key,
                    place.call_id or "",
                )
            )
            self._has_children = True

    def _settle(self) -> None:
        if self._has_children:
            self.items.append(Settle())
            self._has_children = False

    # --- the rest --------------------------------------------------------------

    def _message(self, message: JsonObject) -> Message:
        source = message.get("source")
        if self._has_header or type(source) is not dict:
            return Message(message["id"])
        provider, model = source.get("provider"), source.get("model")
        if type(provider) is not str or type(model) is not str:
            return Message(message["id"])
        return Message(message["id"], provider, model)

    def _block(self, event: Event, blocks: Mapping[int, int]) -> int:
        block = blocks.get(event.seq)
        if block is None:
            raise UnreadableError(
                f"{self._recording.place(event.seq)}: {event.type} belongs to no "
                "tool-call block of its step's message"
            )
        return block

    def _turn_end(self, event: Event) -> None:
        reason: JsonObject = event.data["reason"]
        is_cancelled = reason["kind"] == "aborted"
        if is_cancelled and not self._was_cut:
            cause = reason.get("reason", {})
            self.cancels.append(CancelAt(event.seq, cause))
        told = reason["kind"] == "blocked" or (
            reason["kind"] == "error"
            and (self._calls_in_turn == 0 or is_agent_error(reason))
        )
        self.items.append(
            TurnEnd(cancelled=is_cancelled, reason=reason if told else None)
        )


def _by_place(
    children: Sequence[CodeChild],
) -> Mapping[tuple[int, int, int | None], Sequence[CodeChild]]:
    """Return children by turn, step and block, in the order of their numbers."""
    found: dict[tuple[int, int, int | None], list[CodeChild]] = {}
    for child in sorted(children, key=lambda child: child.spawned_by.n):
        place = child.spawned_by
        found.setdefault((place.turn, place.step, place.block), []).append(child)
    return found


_ANSWERED = ("rawOutput", "usage")
"""What the event of a summary holds of the model's answer."""

_MARKERS = frozenset(
    {
        "turn/start",
        "turn/end",
        "step/start",
        "step/end",
        "assistant/message",
        "tool/call",
        "tool/result",
    }
)


def is_summary_call(event: Event) -> bool:
    """Tell whether an event carries a model call of its own: a marked summary."""
    return (
        event.type == "compaction/summary"
        and type(event.data) is dict
        and event.data.get("llmStreamCall") is True
    )
