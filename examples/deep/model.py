"""What the model says while the example is recorded.

What a helper knows follows from the conversation that it inherited, and so tells where
the turn boundary was.
"""

from __future__ import annotations

from nestling.harness import Answer, ScriptedModel, fork_call, spawn_call
from nestling.session.request import Request

BUOY = "The north buoy is red. Answer OK."
SHOAL = "A shoal lies west of it. Have a helper that knows us say what is known."
AGAIN = "Have it said again."

FIND = "Say what is known; have it confirmed first."
CONFIRM = "Confirm what is known."
LOOK = "Say what is known to one who was told nothing."


def known(request: Request) -> str:
    """Return what a session was told of the fairway."""
    said = str(request.messages)
    found = [name for name, told in (("buoy", BUOY), ("shoal", SHOAL)) if told in said]
    return " and ".join(found) or "nothing"


def find(request: Request) -> Answer:
    """Have it confirmed, then say what is known."""
    if request.messages[-1]["content"][0]["type"] == "tool-result":
        return Answer(f"Confirmed: {known(request)}.")
    calls = [fork_call("Confirm", CONFIRM)]
    if "shoal" in known(request):
        calls.append(spawn_call("Look", LOOK))
    return Answer("I ask further.", calls=calls)


def tell(request: Request) -> Answer:
    """Say what is known."""
    return Answer(f"Known: {known(request)}.")


def model() -> ScriptedModel:
    """Return the model."""
    ask = Answer("One who knows us.", calls=[fork_call("Find out", FIND)])
    return ScriptedModel(
        by_prompt={
            BUOY: "OK",
            SHOAL: [ask, "The buoy is known; the shoal is too new."],
            AGAIN: [ask, "Both are known now."],
            FIND: find,
            CONFIRM: tell,
            LOOK: tell,
        }
    )
