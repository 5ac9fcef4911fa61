"""What the model says while the example is recorded.

Those who look at a berth start in any order, so their answers follow from their
requests alone.
"""

from __future__ import annotations

from nestling.harness import (
    Answer,
    ScriptedModel,
    fork_call,
    last_user_text,
    spawn_call,
)
from nestling.session.request import Request

TOLD = "The watchword is ANCHOR. Answer OK."
ASKED = "Have all sixteen berths looked at."


def look(request: Request) -> Answer:
    """Say what lies at the berth, and the watchword, if it was inherited."""
    berth = int(last_user_text(request).removeprefix("Look at berth ").rstrip("."))
    ship = "a barge" if berth % 3 else "nothing"
    word = "ANCHOR" if TOLD in str(request.messages) else "no watchword"
    return Answer(f"Berth {berth}: {ship}, {word}.")


def model() -> ScriptedModel:
    """Return the model."""
    calls = [
        (spawn_call, fork_call)[berth % 2 == 0](
            f"Berth {berth}", f"Look at berth {berth}."
        )
        for berth in range(1, 9)
    ]
    return ScriptedModel(
        by_prompt={TOLD: "OK", ASKED: Answer("Eight first.", calls=calls)},
        by_text={"Look at berth ": look, "Berth 9: ": "All sixteen are seen."},
    )
