"""A pilot, who sends boats; one of them is lost while it takes a sounding."""

from __future__ import annotations

import os
import signal

from nestling.worker import Agent, subagent, subagent_fork, tool

METRES = {"sandbank": 3}


@tool
def sound(place: str) -> str:
    """Take a sounding; whoever does so at the reef dies at once."""
    if place == "reef":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{METRES[place]} m"


pilot = Agent(
    "scripted/harbour",
    system="You send boats to take soundings.",
    tools=[sound, subagent, subagent_fork],
)
