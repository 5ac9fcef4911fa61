"""The turn loop: turn, step, call, message, tools, as verbs that check their order.

One loop drives every session, recorded or live. A *pilot* says which verb comes next
(a live agent by its policy, a tape by its markers); what each verb writes into the
log follows from what happened and from nothing else. A verb that cannot follow the
last one raises, so a pilot that was told wrong is noticed at the first wrong step.

The order inside a turn::

    start_turn (start_step (call (commit (dispatch* collect*)?)?)* end_step)* end_turn

where a call that failed may be followed by another one in the same step (a retry).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from nestling.session.chunk import error_finish
from nestling.session.errors import LoopError
from nestling.session.event import Event
from nestling.session.fold import STOP, Folded, fold, fold_interrupted
from nestling.session.jsontext import JsonObject
from nestling.session.log import SessionLog
from nestling.session.turns import TurnOutcome, is_agent_error
from nestling.worker.tool_calls import PendingTool, ToolBatch


class Route(NamedTuple):
    """Which model a session talks to, as its log says."""

    provider: str
    model: str


class _Call:
    """The call that is open or was last in this step."""

    def __init__(self) -> None:
        self.chunks: list[JsonObject] = []
        self.seqs: list[int] = []
        self.is_open = True
        self.is_cut = False
        self.folded: Folded | None = None

    @property
    def has_failed(self) -> bool:
        return self.folded is not None and self.folded.finish["kind"] in (
            "error",
            "aborted",
        )


class TurnLoop:
    """The loop of one session, over its log.

    Attributes:
        log: the session's log; only the loop's verbs append to it.
    """

    def __init__(self, log: SessionLog, clock: Callable[[], int]) -> None:
        """Start with a log whose last turn is closed.

        Args:
            log: the session's log.
            clock: returns the time in epoch milliseconds.
        """
        self.log = log
        self._clock = clock
        self._turn: TurnOutcome | None = None
        self._step = 0
        self._calls_in_turn = 0
        self._call: _Call | None = None
        self._tools: ToolBatch | None = None

    # --- where the loop stands -------------------------------------------------

    @property
    def route(self) -> Route:
        """The provider and model that the next call goes to."""
        return Route(*self.log.surface.route)

    @property
    def place(self) -> tuple[int, int]:
        """The numbers of the open turn and step (0 where none is open)."""
        return self.log.turns.turn or 0, self.log.turns.step or 0

    @property
    def is_cancelled(self) -> bool:
        """Whether the open turn was cancelled."""
        return self._turn is not None and self._turn.cancelled_by is not None

    @property
    def is_in_turn(self) -> bool:
        """Whether a turn is open."""
        return self._turn is not None

    @property
    def is_in_step(self) -> bool:
        """Whether a step is open."""
        return self._in_step

    @property
    def has_open_call(self) -> bool:
        """Whether a model call is open."""
        return self._call is not None and self._call.is_open

    @property
    def last_answer(self) -> Folded | None:
        """What the step's last call came to; None if it is open or there was none."""
        return None if self._call is None else self._call.folded

    @property
    def owed_tools(self) -> list[PendingTool]:
        """The tool calls of the step's message that have no result yet, in order."""
        return [] if self._tools is None else self._tools.owed

    @property
    def logged_chunks(self) -> int:
        """How many chunks of the open call are in the log."""
        return 0 if self._call is None else len(self._call.chunks)

    # --- turns and steps -------------------------------------------------------

    def start_turn(self) -> None:
        """Open the next turn."""
        self._require(self._turn is None, "a turn start")
        self._turn, self._step, self._calls_in_turn = TurnOutcome(), 0, 0
        self._add("turn/start", {"turn": self.log.turns.last_turn + 1})

    def start_step(self) -> None:
        """Open the next step of the turn."""
        self._require(self._turn is not None and not self._in_step, "a step start")
        self._step += 1
        self._call = self._tools = None
        self._add("step/start", {"turn": self._turn_number, "step": self._step})

    def end_step(self) -> None:
        """Close the step; everything in it must be answered."""
        self._require(self._in_step, "a step end")
        self._require(self._call is None or self._is_settled(self._call), "a step end")
        if self._tools is not None:
            self._require(self._tools.is_answered, "a step end")
        self._add("step/end", {"turn": self._turn_number, "step": self._step})

    def end_turn(self, reason: JsonObject | None = None) -> None:
        """Close the turn, for the reason that follows from what happened in it.

        Args:
            reason: given where something outside of the loop decided: the turn was
                ``blocked``, or made no call at all.
        """
        turn = self._turn
        if turn is None or self._in_step:
            raise self._error("a turn end")
        if reason is not None and not self._may_be_told(reason):
            raise LoopError(
                f"turn {self._turn_number} called a model, "
                f"so it cannot be told that it ended {reason['kind']!r}"
            )
        data = {"turn": self._turn_number, "reason": reason or turn.reason()}
        self._turn = None
        self._add("turn/end", data)

    def _may_be_told(self, reason: JsonObject) -> bool:
        is_outside = reason["kind"] == "blocked" or is_agent_error(reason)
        return is_outside or self._calls_in_turn == 0

    def fail(self, failure: JsonObject) -> None:
        """Take note that the agent's own code has failed, and the turn with it."""
        if self._turn is None:
            raise self._error("a failure")
        self._turn.agent_failure = failure

    def cancel(self, cause: JsonObject) -> None:
        """Take note that the turn was cancelled, while no call is open."""
        turn = self._turn
        if turn is None or (self._call is not None and self._call.is_open):
            raise self._error("a cancel")
        turn.cancelled_by = cause

    # --- one call --------------------------------------------------------------

    def begin_call(self) -> None:
        """Open the step's first call, or another one after it failed."""
        again = self._call is not None and self._call.has_failed
        self._require(self._in_step and (self._call is None or again), "a model call")
        self._call = _Call()
        self._calls_in_turn += 1

    def add_chunk(self, chunk: JsonObject) -> Event:
        """Log the open call's next chunk."""
        call = self._open_call("a chunk")
        data = {"turn": self._turn_number, "step": self._step, "chunk": chunk}
        event = self._add("assistant/chunk", data)
        call.chunks.append(chunk)
        call.seqs.append(event.seq)
        return event

    def end_call(self) -> None:
        """Close the open call, whose stream ended."""
        call = self._open_call("the end of a call")
        call.is_open = False
        call.folded = fold(call.chunks)
        self._outcome.call_finished(call.folded.finish)

    def fail_call(self, failure: JsonObject) -> Event:
        """Close the open call, whose stream failed, with a finish of its own."""
        event = self.add_chunk(error_finish(failure))
        self.end_call()
        return event

    def cut_call(self, cause: JsonObject) -> None:
        """Close the open call because it was cancelled; the turn is, too."""
        call = self._open_call("a cut")
        call.is_open, call.is_cut = False, True
        usages = [c["usage"] for c in call.chunks if c["type"] == "usage"]
        usage = usages[-1] if usages else None
        call.folded = Folded(fold_interrupted(call.chunks), STOP, usage, None)
        self._outcome.cancelled_by = cause

    def commit(self, message_id: str, route: Route | None = None) -> None:
        """Log the assistant message that the last call came to.

        Args:
            message_id: the message's id.
            route: who answered; what the log's last request header says by default.
        """
        call = self._call
        if call is None or call.is_open or call.has_failed or call.folded is None:
            raise self._error("an assistant message")
        self._require(self._tools is None, "an assistant message")
        if call.is_cut and not call.folded.blocks:
            raise LoopError("the cut call left nothing readable, so it has no message")
        self._add(
            "assistant/message",
            self._message_data(call, call.folded, message_id, route or self.route),
            sourceEventSeqs=call.seqs,
        )
        self._tools = ToolBatch(call.folded.blocks)

    def _message_data(
        self, call: _Call, folded: Folded, message_id: str, route: Route
    ) -> JsonObject:
        source: JsonObject = {"kind": "model", **route._asdict()}
        if folded.replay_state is not None:
            source["replayState"] = folded.replay_state
        message = {
            "id": message_id,
            "role": "assistant",
            "content": folded.blocks,
            "source": source,
        }
        data: JsonObject = {
            "turn": self._turn_number,
            "step": self._step,
            "message": message,
        }
        if folded.usage is not None:
            data["usage"] = folded.usage
        if call.is_cut:
            data["interrupted"] = True
        return data

    # --- tools -----------------------------------------------------------------

    def dispatch(self, block: int) -> PendingTool:
        """Log the tool call of a block of the message, and return it."""
        tool = self._batch("a tool call").take(block)
        data = {
            "turn": self._turn_number,
            "step": self._step,
            "callId": tool.call_id,
            "name": tool.name,
            "arguments": tool.arguments,
        }
        tool.seq = self._add("tool/call", data).seq
        return tool

    def collect(self, block: int, result: JsonObject, message_id: str) -> None:
        """Log the result of a tool call.

        Args:
            block: the block of the call.
            result: ``{"block": the tool-result block, "error"?, "meta"?}``.
            message_id: the id of the message that carries it.
        """
        tool = self._batch("a tool result").answer(block, result)
        message = {
            "id": message_id,
            "role": "user",
            "source": {"kind": "tool", "callId": tool.call_id},
            "content": [result["block"]],
        }
        data = {"turn": self._turn_number, "step": self._step, "message": message}
        data.update({key: result[key] for key in ("error", "meta") if key in result})
        self._add("tool/result", data, sourceEventSeqs=[tool.seq])

    # --- inputs ----------------------------------------------------------------

    def append_input(self, content: JsonObject) -> Event:
        """Log an event that the loop does not itself produce."""
        return self.log.add(content, self._clock())

    # --- inside ----------------------------------------------------------------

    @property
    def _in_step(self) -> bool:
        return self.log.turns.step is not None

    @property
    def _turn_number(self) -> int:
        return self.log.turns.last_turn

    @property
    def _outcome(self) -> TurnOutcome:
        if self._turn is None:
            raise self._error("a call")
        return self._turn

    def _is_settled(self, call: _Call) -> bool:
        """Tell whether a call owes the log nothing more."""
        if call.is_open or call.folded is None:
            return False
        has_message = self._tools is not None
        if call.is_cut:
            return has_message or not call.folded.blocks
        is_empty = not call.folded.blocks and call.folded.usage is None
        return has_message or call.has_failed or is_empty

    def _open_call(self, what: str) -> _Call:
        if self._call is None or not self._call.is_open:
            raise self._error(what)
        return self._call

    def _batch(self, what: str) -> ToolBatch:
        if self._tools is None or not self._in_step:
            raise self._error(what)
        return self._tools

    def _add(
        self, kind: str, data: JsonObject, *, sourceEventSeqs: object = None
    ) -> Event:
        content: JsonObject = {"type": kind, "data": data}
        if sourceEventSeqs is not None:
            content["sourceEventSeqs"] = sourceEventSeqs
            content["surfaceOp"] = "append"
        return self.log.add(content, self._clock())

    def _require(self, allowed: bool, what: str) -> None:
        if not allowed:
            raise self._error(what)

    def _error(self, what: str) -> LoopError:
        return LoopError(f"{what} cannot follow here: {self._state()}")

    def _state(self) -> str:
        if self._turn is None:
            return "no turn is open"
        if not self._in_step:
            return f"turn {self._turn_number} has no open step"
        where = f"turn {self._turn_number}, step {self._step}"
        if self._call is None:
            return f"{where} has not called the model"
        if self._call.is_open:
            return f"the call of {where} is open after {len(self._call.chunks)} chunks"
        if self._tools is None:
            return f"the call of {where} has failed or awaits its message"
        return f"{where} {self._tools.state()}"
