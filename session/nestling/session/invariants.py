"""Every rule of one session's log, checked event by event: what does not hold, and where.

A store takes more than this (``nestling.session.strict``): whatever happened may be
persisted, and a reader is lenient. This is what a log that was written faithfully, and
closed, says of itself: turns and steps, calls and results, the surface, the boundary.

Source of the rules: the session format, version 0 (its seed, turns and surface).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from nestling.session.boundary import check_boundary, own_events
from nestling.session.chunk import is_finish
from nestling.session.digest import seed_digest
from nestling.session.errors import AppendError, JsonDomainError, SeedError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import Json, JsonObject, is_int0, loads, shown
from nestling.session.repair import NOT_STARTED
from nestling.session.shape import shape_problem
from nestling.session.surface import Surface

_END_SEED: Final = "session/end-seed"
_CUT: Final = frozenset({"aborted", "interrupted"})
_FRAMES: Final = frozenset({"turn/start", "turn/end", "step/start", "step/end"})
_IN_STEP: Final = frozenset(
    {
        "assistant/chunk",
        "assistant/message",
        "llm/retry",
        "llm/retry-started",
        "tool/call",
        "tool/result",
    }
)
_IN_TURN: Final = frozenset({"request/context", "request/header", "todo/write"})


class Finding(NamedTuple):
    """One thing that is not as it should be.

    Attributes:
        session: the session's id.
        seq: the event, if it is about one.
        text: what was found and what was expected.
        is_remark: it is worth knowing and breaks no rule.
    """

    session: str
    seq: int | None
    text: str
    is_remark: bool = False

    @property
    def line(self) -> str:
        """The finding on one line, with its place."""
        place = "" if self.seq is None else f" event {self.seq}"
        return f"session {shown(self.session)}{place}: {self.text}"


def log_findings(
    header: Header, events: Sequence[Event], *, is_live: bool = False
) -> Iterator[Finding]:
    """Yield what is wrong with one session; nothing else is looked at.

    It takes time in proportion to the log; a replacement on the surface takes as long
    as the surface is.

    Args:
        header: the session's header.
        events: all that is stored of it, from seq 0, unrepaired.
        is_live: somebody is writing it, so that its last turn may be open.
    """
    yield from _boundary_findings(header, events)
    check = _LogCheck(header.id, events)
    for position in range(len(events)):
        check.take(position)
        yield from check.told()
    check.end(is_live=is_live)
    yield from check.told()


# --- the boundary ----------------------------------------------------------------


def _boundary_findings(header: Header, events: Sequence[Event]) -> Iterator[Finding]:
    length, stated = header.seed_length, header.spawned_by
    if stated is not None and header.parent_session is None:
        text = "its header says spawnedBy, but no parentSession; expected both"
        yield Finding(header.id, None, text)
    if stated is not None and stated.context == "spawn" and length:
        text = f"spawnedBy.context is spawn, but seedLength is {length}; expected 0"
        yield Finding(header.id, None, text)
    try:
        check_boundary(events, length)
    except SeedError as error:
        is_there = length < len(events)
        yield Finding(header.id, length if is_there else None, str(error))
    if length > len(events):
        return
    if header.seed_digest is not None:
        found = seed_digest(events[:length])
        if found != header.seed_digest:
            text = (
                f"seedDigest is {header.seed_digest}, but the first {length} events "
                f"have the digest {found}"
            )
            yield Finding(header.id, None, text)
    yield from _end_seed_findings(header, events)


def _end_seed_findings(header: Header, events: Sequence[Event]) -> Iterator[Finding]:
    length = header.seed_length
    marks = [
        position
        for position, event in enumerate(own_events(events, length), start=length)
        if event.type == _END_SEED
    ]
    if length:
        # A seed that ends with the mark of an older boundary needs no second one.
        is_marked = events[length - 1].type == _END_SEED or length in marks
        if not is_marked:
            what = events[length].type if length < len(events) else "the log's end"
            text = f"found {shown(what)} after the seed, expected {_END_SEED}"
            yield Finding(header.id, length, text)
    for position in marks:
        if not length:
            text = f"found {_END_SEED} in a session without a seed, expected none"
            yield Finding(header.id, position, text)
        elif position != length:
            text = f"found another {_END_SEED}, expected one, at event {length}"
            yield Finding(header.id, position, text)


# --- turns, calls, the surface ---------------------------------------------------


class _OpenCall(NamedTuple):
    """A model call whose ``finish`` has not been seen yet."""

    position: int
    turn: int
    step: int


class _Tools:
    """The tool calls of one step: what was asked for, begun and answered."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    def unanswered(self) -> Iterator[str]:
        for call_id, count in (self.asked | self.begun).items():
            yield from [call_id] * (count - self.answered[call_id])


