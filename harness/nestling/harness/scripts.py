"""Scripts: the model calls of one recorded session, in order.

A script is derived from a session's **own** events: the calls it inherited were
answered for its parent. Consecutive chunks are cut into calls at each ``finish``;
several calls may share a step, because a failed one is tried again there. A local
compaction summary that is marked as a call is one, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from nestling.harness.own import own_part, require_shape
from nestling.session.chunk import chunk_problem, is_finish
from nestling.session.errors import UnreadableError
from nestling.session.event import Event
from nestling.session.fold import STOP
from nestling.session.jsontext import Json, JsonObject
from nestling.session.outcome import is_models
from nestling.session.reading import Recording
from nestling.session.turns import TurnTracker

EntryKind: TypeAlias = Literal["chunks", "throw", "hang", "abort", "crash"]
Purpose: TypeAlias = Literal["turn", "summary"]

_CUT_KINDS: Final[dict[str, EntryKind]] = {"aborted": "abort", "interrupted": "crash"}


class Entry(msgspec.Struct, frozen=True):
    """How one call is answered.

    Attributes:
        kind: ``chunks`` are served whole; ``throw`` fails after its chunks; ``hang``
            serves a fixed prefix and waits to be cancelled; ``abort`` is cancelled
            and ``crash`` killed after its chunks.
        chunks: what is streamed; none for ``hang``.
        message: of a ``throw``, what the failure says.
        code: of a ``throw``, the failure's code.
        ready_file: of a ``hang``, a file its author waited for; not used here.
        reason: of an ``abort`` or ``crash``, the reason of the ``turn/end`` that
            closed it.
    """

    kind: EntryKind
    chunks: tuple[JsonObject, ...] = ()
    message: str | None = None
    code: str | None = None
    ready_file: str | None = None
    reason: JsonObject | None = None

    def to_json(self) -> JsonObject:
        """Return the entry as sidecars and ``nestling script --json`` write it."""
        if self.kind == "hang":
            ready = {} if self.ready_file is None else {"readyFile": self.ready_file}
            return {"kind": "hang", **ready}
        entry: JsonObject = {"kind": self.kind, "chunks": list(self.chunks)}
        if self.kind == "throw":
            return {**entry, "message": self.message, "code": self.code}
        return entry if self.reason is None else {**entry, "reason": self.reason}


class CallPlace(NamedTuple):
    """Where in its log a call was recorded.

    Attributes:
        turn: the call's turn; None for a summary made between turns.
        step: the call's step; None for a summary made outside a step.
        first_seq: the first event of the call; of a summary, its event.
        end_seq: one past the call's last event.
    """

    turn: int | None
    step: int | None
    first_seq: int
    end_seq: int


class ScriptCall(msgspec.Struct, frozen=True):
    """One call of a script.

    Attributes:
        entry: how it is answered.
        purpose: ``turn``, or ``summary`` for a compaction's.
        place: where it was recorded; None for a call that only an override knows.
    """

    entry: Entry
    purpose: Purpose = "turn"
    place: CallPlace | None = None


def derive_script(recording: Recording) -> list[ScriptCall]:
    """Derive the script of a recorded session.

    Raises:
        UnreadableError: if the boundary or a chunk is malformed, a call is left open
            by anything but an aborted or interrupted turn, or the log holds
            assistant messages and no call at all.
    """
    own = own_part(recording)
    cutter = _Cutter(recording)
    for event in own:
        cutter.take(event)
    calls = cutter.finished()
    if not calls:
        _refuse_messages_without_calls(recording, own)
    return calls


class _OpenCall:
    """A call whose ``finish`` has not been seen yet."""

    def __init__(self, event: Event) -> None:
        self.turn: int = event.data["turn"]
        self.step: int = event.data["step"]
        self.first_seq = self.last_seq = event.seq
        self.chunks: list[JsonObject] = []

    def add(self, event: Event) -> None:
        self.chunks.append(event.data["chunk"])
        self.last_seq = event.seq

    def closed(self, kind: EntryKind, reason: JsonObject | None = None) -> ScriptCall:
        entry = Entry(kind, tuple(self.chunks), reason=reason)
        place = CallPlace(self.turn, self.step, self.first_seq, self.last_seq + 1)
        return ScriptCall(entry, "turn", place)


class _Cutter:
    """Cuts the own events of one session into calls."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._turns = TurnTracker()
        self._calls: list[ScriptCall] = []
        self._open: _OpenCall | None = None

    def take(self, event: Event) -> None:
        self._turns.append(event)
        if event.type == "assistant/chunk":
            self._take_chunk(event)
        elif event.type == "turn/end":
            self._take_turn_end(event)
        elif event.type == "compaction/summary":
            self._take_summary(event)

    def finished(self) -> list[ScriptCall]:
        if self._open is not None:
            raise self._left_open(self._open, "the log ends")
        return self._calls

    def _take_chunk(self, event: Event) -> None:
        place = (event.data["turn"], event.data["step"])
        call = self._open
        if call is None:
            call = self._open = _OpenCall(event)
        elif place != (call.turn, call.step):
            found = f"a call of turn {place[0]}, step {place[1]} begins"
            raise self._left_open(call, found)
        call.add(event)
        if is_finish(event.data["chunk"]):
            self._calls.append(call.closed("chunks"))
            self._open = None

    def _take_turn_end(self, event: Event) -> None:
        call = self._open
        if call is None:
            return
        require_shape(self._recording, event)
        if event.data["turn"] != call.turn:
            return
        reason = event.data["reason"]
        kind = _CUT_KINDS.get(reason["kind"])
        if kind is None:
            raise self._left_open(call, f"the turn ends {reason['kind']!r}")
        self._calls.append(call.closed(kind, reason))
        self._open = None

    def _take_summary(self, event: Event) -> None:
        data = event.data
        # Exactly true: a summary without the mark was made elsewhere, not by a call.
        if type(data) is not dict or data.get("llmStreamCall") is not True:
            return
        if self._open is not None:
            raise self._left_open(self._open, "a compaction summary is made")
        entry = Entry("chunks", self._summary_chunks(event))
        place = CallPlace(self._turns.turn, self._turns.step, event.seq, event.seq + 1)
        self._calls.append(ScriptCall(entry, "summary", place))

    def _summary_chunks(self, event: Event) -> tuple[JsonObject, ...]:
        chunks = _chunks_of_summary(event.data)
        problem = "rawOutput must be a list of content blocks"
        if chunks is not None:
            problem = next(filter(None, map(chunk_problem, chunks)), "")
        if problem or chunks is None:
            raise UnreadableError(
                f"{self._recording.place(event.seq)}: a compaction summary is marked "
                f"as a model call, but {problem}"
            )
        return tuple(chunks)

    def _left_open(self, call: _OpenCall, found: str) -> UnreadableError:
        return UnreadableError(
            f"{self._recording.place(call.first_seq)}: the model call of turn "
            f"{call.turn}, step {call.step} is left open after {len(call.chunks)} "
            f"chunks when {found}; expected a finish chunk, or the turn's end to be "
            "aborted or interrupted"
        )


