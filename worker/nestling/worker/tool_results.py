"""What a tool call comes to: the result that is logged and that the model reads.

A result is ``{"block": the tool-result block, "error"?, "meta"?}``, as the turn loop
takes it.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

from nestling.session.errors import JsonDomainError
from nestling.session.jsontext import Json, JsonObject, check, dumps
from nestling.wire.codec import size_problem

UNKNOWN_TOOL: Final = "UNKNOWN_TOOL"
"""The code of a call of a tool that the agent does not have."""

INVALID_ARGS: Final = "INVALID_ARGS"
"""The code of a call whose arguments do not fit the tool."""

TOOL_ERROR: Final = "TOOL_ERROR"
"""The code of a tool that raised, or returned what no result can hold."""

ABORTED: Final = "ABORTED"
"""The code of a call whose result was not waited for."""

NOT_STARTED: Final = "ABORTED_BEFORE_DISPATCH"
"""The code of a call that was not begun."""

LOSSY: Final[JsonObject] = {"lossyText": True}
"""The ``meta`` of a result whose bytes were not text and are shown with escapes."""


def tool_result(call_id: str, value: object) -> JsonObject:
    """Turn what a tool returned into the call's result.

    Args:
        call_id: the call's id, as the model gave it.
        value: text becomes one text block, None an empty one; bytes are read as UTF-8,
            undecodable ones shown as escapes (``meta`` says so, see ``LOSSY``); a list
            of text and image blocks is taken as it is; any other JSON value becomes its
            JSON text.

    Returns:
        The result; an error with the code ``TOOL_ERROR`` if `value` is none of these.
    """
    try:
        content, meta = _content(value)
    except JsonDomainError as error:
        text = f"the tool returned what no result can hold: {error}"
        return error_result(call_id, type(error).__name__, TOOL_ERROR, text)
    problem = size_problem(content)
    if problem is not None:
        text = f"the tool returned {problem}"
        return error_result(call_id, "ToolResultError", TOOL_ERROR, text)
    result: JsonObject = {"block": _block(call_id, content, False)}
    return {**result, "meta": meta} if meta else result


def error_result(call_id: str, name: str, code: str, text: str) -> JsonObject:
    """Build the result of a call that failed.

    Args:
        call_id: the call's id, as the model gave it.
        name: the kind of error, for the log; usually the exception's class.
        code: ``UNKNOWN_TOOL``, ``INVALID_ARGS`` or ``TOOL_ERROR``.
        text: what the model reads, after ``Error:``.
    """
    block = _block(call_id, [_text(f"Error: {text}")], True)
    return {"block": block, "error": {"name": name, "code": code}}


def _block(call_id: str, content: list[Json], is_error: bool) -> JsonObject:
    return {
        "type": "tool-result",
        "toolCallId": call_id,
        "content": content,
        "isError": is_error,
    }


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _content(value: Any) -> tuple[list[Json], JsonObject]:
    """Return content blocks and ``meta``.

    Raises:
        JsonDomainError: if `value` is neither text nor bytes nor JSON.
    """
    if value is None:
        return [_text("")], {}
    if isinstance(value, str):
        return [_text(str.__str__(value))], {}  # the text, whatever the subclass
    if isinstance(value, bytes | bytearray):
        return _decoded(bytes(value))
    if _is_blocks(value):
        # As deep as they will stand in the log's event, which has a limit.
        check({"message": {"content": [_block("", value, False)]}})
        # The tool may keep its list and change it; what was logged must stay.
        return deepcopy(value), {}
    check(value)
    return [_text(dumps(value).decode("utf-8"))], {}


def _decoded(value: bytes) -> tuple[list[Json], JsonObject]:
    try:
        return [_text(value.decode("utf-8"))], {}
    except UnicodeDecodeError:
        return [_text(value.decode("utf-8", "backslashreplace"))], dict(LOSSY)


def _is_blocks(value: Any) -> bool:
    """Tell content blocks from a list of objects that just happen to have a type.

    A provider refuses a block that it does not know, now and in every later request.
    """
    return type(value) is list and bool(value) and all(map(_is_block, value))


def _is_block(value: Any) -> bool:
    if type(value) is not dict:
        return False
    if value.get("type") == "text":
        return type(value.get("text")) is str
    return value.get("type") == "image" and "attachment" in value
