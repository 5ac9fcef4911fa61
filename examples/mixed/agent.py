"""The harbour's clerk, who may ask helpers."""

from __future__ import annotations

from nestling.worker import Agent, subagent, subagent_fork

clerk = Agent(
    "scripted/harbour",
    system="You keep the harbour's books and may delegate to subagents.",
    tools=[subagent, subagent_fork],
)
