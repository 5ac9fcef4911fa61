"""What the model says while the example is recorded."""

from __future__ import annotations

from nestling.harness import Answer, ScriptedModel, fork_call, spawn_call, tool_call

GO = "How deep are the sandbank and the reef? Send a boat to each."
AGAIN = "Then have somebody who knows what happened go to the sandbank once more."
SANDBANK = "Sound the sandbank."
REEF = "Sound the reef."
REPORT = "The sandbank is 3 m deep. The boat at the reef was lost."
CAREFULLY = "Sound the sandbank again, and mind what happened."


def sounding(place: str) -> Answer:
    """Ask for a sounding."""
    return Answer("I take a sounding.", calls=[tool_call("sound", {"place": place})])


def model() -> ScriptedModel:
    """Return the model; each prompt has its answers, one a call."""
    boats = [spawn_call("Sandbank", SANDBANK), spawn_call("Reef", REEF)]
    return ScriptedModel(
        by_prompt={
            GO: [Answer("I send two boats.", calls=boats), REPORT],
            SANDBANK: [sounding("sandbank"), "It is 3 m deep."],
            REEF: [sounding("reef"), "It is 9 m deep."],
            AGAIN: [
                Answer(calls=[fork_call("Sandbank, again", CAREFULLY)]),
                "It is still 3 m deep.",
            ],
            CAREFULLY: [sounding("sandbank"), "3 m, and I stayed away from the reef."],
        }
    )
