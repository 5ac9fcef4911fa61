"""The tape agent: steers a session along its recording.

It appends the inputs where they stood and calls the loop's verbs in the order of the
markers; what those verbs write is the loop's own. Where the loop, given the chunks
that were served, cannot do what the next marker says, the recording and the routing
do not fit, and the loop raises.
"""

from __future__ import annotations

from nestling.session.errors import LoopError
from nestling.session.fold import fold
from nestling.session.jsontext import JsonObject
from nestling.session.place import Place
from nestling.worker.endpoint import Endpoint
from nestling.worker.incoming import IncomingCall
from nestling.worker.loop import Route
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


class TapePilot:
    """Walks one tape."""

    def __init__(self, endpoint: Endpoint, tape: list[Item]) -> None:
        self._endpoint = endpoint
        self._tape = tape
        self._position = 0
        self._inputs: list[CallInput] | None = None
        self._answer: list[JsonObject] = []
        self._delegated: list[Place] = []

    def advance(self) -> bool:
        """Walk on until something must arrive; return True at the end of the tape.

        Raises:
            LoopError: naming the place in the log, if the loop cannot follow.
        """
        while self._position < len(self._tape):
            item = self._tape[self._position]
            try:
                is_done = self._walk(item)
            except LoopError as error:
                seq = len(self._endpoint.loop.log)
                raise LoopError(
                    f"event {seq}: recorded {_kind(item)}, but {error}"
                ) from None
            if not is_done:
                return False
            self._position += 1
        return True

    def _walk(self, item: Item) -> bool:
        """Do what `item` says; return False if it has to wait."""
        loop = self._endpoint.loop
        match item:
            case Input():
                loop.append_input(item.content)
            case TurnStart():
                loop.start_turn()
                self._check_number("turn", loop.place[0], item.turn)
            case StepStart():
                loop.start_step()
                self._check_number("step", loop.place[1], item.step)
            case Call():
                return self._walk_call(item)
            case Summary():
                return self._walk_summary(item)
            case Message():
                loop.commit(item.id, _route(item))
            case ToolCall():
                self._endpoint.start_tool(loop.dispatch(item.block))
            case ToolResult():
                return self._walk_result(item)
            case Delegate():
                self._delegate(item)
            case Settle():
                return self._walk_settle()
            case StepEnd():
                loop.end_step()
            case TurnEnd():
                return self._walk_turn_end(item)
            case Hold():
                return False
        return True

    def _check_number(self, what: str, live: int, recorded: int) -> None:
        if live != recorded:
            raise LoopError(f"the loop's {what} is {live}, recorded was {recorded}")

    # --- calls -----------------------------------------------------------------

    def _walk_call(self, item: Call) -> bool:
        if self._inputs is None:
            self._endpoint.loop.begin_call()
            self._endpoint.stream("turn")
            self._inputs = list(item.inputs)
        call = self._endpoint.call
        if call is None:
            raise LoopError("the call is gone")
        inputs = self._inputs
        self._take_chunks(call, inputs)
        if not (call.is_cut or call.is_over):
            return False
        if inputs:
            raise LoopError(
                f"the call ended after {call.taken} chunks, "
                f"recorded was an input after {inputs[0].after}"
            )
        self._close(call)
        self._inputs = None
        return True

    def _take_chunks(self, call: IncomingCall, inputs: list[CallInput]) -> None:
        while True:
            while inputs and inputs[0].after == call.taken:
                self._endpoint.loop.append_input(inputs.pop(0).content)
            chunk = call.take()
            if chunk is None:
                return
            self._endpoint.log_chunk(chunk)

    def _close(self, call: IncomingCall) -> None:
        loop = self._endpoint.loop
        self._endpoint.close_call()
        if call.is_cut and call.cut_cause is not None:
            loop.cut_call(call.cut_cause)
        elif call.failure is not None:
            loop.fail_call(call.failure)
        else:
            loop.end_call()

    def _walk_summary(self, item: Summary) -> bool:
        """Make the event of a summary from the answer to its call."""
        call = self._endpoint.call or self._endpoint.stream("summary")
        while (chunk := call.take()) is not None:
            self._answer.append(chunk)
        if not call.is_over:
            return False
        if call.failure is not None:
            raise LoopError(f"the summary's call failed: {call.failure}")
        self._endpoint.close_call()
        folded, self._answer = fold(self._answer), []
        told: JsonObject = {"rawOutput": folded.blocks}
        if folded.usage is not None:
            told["usage"] = folded.usage
        data = {**item.content["data"], **told}
        self._endpoint.loop.append_input({**item.content, "data": data})
        return True

    # --- children of code ------------------------------------------------------

    def _delegate(self, item: Delegate) -> None:
        turn, step = self._endpoint.loop.place
        place = Place(turn, step, item.block, item.n, item.key)
        asked = {"callId": item.call_id, "prompt": item.prompt, "description": ""}
        self._endpoint.delegate(place, item.context, asked)
        self._delegated.append(place)

    def _walk_settle(self) -> bool:
        settled = self._endpoint.settled
        if any(place not in settled for place in self._delegated):
            return False
        for place in self._delegated:
            del settled[place]
        self._delegated.clear()
        return True

    # --- waiting ---------------------------------------------------------------

    def _walk_result(self, item: ToolResult) -> bool:
        endpoint = self._endpoint
        place = Place(*endpoint.loop.place, item.block)
        result = endpoint.settled.pop(place, None) or endpoint.results.pop(place, None)
        if result is None:
            return False
        endpoint.loop.collect(item.block, result, item.id)
        return True

    def _walk_turn_end(self, item: TurnEnd) -> bool:
        loop, cause = self._endpoint.loop, self._endpoint.cancelled
        if item.cancelled and not loop.is_cancelled:
            if cause is None:
                return False
            loop.cancel(cause)
        loop.end_turn(item.reason)
        return True


def _route(item: Message) -> Route | None:
    if item.provider is None or item.model is None:
        return None
    return Route(item.provider, item.model)


def _kind(item: Item) -> str:
    return str(item.__struct_config__.tag)
