"""The shapes of the events that the agent loop makes and that replay stands on.

Other event types are opaque. Recordings may hold older shapes; whoever needs one of
these asks here first, so that a malformed event is one clear error and not a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from nestling.session.chunk import chunk_problem
from nestling.session.errors import AppendError
from nestling.session.event import Event
from nestling.session.jsontext import Json, JsonObject, is_int0, shown

LONGEST_NAME: Final = 256
"""Names of providers and models have at most so many characters."""

_Check: TypeAlias = Callable[[JsonObject], str | None]


def shape_problem(event: Event) -> str | None:
    """Say what is wrong with an event's data, or None if nothing is."""
    check = _CHECKS.get(event.type)
    if check is None:
        return None
    if type(event.data) is not dict:
        return f"data of {event.type} must be an object"
    problem = check(event.data)
    return None if problem is None else f"{event.type}: {problem}"


def check_shape(event: Event) -> None:
    """Check an event's data.

    Raises:
        AppendError: naming the type, the field, what was found and expected.
    """
    problem = shape_problem(event)
    if problem is not None:
        raise AppendError(problem)


def _numbers(*keys: str) -> _Check:
    def check(data: JsonObject) -> str | None:
        for key in keys:
            if not is_int0(data.get(key)):
                return f"{key} must be an integer >= 0, found {shown(data.get(key))}"
        return None

    return check


_place = _numbers("turn", "step")


def _turn_end(data: JsonObject) -> str | None:
    reason = data.get("reason")
    if type(reason) is not dict or type(reason.get("kind")) is not str:
        return f"reason must be an object with a kind, found {shown(reason)}"
    if reason["kind"] == "aborted" and type(reason.get("reason", {})) is not dict:
        return f"the cause of an abort must be an object, found {shown(reason)}"
    return _numbers("turn")(data)


def _chunk(data: JsonObject) -> str | None:
    return _place(data) or chunk_problem(data.get("chunk"))


def _assistant_message(data: JsonObject) -> str | None:
    return _place(data) or _message_problem(data.get("message"), "assistant")


def _user_message(data: JsonObject) -> str | None:
    return _message_problem(data, "user")


def _message_problem(message: Json, role: str) -> str | None:
    if type(message) is not dict:
        return "message must be an object"
    if type(message.get("id")) is not str or not message["id"]:
        return (
            f"message id must be a non-empty string, found {shown(message.get('id'))}"
        )
    if message.get("role") != role:
        return f"message role must be {role!r}, found {shown(message.get('role'))}"
    content = message.get("content")
    if type(content) is not list:
        return "message content must be a list of blocks"
    return next(filter(None, map(block_problem, content)), None)


def block_problem(block: Json) -> str | None:
    """Say what keeps a value from being a message's content block, if anything."""
    if type(block) is not dict or type(block.get("type")) is not str:
        return f"a content block must be an object with a type, found {shown(block)}"
    if block["type"] == "tool-call":
        for key in ("id", "name", "arguments"):
            if type(block.get(key)) is not str:
                return f"{key} of a tool-call block must be a string"
    return None


def _tool_call(data: JsonObject) -> str | None:
    for key in ("callId", "name", "arguments"):
        if type(data.get(key)) is not str:
            return f"{key} must be a string, found {shown(data.get(key))}"
    return _place(data)


def _tool_result(data: JsonObject) -> str | None:
    problem = _place(data) or _message_problem(data.get("message"), "user")
    if problem is not None:
        return problem
    message = data["message"]
    source = message.get("source")
    if type(source) is not dict or type(source.get("callId")) is not str:
        return "message source must name a callId"
    blocks = message["content"]
    if len(blocks) != 1 or blocks[0]["type"] != "tool-result":
        return "message must hold exactly one tool-result block"
    if blocks[0].get("toolCallId") != source["callId"]:
        return (
            f"the block answers {shown(blocks[0].get('toolCallId'))}, "
            f"the message {shown(source['callId'])}"
        )
    return None


def _request_header(data: JsonObject) -> str | None:
    header = data.get("header")
    config = header.get("config") if type(header) is dict else None
    if type(config) is not dict:
        return "header must be an object with a config"
    for key in ("provider", "model"):
        name = config.get(key)
        if type(name) is not str or len(name) > LONGEST_NAME or not _is_whole(name):
            return (
                f"config.{key} must be a string of at most {LONGEST_NAME} "
                f"whole characters, found {shown(name)}"
            )
    return None


def _is_whole(text: str) -> bool:
    """Tell whether a text can leave this program, which lone surrogates cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


_CHECKS: Final[dict[str, _Check]] = {
    "turn/start": _numbers("turn"),
    "turn/end": _turn_end,
    "step/start": _place,
    "step/end": _place,
    "assistant/chunk": _chunk,
    "assistant/message": _assistant_message,
    "user/message": _user_message,
    "tool/call": _tool_call,
    "tool/result": _tool_result,
    "request/header": _request_header,
}
