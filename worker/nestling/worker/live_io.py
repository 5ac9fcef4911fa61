"""A live agent in its session: its code, as a task, over the endpoint.

The endpoint tells this pilot of every message that came in; the agent's code waits for
what it needs of them. What is logged, and when, follows from the calls that the code
makes and from what came back, and from nothing else; so a replay of the same code logs
the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from nestling.session.chunk import FAILED
from nestling.session.errors import (
    AgentError,
    AppendError,
    JsonDomainError,
    ModelCallError,
    described,
)
from nestling.session.event import Event
from nestling.session.jsontext import Json, JsonObject, check, copied, loads
from nestling.session.place import Place
from nestling.session.tracebacks_io import print_traceback
from nestling.session.turns import AGENT_ERROR
from nestling.wire.brief import Brief
from nestling.wire.codec import size_problem
from nestling.worker.agent import Agent, AnyAgent
from nestling.worker.children_io import Children
from nestling.worker.endpoint import Endpoint
from nestling.worker.incoming import IncomingCall
from nestling.worker.reply import Reply, Result, Seen, result_of
from nestling.worker.tool_calls import PendingTool
from nestling.worker.tool_results import ABORTED, NOT_STARTED
from nestling.worker.tool_runs_io import RUNNING, run_tool
from nestling.worker.tools import DelegationTool, error_result
from nestling.worker.turn import CURRENT, Call, Turn


class LiveSession:
    """One session of a live agent (a ``Pilot``).

    Attributes:
        id: the session's id.
        brief: what the agent was told at the session's creation.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        agent: object,
        reference: str,
        brief: Brief,
        proceed: Callable[[], None],
    ) -> None:
        """Prepare a session, on the running loop.

        Args:
            endpoint: the session's.
            agent: an ``Agent``, or an async function that takes a turn.
            reference: the agent's.
            brief: what it is told.
            proceed: sends what the endpoint has to say.
        """
        header: JsonObject = loads(endpoint.header)
        self.id: str = header["id"]
        self.brief = brief
        self._endpoint = endpoint
        self._agent = agent
        self._proceed = proceed
        self._changed = asyncio.Event()
        self._thread = threading.get_ident()
        self._turn: asyncio.Task[None] | None = None
        self._calling: asyncio.Task[Reply] | None = None
        self._is_stopped = self._is_closing = False
        self._turns = 0
        self._call: Call | None = None
        self._reply: Reply | None = None
        self._header = _last_header(endpoint.loop.log.events)
        self._children = Children(endpoint, reference, self.until)

    # --- the pilot ---------------------------------------------------------------

    def advance(self) -> bool:
        """Let the code look again at what it waits for."""
        self._changed.set()
        if self._turn is None:
            if self._endpoint.prompts:
                self._begin(self._endpoint.prompts.popleft())
        elif self._endpoint.cancelled is not None:
            self._stop()
        return self._turn is None and self._turns > 0

    def _begin(self, prompt: list[JsonObject]) -> None:
        self._is_stopped = self._is_closing = False
        self._turn = asyncio.create_task(self._run(prompt))
        self._turn.add_done_callback(self._ended)
        self._say_soon()

    def _say_soon(self) -> None:
        """Send what the code has logged, though it waits for nothing of ours."""
        asyncio.get_running_loop().call_soon(self._proceed)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            # By its own code; or the worker ends, then there is no time for this.
            self._turn = asyncio.create_task(self._run_out())
            self._turn.add_done_callback(self._ended)
            return
        self._turn = None
        self._turns += 1
        error = task.exception()
        if error is not None:
            raise error  # to the loop's handler: the worker ends, and says why
        self._proceed()

    def _stop(self) -> None:
        """Stop the agent's code: the turn was cancelled."""
        if self._is_stopped or self._turn is None:
            return
        self._is_stopped = True
        self._turn.cancel()
        if self._calling is not None and not self._endpoint.loop.has_open_call:
            self._calling.cancel()

    @property
    def _is_held(self) -> bool:
        """Whether the session is stopped from outside here, and has to wait for it."""
        is_place = len(self._endpoint.loop.log) in self.brief.holds
        return is_place and self._endpoint.cancelled is None

    async def _hold(self) -> None:
        """Wait to be stopped, if that happens here."""
        if self._is_held:
            await self.until(lambda: False)

    def _show(self) -> None:
        """Say what was logged, where whoever stops the session waits for it."""
        if self._is_held:
            self._proceed()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Say what there is to say, and wait until `condition` holds."""
        self._proceed()
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    # --- one turn ----------------------------------------------------------------

    async def _run(self, prompt: list[JsonObject]) -> None:
        loop = self._endpoint.loop
        loop.start_turn()
        turn = Turn(
            self,
            loop.place[0],
            _text(prompt),
            self._agent if isinstance(self._agent, Agent) else None,
        )
        CURRENT.set(turn)
        try:
            self._say(prompt, "user")
            code: Any = getattr(self._agent, "run_turn", self._agent)
            await code(turn)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not self._is_stopped:
                if task is not None and task.cancelling():
                    raise
                self._fail(error)  # the code's own: it waited for what was cancelled
        except ModelCallError as error:
            answer = loop.last_answer
            if answer is None or answer.finish["kind"] not in FAILED:
                self._fail(error)
            # Else the log holds the failure, and the turn ends with it.
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - user's code
            self._fail(error)
        await self._settle()

    async def _run_out(self) -> None:
        """End a turn whose code has cancelled the task that it runs in."""
        self._fail(asyncio.CancelledError())
        await self._settle()

    def _fail(self, error: BaseException) -> None:
        print_traceback(error)
        failure: JsonObject = {"message": described(error), "code": AGENT_ERROR}
        self._endpoint.loop.fail(failure)

    async def _settle(self) -> None:
        """Close the turn, whatever the agent's code has left open."""
        loop, endpoint = self._endpoint.loop, self._endpoint
        if self._is_held and not loop.is_cancelled:
            self._is_stopped = True  # there is nothing left to stop but this
            await self.until(lambda: endpoint.cancelled is not None)
        self._is_closing = True  # a task that was left behind may start nothing more
        if (calling := self._calling) is not None:
            await asyncio.wait([calling])
            if not calling.cancelled():
                calling.exception()
            self._calling = None
        if endpoint.cancelled is not None and not loop.is_cancelled:
            loop.cancel(endpoint.cancelled)
        for tool in loop.owed_tools:
            self._abort_tool(tool)
        if loop.is_in_step:
            loop.end_step()
        loop.end_turn()

    def _abort_tool(self, tool: PendingTool) -> None:
        code, text = ABORTED, "the tool call was aborted"
        if tool.seq is None:
            self._endpoint.loop.dispatch(tool.block)
            code, text = NOT_STARTED, "the tool call was not run"
        result = error_result(tool.call_id, "AbortError", code, text)
        self._collect(tool, result)

    def _new_id(self) -> str:
        return f"{self.id}.m{len(self._endpoint.loop.log)}"

    # --- calls -------------------------------------------------------------------

    async def stream(self, call: Call) -> Reply:
        """Make a model call; see ``Turn.stream``."""
        if self._calling is not None and not self._calling.done():
            raise AgentError(
                "a call is open: a session has one at a time, Turn.ask makes side calls"
            )
        await self._hold()
        owed = self._endpoint.loop.owed_tools
        if owed:
            raise AgentError(
                f"the last message calls {owed[0].name}, which has no result yet: "
                "Turn.run_tools comes before the next Turn.stream"
            )
        self._calling = asyncio.create_task(self._made(call))
        # The call goes on if its caller is cancelled: it is in the log.
        await asyncio.wait([self._calling])
        self._show()
        return self._calling.result()

    async def _made(self, call: Call) -> Reply:
        loop = self._endpoint.loop
        if loop.is_in_step:
            loop.end_step()
        loop.start_step()
        self._call = call
        self._log_header(call)
        retry = 0
        while (failure := await self._failure_of_call()) is not None:
            retry += 1
            if not call.retry.allows(failure, retry):
                raise ModelCallError(failure)
            await self._wait_to_retry(call, failure, retry)
        answer = loop.last_answer
        blocks = [] if answer is None else answer.blocks
        finish = "stop" if answer is None else str(answer.finish["kind"])
        usage = None if answer is None else answer.usage
        # Copies: what the agent's code does with them is not to change the log.
        self._reply = Reply(self._new_id(), copied(blocks), finish, copied(usage))
        if blocks or (usage is not None and not loop.is_cancelled):
            loop.commit(self._reply.id)
        if loop.is_cancelled:
            self._stop()
        return self._reply

    def _log_header(self, call: Call) -> None:
        config = {"provider": call.provider, "model": call.model}
        config.update(copied(call.options))
        header: JsonObject = {"config": config}
        if call.system is not None:
            header["system"] = call.system
        if call.tools:
            header["tools"] = [tool.declaration() for tool in call.tools.values()]
        if header != self._header:
            reason = "initial" if self._header is None else "changed"
            data = {"header": header, "reason": reason}
            self._endpoint.loop.append_input({"type": "request/header", "data": data})
            self._header = header

    async def _failure_of_call(self) -> JsonObject | None:
        """Make one call; return why it failed, if it did."""
        loop, endpoint = self._endpoint.loop, self._endpoint
        loop.begin_call()
        incoming = endpoint.stream("turn")
        while not (incoming.is_over or incoming.is_cut):
            await self.until(lambda: incoming.may_take or incoming.is_over)
            while (chunk := incoming.take()) is not None:
                endpoint.log_chunk(chunk)
        if self._is_held:
            await self.until(lambda: endpoint.cancelled is not None)
        return self._close(incoming)

    def _close(self, incoming: IncomingCall) -> JsonObject | None:
        loop = self._endpoint.loop
        self._endpoint.close_call()
        if incoming.is_cut and incoming.cut_cause is not None:
            loop.cut_call(incoming.cut_cause)
            return None
        if incoming.failure is not None:
            loop.fail_call(incoming.failure)
        else:
            loop.end_call()
        answer = loop.last_answer
        if answer is None or answer.finish["kind"] not in FAILED:
            return None
        failure: Json = answer.finish.get("failure")
        if type(failure) is not dict or not failure:
            return {"message": "the model call failed", "code": "UNKNOWN"}
        return failure

    async def _wait_to_retry(self, call: Call, failure: JsonObject, retry: int) -> None:
        loop = self._endpoint.loop
        turn, step = loop.place
        salt = f"{self.id} {turn} {step}"
        delay_ms = call.retry.delay_ms(failure, retry, salt)
        trace = {
            "retryId": f"{self.id}.r{len(loop.log)}",
            "turn": turn,
            "step": step,
        }
        policy = {
            "provider": call.provider,
            "mode": "normal",
            "policyKey": call.retry.key,
            "retry": retry,
            "maxRetries": call.retry.max_retries,
            "delayMs": delay_ms,
            "failure": failure,
        }
        loop.append_input({"type": "llm/retry", "data": {**trace, **policy}})
        self._proceed()
        await self._hold()
        if self.brief.waits:
            await asyncio.sleep(delay_ms / 1000)
        started = {**trace, "retry": retry}
        loop.append_input({"type": "llm/retry-started", "data": started})

    # --- tools -------------------------------------------------------------------

    async def run_tools(self, reply: Reply) -> list[Result]:
        """Run the tools of a message; see ``Turn.run_tools``."""
        loop = self._endpoint.loop
        if reply is not self._reply:
            raise AgentError("run_tools takes the message of the last stream()")
        await self._hold()
        owed = loop.owed_tools
        if len(owed) != len(reply.tool_calls) or any(t.seq is not None for t in owed):
            raise AgentError("the tools of this message have run")
        running: list[asyncio.Task[JsonObject]] = []
        results = []
        try:
            # All are in the log before the first is asked for: one commit for them.
            for called in [loop.dispatch(tool.block) for tool in owed]:
                self._ask(called)
            running += [asyncio.create_task(self._result(tool)) for tool in owed]
            for tool, task in zip(owed, running, strict=True):
                if not task.done():
                    self._say_soon()  # what those before it came to does not wait
                body = await task
                self._collect(tool, body)
                results.append(result_of(body))
                self._proceed()  # it is to be durable though others still run
        except BaseException:
            self._give_up_tools()
            raise
        finally:
            for task in running:
                task.cancel()
        return results

    def _give_up_tools(self) -> None:
        """Answer what the code does not wait for any more, so that it may go on.

        Where it is the turn that is stopped, its end does so.
        """
        if not self._is_stopped:
            for tool in self._endpoint.loop.owed_tools:
                self._abort_tool(tool)

    def _ask(self, tool: PendingTool) -> None:
        """Ask the hub for a child, or how the call gets its result."""
        box = {} if self._call is None else self._call.tools
        if isinstance(box.get(tool.name), DelegationTool):
            self._children.delegate_by(tool, _subagent(self._agent))
        else:
            self._endpoint.ask_tool(tool)

    async def _result(self, tool: PendingTool) -> JsonObject:
        endpoint = self._endpoint
        place = Place(*endpoint.loop.place, tool.block)
        await self.until(lambda: place in endpoint.results or place in endpoint.settled)
        if place in endpoint.settled:
            return endpoint.settled.pop(place)
        recorded = endpoint.results.pop(place)
        if recorded is not None:
            return recorded
        box = {} if self._call is None else self._call.tools
        return await run_tool(box, tool, self.brief.tool_timeout)

    def _collect(self, tool: PendingTool, body: JsonObject) -> None:
        self._endpoint.loop.collect(tool.block, body, self._new_id())
        self._show()

    # --- children ----------------------------------------------------------------

    async def delegate(
        self,
        prompt: str,
        key: str | None,
        fork: bool,
        agent: AnyAgent | None,
        description: str,
        options: JsonObject,
    ) -> Result:
        """Delegate by code; see ``Turn.delegate``."""
        asked: JsonObject = {"prompt": prompt, "description": description}
        if options:
            asked["options"] = options
        return await self._children.delegate(asked, key, fork, agent, RUNNING.get())

    # --- messages ----------------------------------------------------------------

    def messages(self) -> list[Seen]:
        """Return what the model sees; see ``Turn.messages``."""
        log = self._endpoint.loop.log
        return [_seen(log.events[seq]) for seq in log.surface.nodes]

    def append(self, content: str | Sequence[JsonObject], kind: str) -> int:
        """Add a message; see ``Turn.append``."""
        self._require_quiet()
        self._say_soon()
        return self._say(_blocks(content), kind)

    def replace(
        self, first: int, last: int, content: str | Sequence[JsonObject]
    ) -> int:
        """Put a message in the place of others; see ``Turn.replace``."""
        self._require_quiet()
        self._say_soon()
        nodes = self._endpoint.loop.log.surface.nodes
        if first not in nodes or last not in nodes[nodes.index(first) :]:
            raise AgentError(
                f"the model sees no messages from {first} to {last}, "
                f"it sees those at {', '.join(map(str, nodes))}"
            )
        replaced = nodes[nodes.index(first) : nodes.index(last) + 1]
        operation: JsonObject = {"op": "replace", "start": first, "end": last}
        return self._say(_blocks(content), "agent", operation, replaced)

    def _say(
        self,
        content: list[JsonObject],
        kind: str,
        operation: str | JsonObject = "append",
        sources: list[int] | None = None,
    ) -> int:
        message = {
            "id": self._new_id(),
            "role": "user",
            "content": content,
            "source": {"kind": kind},
        }
        event: JsonObject = {
            "type": "user/message",
            "data": message,
            "surfaceOp": operation,
        }
        if sources is not None:
            event["sourceEventSeqs"] = sources
        problem = size_problem(content)
        if problem is not None:
            raise AgentError(f"the message is {problem}")
        try:
            seq = self._endpoint.loop.append_input(event).seq
        except AppendError as error:
            raise AgentError(f"the message cannot be logged: {error}") from None
        self._show()
        return seq

    # --- when it may -------------------------------------------------------------

    def require(self, turn: int) -> None:
        """Check that a turn is open, and that this is the session's thread.

        Raises:
            AgentError: if not.
        """
        if threading.get_ident() != self._thread:
            raise AgentError(
                "a turn is used in the event loop of its session only: a tool in a "
                "thread says anyio.from_thread.run(turn.delegate, …)"
            )
        if self._is_closing or self._endpoint.loop.place[0] != turn:
            raise AgentError("the turn is over: await what it starts before it ends")

    def _require_quiet(self) -> None:
        if self._calling is not None and not self._calling.done():
            raise AgentError("a message cannot be added while a call is open")
        if RUNNING.get() is not None:
            raise AgentError("a tool adds no messages: what it has to say, it returns")


def _subagent(agent: object) -> AnyAgent | None:
    return agent.subagent if isinstance(agent, Agent) else None


def _blocks(content: str | Sequence[JsonObject]) -> list[JsonObject]:
    if isinstance(content, str):
        return [{"type": "text", "text": str.__str__(content)}]
    blocks = list(content)
    try:
        check(blocks)
    except JsonDomainError as error:
        raise AgentError(f"the message cannot be logged: {error}") from None
    copy: list[JsonObject] = copied(blocks)
    return copy


def _text(content: Sequence[JsonObject]) -> str:
    return "".join(b["text"] for b in content if b["type"] == "text")


def _seen(event: Event) -> Seen:
    data = event.data
    message = data if event.type == "user/message" else data["message"]
    return Seen(event.seq, message["role"], copied(message["content"]))


def _last_header(events: Sequence[Event]) -> JsonObject | None:
    for event in reversed(events):
        if event.type == "request/header":
            header: JsonObject = event.data["header"]
            return header
    return None