def _chunks_of_summary(data: JsonObject) -> list[JsonObject] | None:
    """Return the stream that a summary stands for; None if it does not say."""
    blocks = data.get("rawOutput")
    if type(blocks) is not list or not all(type(block) is dict for block in blocks):
        return None
    chunks: list[JsonObject] = []
    for index, block in enumerate(blocks):
        kind = block.get("type")
        chunks.append({"type": "block-start", "index": index, "blockType": kind})
        chunks.append({"type": "block-end", "index": index, "block": block})
    if data.get("usage") is not None:
        chunks.append({"type": "usage", "usage": data["usage"]})
    return [*chunks, {"type": "finish", "reason": STOP}]


def _refuse_messages_without_calls(recording: Recording, own: Sequence[Event]) -> None:
    for event in own:
        if event.type == "assistant/message" and _is_answer(event):
            raise UnreadableError(
                f"{recording.place(event.seq)}: found an assistant message in a log "
                "without one recorded model call, expected assistant/chunk events "
                "before it (a later dialect keeps them elsewhere)"
            )


def _is_answer(event: Event) -> bool:
    """Tell whether an assistant message is what a call came to.

    A surface replacement is a rewritten message, which no call of this log made, and
    a stand-in that no model wrote was no call at all.
    """
    if type(event.surface_op) is dict or type(event.data) is not dict:
        return False
    message: Json = event.data.get("message", event.data)
    if type(message) is not dict or not message.get("content"):
        return False
    return is_models(event)
