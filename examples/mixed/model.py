"""What the model says while the example is recorded."""

from __future__ import annotations

from nestling.harness import Answer, ScriptedModel, fork_call, spawn_call
from nestling.session.request import Request

TOLD = "Note for later: the harbour code is LANTERN. Answer OK."
ASKED = (
    "Have a fresh helper say GULL, then have one that knows our conversation "
    "name the harbour code. Report both words."
)
SAY = "Answer with the single word GULL."
RECALL = "Which harbour code was noted? One word."


def recall(request: Request) -> Answer:
    """Name the code, if the conversation that was inherited tells it."""
    if TOLD not in str(request.messages):
        return Answer("No code was noted.")
    return Answer("LANTERN", reasoning="The code was noted in the first turn: LANTERN.")


def model() -> ScriptedModel:
    """Return the model; each prompt has its answers, one a call."""
    return ScriptedModel(
        by_prompt={
            TOLD: Answer("OK", reasoning="A code to keep: LANTERN. I only confirm."),
            ASKED: [
                Answer(
                    reasoning="One without our conversation will do for the first word.",
                    calls=[spawn_call("Say GULL", SAY)],
                ),
                Answer("Now the code.", calls=[fork_call("Recall the code", RECALL)]),
                Answer(
                    "The helper said GULL, and the harbour code is LANTERN.",
                    reasoning="The first helper said GULL, the second knew the code.",
                ),
            ],
            SAY: Answer("GULL", reasoning="One word is asked for."),
            RECALL: recall,
        }
    )
