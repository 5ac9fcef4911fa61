"""Agents that can be taken up again after their driver is gone."""

from __future__ import annotations

from nestling.worker import Agent, Turn, subagent, subagent_fork, tool

MODEL = "m/one"


@tool
def echo(text: str) -> str:
    """Return a text as it is."""
    return text


parent = Agent(model=MODEL, system="Be brief.", tools=[echo, subagent, subagent_fork])


async def delegates(turn: Turn) -> None:
    """Delegate by code, and say what came of it."""
    result = await turn.delegate(turn.prompt, agent=parent, description="by code")
    turn.append(result.text)
    await turn.stream(model=MODEL)


async def child(turn: Turn) -> None:
    """Say where it comes from, and what the model says."""
    turn.append(repr((turn.origin, turn.description, turn.options)))
    await turn.stream(model=MODEL)


@tool
def large(size: int) -> str:
    """Return a text of that many characters."""
    return "x" * size


collector = Agent(model=MODEL, tools=[large])
