"""What the model says while the example is recorded."""

from __future__ import annotations

from nestling.harness import Answer, ScriptedModel, fork_call
from nestling.session.request import Request

FIRST = (
    "The harbour code is LANTERN. Have a helper that knows our conversation name it."
)
AGAIN = "Have it named again."
RECALL = "Which harbour code was noted? One word."


def recall(request: Request) -> str:
    """Name the code, if the conversation that was inherited tells it."""
    return "LANTERN" if FIRST in str(request.messages) else "None that I know of."


def model() -> ScriptedModel:
    """Return the model."""
    ask = fork_call("Recall the code", RECALL)
    return ScriptedModel(
        by_prompt={
            FIRST: [
                Answer("I ask a helper.", calls=[ask]),
                "The helper knew nothing: no turn of ours was over.",
            ],
            AGAIN: [
                Answer("I ask another one.", calls=[ask]),
                "This one knew the code: LANTERN.",
            ],
            RECALL: recall,
        }
    )
