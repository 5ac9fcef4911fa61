"""A lookout, who may ask others."""

from __future__ import annotations

from nestling.worker import Agent, subagent

lookout = Agent(
    "scripted/harbour",
    system="You watch the harbour and may delegate to subagents.",
    tools=[subagent],
)
