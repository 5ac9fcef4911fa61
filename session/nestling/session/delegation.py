"""The delegation tools: their names, their arguments, and what they return.

A parent's model delegates by a tool call and learns of its child only through that
call's result. The names and arguments are those of the recorded corpus, so that its
trees replay here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from nestling.session.errors import JsonDomainError, ToolArgumentError
from nestling.session.jsontext import JsonObject, loads
from nestling.session.outcome import Outcome

SPAWN_TOOL: Final = "subagent"
"""The tool whose child starts with no inherited events."""

FORK_TOOL: Final = "subagent_fork"
"""The tool whose child starts with the parent's balanced completed-turn prefix."""

DELEGATION_TOOLS: Final = frozenset({SPAWN_TOOL, FORK_TOOL})


class DelegationArguments(NamedTuple):
    """What a delegating tool call asks for.

    Attributes:
        description: a label for humans; empty where the model gave none.
        prompt: the child's first user message.
        background: the call asks not to be waited for. Whether that is possible is
            the caller's to judge.
    """

    description: str
    prompt: str
    background: bool


def parse_arguments(text: str) -> DelegationArguments:
    """Read the arguments of a delegating tool call, as the model wrote them.

    Raises:
        ToolArgumentError: if `text` is not JSON, not an object, or has no string
            ``prompt``.
    """
    try:
        value = loads(text)
    except JsonDomainError as error:
        raise ToolArgumentError(f"delegation arguments: {error}") from None
    if type(value) is not dict:
        raise ToolArgumentError(
            f"delegation arguments must be an object, found {value!r}"
        )
    prompt, description = value.get("prompt"), value.get("description")
    if type(prompt) is not str:
        raise ToolArgumentError(
            f"delegation argument prompt must be a string, found {prompt!r}"
        )
    label = description if type(description) is str else ""
    return DelegationArguments(label, prompt, value.get("run_in_background") is True)


def delegation_result(outcome: Outcome) -> JsonObject:
    """Return what the delegating tool call gets: ``content`` and ``isError``.

    The content is the text of the child's output; unless the child completed, a
    block that names its stop reason comes first and the result is an error.
    """
    content = [block for block in outcome.output if block.get("type") == "text"]
    if outcome.stop_reason == "completed":
        return {"content": content, "isError": False}
    notice = f"Error: the subagent ended with stop reason {outcome.stop_reason}"
    return {"content": [{"type": "text", "text": notice}, *content], "isError": True}
