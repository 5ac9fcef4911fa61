"""What the model says while the example is recorded."""

from __future__ import annotations

from nestling.harness import Answer, ScriptedModel, tool_call

NORTH = "How deep is the north basin?"
SOUTH = "And the south basin?"


def reading(basin: str) -> Answer:
    """Ask for a reading. The id is the same each time, as with some providers."""
    call = tool_call("read_gauge", {"basin": basin}, call_id="c1")
    return Answer("I read the gauge.", calls=[call])


def model() -> ScriptedModel:
    """Return the model; its first call breaks off after three chunks."""
    return ScriptedModel(
        by_prompt={
            NORTH: [
                reading("north").fails("SERVER", "the connection was lost", after=3),
                reading("north"),
                "It is 4 m deep.",
            ],
            SOUTH: [reading("south"), "That one is 7 m deep."],
        }
    )
