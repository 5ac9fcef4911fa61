"""Running a tool's body: a coroutine in the worker's loop, a plain function in a thread."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import anyio.to_thread

from nestling.session.errors import ToolArgumentError, described
from nestling.session.jsontext import JsonObject
from nestling.session.tracebacks_io import print_traceback
from nestling.worker.tool_calls import PendingTool
from nestling.worker.tools import (
    INVALID_ARGS,
    TOOL_ERROR,
    UNKNOWN_TOOL,
    AnyTool,
    DelegationTool,
    Tool,
    error_result,
    tool_result,
)

TOOL_TIMEOUT: Final = "TOOL_TIMEOUT"
"""The code of a result that did not come in time."""

RUNNING: Final[ContextVar[PendingTool | None]] = ContextVar(
    "nestling_tool", default=None
)
"""The tool call whose body the calling code is in."""


async def run_tool(
    tools: dict[str, AnyTool], call: PendingTool, seconds: float | None = None
) -> JsonObject:
    """Run a tool call; whatever it comes to is a result that the model can read.

    A plain function that takes too long is not waited for any more; its thread goes on
    until it returns, or the worker ends.

    Args:
        tools: the tools that the model was shown, by name.
        call: what the model asks for.
        seconds: how long it may take; None for any time.
    """
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(tools) or "none"
        text = f"there is no tool {call.name!r}, the tools are: {known}"
        return error_result(call.call_id, "UnknownToolError", UNKNOWN_TOOL, text)
    try:
        arguments: Any = tool.read(call.arguments)
    except ToolArgumentError as error:
        name = type(error).__name__
        return error_result(call.call_id, name, INVALID_ARGS, str(error))
    if isinstance(tool, DelegationTool):
        text = "run_in_background must be false: a delegation waits for its child"
        return error_result(call.call_id, "ToolArgumentError", INVALID_ARGS, text)
    RUNNING.set(call)
    try:
        async with asyncio.timeout(seconds) as bound:
            return tool_result(call.call_id, await _called(tool, arguments))
    except TimeoutError as error:
        if not bound.expired():
            return _failed(call, error)  # the tool's own
        text = f"the tool did not return within {seconds:g} s"
        return error_result(call.call_id, "ToolTimeoutError", TOOL_TIMEOUT, text)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # the turn was stopped, not something in the tool
        return _failed(call, error)
    except BaseException as error:  # noqa: BLE001 - it is the user's code
        return _failed(call, error)


def _failed(call: PendingTool, error: BaseException) -> JsonObject:
    print_traceback(error)
    name = type(error).__name__
    return error_result(call.call_id, name, TOOL_ERROR, described(error))


async def _called(tool: Tool[..., Any], arguments: dict[str, Any]) -> object:
    call = partial(tool.function, **arguments)
    if tool.is_async:
        return await call()
    return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
