"""A pilot, who may ask helpers, who may ask helpers."""

from __future__ import annotations

from nestling.worker import Agent, subagent, subagent_fork

pilot = Agent(
    "scripted/harbour",
    system="You know the fairway and may delegate to subagents.",
    tools=[subagent, subagent_fork],
)
