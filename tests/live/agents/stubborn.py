"""Agents and tools that do not stop when they are told to."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from nestling.worker import Agent, Turn, subagent, tool

MODEL = "m/one"


def block() -> None:
    """Block the calling thread for ever."""
    while True:
        time.sleep(3600)


def tell(turn: Turn) -> None:
    """Tell whoever listens that nothing more comes."""
    if "fifo" in turn.options:
        with open(turn.options["fifo"], "w") as told:
            told.write("blocked\n")


@tool
async def waits() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return "never"


@tool
def sleeps() -> str:
    """Block its thread for ever."""
    block()
    return "never"


@tool
def count(text: str) -> str:
    """Count in a file, whose path is the text."""
    with open(text, "a") as file:
        file.write("x\n")
    return "counted"


agent = Agent(MODEL, tools=[waits, sleeps, count, subagent])


async def does_not_heed(turn: Turn) -> None:
    """Go on, whatever it is told."""
    tell(turn)
    while True:
        try:
            turn.append("still here")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


async def blocks(turn: Turn) -> None:
    """Block the loop, and heed no signal that can be refused."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    await asyncio.sleep(0)  # so that the hub hears of the turn
    tell(turn)
    block()


async def hears_of_its_call(turn: Turn) -> None:
    """Go on after a call that was cancelled."""
    try:
        await turn.stream(model=MODEL)
    except Exception as error:  # noqa: BLE001 - it is what is looked at
        turn.append(f"{type(error).__name__}: {error}")
    await turn.stream(model=MODEL)


async def dies(turn: Turn) -> None:
    """Die in as many turns as it is told, then answer."""
    turn.append(f"turn {turn.number}")
    await asyncio.sleep(0)
    if turn.number <= turn.options["times"]:
        await turn.stream(model=MODEL)
        os.kill(os.getpid(), signal.SIGKILL)
    await turn.stream(model=MODEL)


async def has_dying_child(turn: Turn) -> None:
    """Delegate to a child that dies, and say what it came to."""
    result = await turn.delegate("work", agent=dies, options=turn.options)
    turn.append(f"{result.stop_reason}: {result.text}")
    await turn.stream(model=MODEL)
