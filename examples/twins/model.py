"""What the model says while the example is recorded."""

from __future__ import annotations

from nestling.harness import Answer, ScriptedModel, spawn_call

ASKED = "Have two others each name a bird that they see, at the same time."
NAME = "Name one bird that you see. One word."


def model() -> ScriptedModel:
    """Return the model. The twins' requests are equal: who comes first sees a heron."""
    twin = spawn_call("Name a bird", NAME)
    return ScriptedModel(
        by_prompt={
            ASKED: [
                Answer("Two at once.", calls=[twin, twin]),
                Answer("One saw a heron, the other a tern."),
            ],
            NAME: [Answer("HERON"), Answer("TERN")],
        }
    )
