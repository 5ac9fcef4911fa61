"""The tools by which a model delegates, as it is shown them.

They have no body here: the worker asks the hub for the child (see
``nestling.worker.endpoint``). Names and arguments are those of the recorded corpus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nestling.session.delegation import (
    FORK_TOOL,
    SPAWN_TOOL,
    DelegationArguments,
    parse_arguments,
)
from nestling.session.jsontext import JsonObject
from nestling.wire.messages import Context


@dataclass(frozen=True)
class DelegationTool:
    """A tool whose call starts a child session and returns what the child came to.

    Attributes:
        name: what the model calls.
        context: ``fork`` if the child starts with the parent's completed turns.
        description: what the model is told.
    """

    name: str
    context: Context
    description: str

    @property
    def parameters(self) -> JsonObject:
        """The JSON schema of the arguments."""
        return {
            "type": "object",
            "properties": {
                "description": {
                    "type": "string",
                    "description": "A label for the task, three to five words.",
                },
                "prompt": {
                    "type": "string",
                    "description": "The task: the child's first user message.",
                },
                "run_in_background": {
                    "type": "boolean",
                    "description": "Must be false: the call waits for the child.",
                    "default": False,
                },
            },
            "required": ["description", "prompt"],
            "additionalProperties": False,
        }

    def declaration(self) -> JsonObject:
        """Return what a model is shown: ``name``, ``description``, ``parameters``."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }

    def read(self, arguments: str) -> DelegationArguments:
        """Read the arguments that a model wrote.

        Raises:
            ToolArgumentError: saying what does not fit, for the model to read.
        """
        return parse_arguments(arguments)


subagent: Final = DelegationTool(
    SPAWN_TOOL,
    "spawn",
    "Give a task to a subagent that starts with nothing but your prompt. It works on "
    "its own and returns its final answer, not its steps. It sees nothing of this "
    "conversation, so put all it needs into the prompt. Several calls in one message "
    "run at the same time.",
)
"""Delegates to a fresh child."""

subagent_fork: Final = DelegationTool(
    FORK_TOOL,
    "fork",
    "Give a task to a subagent that knows this conversation up to the end of the last "
    "completed turn; the turn that is going on now it does not see. It works on its "
    "own and returns its final answer, not its steps. Several calls in one message run "
    "at the same time.",
)
"""Delegates to a child that starts with the conversation so far."""
