"""The harbour's clerk, who may ask those who know the conversation."""

from __future__ import annotations

from nestling.worker import Agent, subagent_fork

clerk = Agent(
    "scripted/harbour",
    system="You keep the harbour's books and may delegate to subagents.",
    tools=[subagent_fork],
)
