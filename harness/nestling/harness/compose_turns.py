"""The turns of one composed session: its steps, its model calls, and how they end.

Each method appends what the agent loop would log there, in the format's order.
"""

from __future__ import annotations

from collections.abc import Sequence

from nestling.harness.compose_rows import Call, Clock, Route, SessionRows
from nestling.harness.compose_stream import (
    block_chunks,
    finish_chunk,
    usage_chunk,
    usage_of,
)
from nestling.session.chunk import error_finish
from nestling.session.errors import AppendError
from nestling.session.event import Event
from nestling.session.fold import fold, fold_interrupted
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject
from nestling.session.repair import closers
from nestling.session.turns import TurnOutcome


class SessionTurns(SessionRows):
    """One session's rows, appended turn by turn (see ``SessionRows``)."""

    def __init__(
        self, header: Header, seed: Sequence[Event], route: Route, clock: Clock
    ) -> None:
        super().__init__(header, seed, route, clock)
        self._outcome = TurnOutcome()
        self._open_call: list[Event] = []

    # --- turns and steps -------------------------------------------------------

    def begin(self) -> None:
        """Start a turn without a step.

        Raises:
            AppendError: if a turn is open.
        """
        turns = self.log.turns
        if turns.turn is not None:
            raise AppendError(f"turn {turns.turn} is open in {self.id}")
        self._outcome = TurnOutcome()
        self.add("turn/start", {"turn": turns.last_turn + 1})

    def step(self, *prompts: str) -> None:
        """Start the turn's next step, ending the one before.

        Args:
            prompts: user messages that arrived for it.

        Raises:
            AppendError: if no turn is open, or a call is open or unanswered.
        """
        number = 1 + sum(e.type == "step/start" for e in self._turn_events())
        self._end_step()
        self.add("step/start", {"turn": self._check_turn(), "step": number})
        for prompt in prompts:
            self.user(prompt)
        self._request()

    def end(self) -> None:
        """End the turn, its reason told from what happened in it.

        Raises:
            AppendError: if no turn is open, or a call is open or unanswered.
        """
        turn = self._check_turn()
        self._end_step()
        self.add("turn/end", {"turn": turn, "reason": self._outcome.reason()})

    def abort(self, cause: str = "user") -> None:
        """End the turn by a cancel, in the middle of a call or not.

        Args:
            cause: who cancelled: ``user``, ``parent`` or ``disposed``.
        """
        content = fold_interrupted(event.data["chunk"] for event in self._open_call)
        if content:
            self._message(content, self._open_call, {"interrupted": True})
        self._open_call = []
        self._outcome.cancelled_by = {"kind": cause}
        self.end()

    def crash(self) -> None:
        """End the turn as a repair does after the worker died.

        Raises:
            AppendError: if no turn is open.
        """
        self._check_turn()
        self._open_call = []
        self._unanswered.clear()
        for event in closers(self.log.events):
            self.log.append(event)

    def _end_step(self) -> None:
        self._check_no_call()
        if self._unanswered:
            first = next(iter(self._unanswered))
            raise AppendError(f"{self.id} awaits the result of the call {first}")
        if self.log.turns.step is not None:
            self.add("step/end", self._place())

    # --- model calls and tools -------------------------------------------------

    def says(self, *blocks: JsonObject, usage: JsonObject | None = None) -> list[Call]:
        """Append a call that ran to its end, and its message.

        Args:
            blocks: what the model says.
            usage: the token usage; made up where it is None.

        Returns:
            the tool calls of the message, in order; none has been started.
        """
        kinds = {block["type"] for block in blocks}
        finish = "tool-calls" if "tool-call" in kinds else "stop"
        return self._complete(block_chunks(self._with_ids(blocks)), finish, usage)

    def cut_off(self, *blocks: JsonObject, usage: JsonObject | None = None) -> None:
        """Append a call that hit the output limit in the middle of its last block."""
        chunks = block_chunks(self._with_ids(blocks), is_cut=True)
        self._complete(chunks, "max-tokens", usage)

    def fails(self, code: str, *blocks: JsonObject, message: str = "no answer") -> None:
        """Append a call whose stream failed; ``retry``, ``step`` or ``end`` follows.

        Args:
            code: the failure's code, for example ``SERVER``.
            blocks: what the model said before, cut in the last block.
            message: the failure's text.
        """
        finish = error_finish({"message": message, "code": code})
        self._stream([*block_chunks(self._with_ids(blocks), is_cut=True), finish])
        self._open_call = []
        self._outcome.call_finished(finish["reason"])

    def retry(self, *, delay_ms: int = 500, max_retries: int = 5) -> None:
        """Append the trace of a retry; the next call of the step is the retry.

        Args:
            delay_ms: how long the loop waited.
            max_retries: how often it would try again at most.

        Raises:
            AppendError: if the last event is not the finish of a failed call.
        """
        last = self.log.events[-1]
        chunk = last.data["chunk"] if last.type == "assistant/chunk" else {}
        failure = chunk.get("reason", {}).get("failure")
        if failure is None:
            raise AppendError(f"the last event of {self.id} is no failed call")
        self._retry(delay_ms, failure, max_retries)

    def starts_saying(self, *blocks: JsonObject, chunks: int) -> None:
        """Append the beginning of a call; ``abort`` or ``crash`` follows.

        Args:
            blocks: what the model would have said.
            chunks: how many chunks arrived before the end.

        Raises:
            ValueError: if the blocks have fewer chunks.
        """
        streamed = block_chunks(self._with_ids(blocks))
        if not 0 <= chunks <= len(streamed):
            raise ValueError(f"{chunks} chunks of a call that has {len(streamed)}")
        self._stream(streamed[:chunks])

    def calls(self, *calls: Call) -> None:
        """Append the ``tool/call`` rows of calls that run side by side.

        A call that was not started here is started by its result or its child.
        """
        for call in calls:
            self._start(call)

    def _complete(
        self, chunks: list[JsonObject], finish: str, usage: JsonObject | None
    ) -> list[Call]:
        if usage is None:
            usage = usage_of(chunks, len(self.log.surface.nodes))
        self._stream([*chunks, usage_chunk(usage), finish_chunk(finish)])
        folded = fold(event.data["chunk"] for event in self._open_call)
        self._message(folded.blocks, self._open_call, {"usage": usage})
        self._open_call = []
        self._outcome.call_finished(folded.finish)
        place = self._place()
        calls = [
            Call(block["id"], block["name"], block["arguments"], **place, block=index)
            for index, block in enumerate(folded.blocks)
            if block["type"] == "tool-call"
        ]
        self._unanswered = {call.id: call for call in calls}
        return calls

    def _stream(self, chunks: Sequence[JsonObject]) -> None:
        self._check_no_call()
        step = self._place()["step"]
        messages = [e for e in self._turn_events() if e.type == "assistant/message"]
        if any(message.data["step"] == step for message in messages):
            raise AppendError(f"step {step} has its message in {self.id}")
        self._open_call = [
            self.add("assistant/chunk", {**self._place(), "chunk": chunk})
            for chunk in chunks
        ]

    def _check_no_call(self) -> None:
        if self._open_call:
            raise AppendError(f"a call is open in {self.id}: abort or crash it")

    def _with_ids(self, blocks: Sequence[JsonObject]) -> list[JsonObject]:
        return [
            {**block, "id": self._new_id("c")}
            if block["type"] == "tool-call" and "id" not in block
            else block
            for block in blocks
        ]
