"""Agents that are stopped from outside: their tools say that they ran, and may hang."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from nestling.worker import (
    Agent,
    ModelCallError,
    RetryPolicy,
    Turn,
    current_turn,
    subagent,
    subagent_fork,
    tool,
)

MODEL = "m/one"


def _mark(name: str) -> None:
    marks = current_turn().options.get("marks")
    if marks is not None:
        with Path(marks).open("a") as file:
            file.write(f"{name}\n")


_is_hanging = asyncio.Event()


@tool
async def quick() -> str:
    """Leave a mark; return not before another call hangs, if it is told so."""
    _mark("quick")
    if "after" in current_turn().options:
        await _is_hanging.wait()
    return "quickly"


@tool
async def hangs() -> str:
    """Leave a mark, and never return."""
    _mark("hangs")
    _is_hanging.set()
    await asyncio.sleep(3600)
    return "never"


@tool
async def asks(question: str) -> str:
    """Ask a child, and leave a mark."""
    _mark("asks")
    result = await current_turn().delegate(question, agent=lead)
    return f"heard {result.text}"


lead = Agent(MODEL, "You lead.", [quick, hangs, asks, subagent])


forks = Agent(MODEL, "You lead.", [quick, subagent_fork])


async def hears_of_its_call(turn: Turn) -> None:
    """Say that a call was cancelled, and make another one."""
    try:
        await turn.stream(model=MODEL)
    except ModelCallError as error:
        turn.append(str(error))
        await turn.stream(model=MODEL)


async def kills_itself(turn: Turn) -> None:
    """Die after a call, before anybody hears of anything more."""
    await turn.stream(model=MODEL)
    os.kill(os.getpid(), signal.SIGKILL)


async def sleeps(turn: Turn) -> None:
    """Say something, then sleep for long."""
    await turn.stream(model=MODEL)
    turn.append("good night")
    await asyncio.sleep(turn.options.get("seconds", 3600))


async def naps(turn: Turn) -> None:
    """Sleep shortly between two calls."""
    await turn.stream(model=MODEL)
    await asyncio.sleep(turn.options.get("seconds", 3600))
    await turn.stream(model=MODEL)


async def asks_two(turn: Turn) -> None:
    """Have two children answer side by side."""
    asked = (turn.delegate(name, key=name, agent=lead) for name in ("one", "two"))
    found = await asyncio.gather(*asked)
    turn.append(" and ".join(result.text for result in found))
    await turn.stream(model=MODEL)


async def has_many(turn: Turn) -> None:
    """Have many children answer, a few at a time."""
    few = asyncio.Semaphore(turn.options["at_once"])

    async def ask(number: int) -> None:
        async with few:
            await turn.delegate("work", key=str(number), agent=lead)

    await asyncio.gather(*map(ask, range(turn.options["count"])))
    await turn.stream(model=MODEL)


patient = Agent(MODEL, "You wait.", retry=RetryPolicy(base_ms=20_000))
