"""Tools: plain functions that a model may call.

::

    @tool
    def add(first: int, second: int = 1) -> int:
        \"\"\"Add two numbers.

        Args:
            first: where to start.
            second: how much to add.
        \"\"\"
        return first + second

The model sees the name, the docstring's first paragraph and a JSON schema made from the
type hints. What it writes is checked against them before the function runs; what the
function returns becomes text (see ``nestling.worker.tool_results``). A ``def`` runs in
a thread, an ``async def`` in the worker's event loop.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, overload

from nestling.session.delegation import DELEGATION_TOOLS
from nestling.session.errors import ToolSignatureError
from nestling.session.jsontext import JsonObject
from nestling.worker.delegation_tools import DelegationTool, subagent, subagent_fork
from nestling.worker.docstrings import summary
from nestling.worker.tool_results import (
    INVALID_ARGS,
    TOOL_ERROR,
    UNKNOWN_TOOL,
    error_result,
    tool_result,
)
from nestling.worker.tool_signature import Signature

__all__ = [
    "INVALID_ARGS",
    "TOOL_ERROR",
    "UNKNOWN_TOOL",
    "AnyTool",
    "DelegationTool",
    "Tool",
    "error_result",
    "subagent",
    "subagent_fork",
    "tool",
    "tool_result",
    "toolbox",
]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The names that model providers accept."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A function that a model may call; Python may still call it, too.

    Attributes:
        name: what the model calls.
        description: what the model is told.
        function: the function itself.
        is_async: whether it is an ``async def``.
    """

    name: str
    description: str
    function: Callable[P, R]
    is_async: bool
    _signature: Signature = field(repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, without any check of the arguments."""
        return self.function(*args, **kwargs)

    @property
    def parameters(self) -> JsonObject:
        """The JSON schema of the arguments: an object's, self-contained."""
        return self._signature.schema

    def declaration(self) -> JsonObject:
        """Return what a model is shown: ``name``, ``description``, ``parameters``."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }

    def read(self, arguments: str) -> dict[str, Any]:
        """Read the arguments that a model wrote, for ``function(**arguments)``.

        Args:
            arguments: a JSON object; nothing at all stands for an empty one.

        Raises:
            ToolArgumentError: saying what does not fit, and where, for the model.
        """
        return self._signature.read(arguments)


AnyTool: TypeAlias = Tool[..., Any] | DelegationTool
"""What an agent's list of tools holds."""


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
) -> Any:
    """Make a function a tool: ``@tool``, or ``@tool(name=…, description=…)``.

    Args:
        function: a ``def`` or an ``async def``; every parameter has a type hint.
        name: what the model calls; the function's name by default. 1 to 64 letters,
            digits, ``_`` and ``-``.
        description: what the model is told; the docstring's first paragraph by default.

    Raises:
        ToolSignatureError: naming the tool and the parameter that cannot be used.
    """
    if function is None:
        return lambda decorated: _made(decorated, name, description)
    return _made(function, name, description)


def _made(
    function: Callable[..., Any], name: str | None, description: str | None
) -> Tool[..., Any]:
    _check_function(function)
    called = function.__name__ if name is None else name
    _check_name(called)
    if description is None:
        description = summary(inspect.getdoc(function) or "")
    _check_description(called, description)
    is_async = inspect.iscoroutinefunction(function)
    return Tool(called, description, function, is_async, Signature(function, called))


def _check_function(function: object) -> None:
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise ToolSignatureError(
            f"a tool is made of a def or an async def, found {function!r}"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ToolSignatureError(
            f"tool {function.__name__} yields, but a tool returns its result once"
        )


def _check_name(name: object) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ToolSignatureError(
            f"a tool cannot be named {name!r}, "
            "expected 1 to 64 characters of A-Z, a-z, 0-9, _ and -"
        )
    if name in DELEGATION_TOOLS:
        raise ToolSignatureError(
            f"a tool cannot be named {name}, which is the name of a delegation tool"
        )


def _check_description(name: str, description: object) -> None:
    if not isinstance(description, str):
        raise ToolSignatureError(
            f"description of tool {name} must be a string, found {description!r}"
        )


def toolbox(tools: Iterable[AnyTool]) -> dict[str, AnyTool]:
    """Return an agent's tools by name, in the order given.

    Raises:
        ToolSignatureError: if two have one name, or one is no tool.
    """
    box: dict[str, AnyTool] = {}
    for each in tools:
        if not isinstance(each, Tool | DelegationTool):
            raise ToolSignatureError(
                f"an agent's tools are functions marked with @tool, found {each!r}"
            )
        if each.name in box:
            raise ToolSignatureError(f"an agent has two tools named {each.name}")
        box[each.name] = each
    return box