class _LogCheck:
    """Follows one log; ``told`` gives what was found since it was last asked."""

    def __init__(self, session_id: str, events: Sequence[Event]) -> None:
        self._id = session_id
        self._events = events
        self._found: list[Finding] = []
        self._position = 0
        self._next_seq = 0
        self._turn: int | None = None
        self._step: int | None = None
        self._last_turn = self._last_step = 0
        # A turn or step cannot be read: what is open is not known until the next turn.
        self._is_lost = False
        self._call: _OpenCall | None = None
        self._tools = _Tools()
        self._surface = Surface()
        self._results: dict[int, JsonObject] = {}

    def told(self) -> list[Finding]:
        found, self._found = self._found, []
        return found

    def _say(
        self, text: str, position: int | None = None, *, is_remark: bool = False
    ) -> None:
        place = self._position if position is None else position
        self._found.append(Finding(self._id, place, text, is_remark))

    def take(self, position: int) -> None:
        event = self._events[position]
        self._position = position
        if event.seq != self._next_seq:
            self._say(f"found seq {event.seq}, expected {self._next_seq}")
        self._next_seq = event.seq + 1
        problem = shape_problem(event) or _source_problem(event)
        if problem is not None:
            self._say(problem)
            self._is_lost = self._is_lost or event.type in _FRAMES
        if event.seq == position:  # else it cannot be told what is meant by a seq
            self._take_surface(event, is_sound=problem is None)
        if problem is None:
            self._take_place(event)

    def end(self, *, is_live: bool) -> None:
        if self._turn is not None and not is_live and not self._is_lost:
            self._say(f"turn {self._turn} is open: a resume closes it")

    def _take_place(self, event: Event) -> None:
        if event.type == "turn/start":
            self._start_turn(event.data["turn"])
        elif self._is_lost:
            return
        elif event.type == "turn/end":
            self._end_turn(event.data)
        elif event.type == "step/start":
            self._start_step(event.data)
        elif event.type == "step/end":
            self._end_step(event.data)
        elif event.type in _IN_STEP:
            self._take_in_step(event)
        elif event.type in _IN_TURN and self._turn is None:
            self._say(f"found {event.type} outside of a turn, expected an open turn")

    # --- turns and steps -----------------------------------------------------------

    def _start_turn(self, turn: int) -> None:
        if not self._is_lost:
            if self._turn is not None:
                text = f"turn {turn} starts while turn {self._turn} is open"
                self._say(f"{text}, expected its turn/end first")
            if turn != self._last_turn + 1:
                self._say(f"found turn {turn}, expected {self._last_turn + 1}")
        self._is_lost = False
        self._turn = self._last_turn = turn
        self._step, self._last_step = None, 0
        self._tools, self._call = _Tools(), None

    def _end_turn(self, data: JsonObject) -> None:
        if self._turn is None:
            self._say(f"turn {data['turn']} ends, expected an open turn")
            return
        if data["turn"] != self._turn:
            self._say(f"turn {data['turn']} ends, expected the end of {self._turn}")
        if self._step is not None:
            text = f"turn {self._turn} ends while its step {self._step} is open"
            self._say(f"{text}, expected its step/end first")
            self._check_answered()
        kind = data["reason"]["kind"]
        if kind not in _CUT:
            self._check_finished(f"its turn ends {shown(kind)}")
        self._turn = self._step = self._call = None

    def _start_step(self, data: JsonObject) -> None:
        turn, step = data["turn"], data["step"]
        if turn != self._turn:
            found = f"step {step} of turn {turn} starts"
            self._say(f"{found}, expected {self._open_place()}")
            if self._turn is None:
                return
        if self._step is not None:
            text = f"step {step} starts while step {self._step} is open"
            self._say(f"{text}, expected its step/end first")
            self._check_answered()
        if step != self._last_step + 1:
            self._say(f"found step {step}, expected {self._last_step + 1}")
        self._step = self._last_step = step
        self._tools = _Tools()

    def _end_step(self, data: JsonObject) -> None:
        turn, step = data["turn"], data["step"]
        if (turn, step) != (self._turn, self._step):
            found = f"step {step} of turn {turn} ends"
            self._say(f"{found}, expected {self._open_place()}")
        if self._step is not None:
            self._check_answered()
        self._step = None

    def _open_place(self) -> str:
        if self._turn is None:
            return "an open turn"
        if self._step is None:
            return f"turn {self._turn}, where no step is open"
        return f"turn {self._turn}, step {self._step}, which are open"

    def _check_answered(self) -> None:
        for call_id in self._tools.unanswered():
            text = f"the tool call {shown(call_id)} of step {self._step} has no result"
            self._say(f"{text}, expected one before the step ends")
        self._tools = _Tools()

    def _check_finished(self, found: str) -> None:
        if self._call is not None:
            text = f"this model call has no finish when {found}"
            self._say(f"{text}, expected a finish chunk", self._call.position)
            self._call = None

    # --- what belongs to a step ------------------------------------------------------

    def _take_in_step(self, event: Event) -> None:
        if type(event.surface_op) is dict:
            # What is told anew keeps the place of what happened.
            if self._turn is None:
                self._say(f"{event.type} replaces, expected an open turn")
            return
        self._check_place(event)
        if event.type == "assistant/chunk":
            self._take_chunk(event)
        elif event.type == "assistant/message":
            self._take_message(event)
        elif event.type == "tool/call":
            self._take_tool_call(event.data)
        elif event.type == "tool/result":
            self._take_tool_result(event.data)

    def _check_place(self, event: Event) -> None:
        data = event.data if type(event.data) is dict else {}
        turn, step = data.get("turn"), data.get("step")
        if self._step is None or (turn, step) != (self._turn, self._step):
            found = f"{event.type} of turn {shown(turn)}, step {shown(step)}"
            self._say(f"found {found}, expected {self._open_place()}")

    def _take_chunk(self, event: Event) -> None:
        turn, step = event.data["turn"], event.data["step"]
        if self._call is not None and self._call[1:] != (turn, step):
            self._check_finished(f"a call of turn {turn}, step {step} begins")
        if self._call is None:
            self._call = _OpenCall(self._position, turn, step)
        if is_finish(event.data["chunk"]):
            self._call = None

    def _take_message(self, event: Event) -> None:
        data = event.data
        if data.get("interrupted") is not True:
            self._check_finished("its message is logged")
        for seq in event.source_event_seqs or ():
            if not self._is_chunk_of(seq, data):
                text = f"the message cites event {shown(seq)}, expected chunks of "
                self._say(f"{text}turn {data['turn']}, step {data['step']}")
        seen: set[str] = set()
        for block in data["message"]["content"]:
            if block["type"] == "tool-call":
                self._check_tool_call(block["id"], block["name"], block["arguments"])
                if block["id"] in seen:
                    text = f"two tool calls of one message have the id {shown(block['id'])}"
                    self._say(f"{text}, expected an id each")
                seen.add(block["id"])
                self._tools.asked[block["id"]] += 1

    def _is_chunk_of(self, seq: Json, data: JsonObject) -> bool:
        if not is_int0(seq) or seq >= self._position:
            return False
        cited = self._events[seq]
        if cited.type != "assistant/chunk" or type(cited.data) is not dict:
            return False
        return all(cited.data.get(key) == data[key] for key in ("turn", "step"))

    def _check_tool_call(self, call_id: str, name: str, arguments: str) -> None:
        if not call_id:
            self._say("a tool call's id is empty, expected some text")
        if not name:
            self._say(f"the name of tool call {shown(call_id)} is empty, expected one")
        try:
            loads(arguments)
        except JsonDomainError as error:
            # A model may write anything; the tool then answers with an error.
            text = f"the arguments of tool call {shown(call_id)} are no JSON: {error}"
            self._say(text, is_remark=True)

    def _take_tool_call(self, data: JsonObject) -> None:
        call_id = data["callId"]
        if not self._tools.asked[call_id]:  # else its block was looked at
            self._check_tool_call(call_id, data["name"], data["arguments"])
        self._tools.begun[call_id] += 1

    def _take_tool_result(self, data: JsonObject) -> None:
        call_id, tools = data["message"]["source"]["callId"], self._tools
        error = data.get("error")
        code = error.get("code") if type(error) is dict else None
        is_synthetic = code == NOT_STARTED
        expected = tools.begun[call_id]
        if is_synthetic:
            expected = max(expected, tools.asked[call_id])
        if tools.answered[call_id] < expected:
            tools.answered[call_id] += 1
        elif tools.answered[call_id]:
            text = f"found another result of tool call {shown(call_id)}"
            self._say(f"{text}, expected {tools.answered[call_id]} in this step")
        elif not is_synthetic:
            text = f"found a result of {shown(call_id)} without a tool/call"
            self._say(f"{text}, expected one in this step before it")

    # --- the surface -----------------------------------------------------------------

    def _take_surface(self, event: Event, *, is_sound: bool) -> None:
        before = len(self._surface.nodes)
        try:
            self._surface.check(event)
        except AppendError as error:
            self._say(str(error))
        else:
            self._check_told_anew(event, is_sound=is_sound)
        try:
            # What fits badly still moves the surface, or all that follows would, too.
            self._surface.append(event)
        except AppendError:
            return  # said already
        shadowed = before + 1 - len(self._surface.nodes)
        is_result = event.type == "tool/result" and is_sound
        if is_result and type(event.surface_op) is dict and shadowed != 1:
            text = f"a tool/result replaces {shadowed} messages"
            self._say(f"{text}, expected exactly one tool/result")
        if is_result:
            self._results[event.seq] = event.data

    def _check_told_anew(self, event: Event, *, is_sound: bool) -> None:
        operation = event.surface_op
        if event.type != "tool/result" or type(operation) is not dict or not is_sound:
            return
        if operation["start"] != operation["end"]:
            return  # counted when it is taken in
        replaced = self._results.get(operation["start"])
        if replaced is None:
            text = f"a tool/result replaces event {operation['start']}"
            self._say(f"{text}, expected that to be a tool/result")
        elif _without_content(replaced) != _without_content(event.data):
            text = f"a tool/result replaces event {operation['start']}"
            self._say(f"{text} and differs from it in more than its block's content")


def _without_content(data: JsonObject) -> JsonObject:
    message = data["message"]
    block = {**message["content"][0], "content": []}
    return {**data, "message": {**message, "content": [block]}}


def _source_problem(event: Event) -> str | None:
    """Say what is wrong with who wrote a message; its shape is sound."""
    if event.type == "user/message":
        source = event.data.get("source")
        expected = None
    elif event.type == "assistant/message":
        source = event.data["message"].get("source")
        expected = "model"
    elif event.type == "tool/result":
        source = event.data["message"]["source"]
        expected = "tool"
    else:
        return None
    kind = source.get("kind") if type(source) is dict else None
    if type(kind) is not str or expected not in (None, kind):
        wanted = "some text" if expected is None else shown(expected)
        return f"{event.type}: source.kind must be {wanted}, found {shown(kind)}"
    if expected == "model":
        for key in ("provider", "model"):
            if type(source.get(key)) is not str:
                found = shown(source.get(key))
                return f"{event.type}: source.{key} must be a string, found {found}"
    return None
