"""What agents are written with: the child's half of Nestling.

Each name is loaded when it is asked for, so that a worker pays only for what it runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nestling.session.errors import AgentError as AgentError
    from nestling.session.errors import ModelCallError as ModelCallError
    from nestling.worker.agent import Agent as Agent
    from nestling.worker.delegation_tools import subagent as subagent
    from nestling.worker.delegation_tools import subagent_fork as subagent_fork
    from nestling.worker.reply import Reply as Reply
    from nestling.worker.reply import Result as Result
    from nestling.worker.reply import Seen as Seen
    from nestling.worker.reply import ToolCall as ToolCall
    from nestling.worker.retry import NO_RETRY as NO_RETRY
    from nestling.worker.retry import RetryPolicy as RetryPolicy
    from nestling.worker.tools import Tool as Tool
    from nestling.worker.tools import tool as tool
    from nestling.worker.turn import Turn as Turn
    from nestling.worker.turn import current_turn as current_turn

_HOMES = {
    "Agent": "worker.agent",
    "AgentError": "session.errors",
    "ModelCallError": "session.errors",
    "NO_RETRY": "worker.retry",
    "Reply": "worker.reply",
    "Result": "worker.reply",
    "RetryPolicy": "worker.retry",
    "Seen": "worker.reply",
    "Tool": "worker.tools",
    "ToolCall": "worker.reply",
    "Turn": "worker.turn",
    "current_turn": "worker.turn",
    "subagent": "worker.delegation_tools",
    "subagent_fork": "worker.delegation_tools",
    "tool": "worker.tools",
}

__all__ = [
    "NO_RETRY",
    "Agent",
    "AgentError",
    "ModelCallError",
    "Reply",
    "Result",
    "RetryPolicy",
    "Seen",
    "Tool",
    "ToolCall",
    "Turn",
    "current_turn",
    "subagent",
    "subagent_fork",
    "tool",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"nestling.{_HOMES[name]}"), name)
