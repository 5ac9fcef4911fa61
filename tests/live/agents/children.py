"""Agents that delegate by code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from nestling.worker import Agent, Result, Turn, subagent, subagent_fork

MODEL = "m/one"


async def error_of(work: Awaitable[Any]) -> str:
    """Return what an awaitable raises, in words."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - it is what is looked at
        return f"{type(error).__name__}: {error}"
    return "nothing"


async def leaf(turn: Turn) -> None:
    """Say what the turn tells, and what the model says of it."""
    seen = [each.text for each in turn.messages]
    turn.append(repr((turn.origin, turn.description, turn.options, seen)))
    await turn.stream(model=MODEL)


async def with_keys(turn: Turn) -> None:
    """Start overlapping children, told apart by keys; end them in any order."""
    results = await asyncio.gather(
        turn.delegate("one", key="a", agent=leaf, description="first"),
        turn.delegate("two", key="b/ü", agent=leaf, fork=True, options={"x": 1}),
    )
    turn.append(" ".join(result.text for result in results))
    await turn.stream(model=MODEL)


async def without_keys(turn: Turn) -> None:
    """Start children one after the other; in two steps."""
    said = [(await turn.delegate(each, agent=leaf)).text for each in ("one", "two")]
    await turn.stream(model=MODEL)
    said.append((await turn.delegate("three", agent=leaf)).text)
    turn.append(" ".join(said))


async def wrongly(turn: Turn) -> None:
    """Delegate in ways that cannot be."""
    one = asyncio.create_task(turn.delegate("one", agent=leaf))
    two = asyncio.create_task(turn.delegate("two", key="k", agent=leaf))
    await asyncio.sleep(0)
    work: Any = turn.delegate
    told = [
        await error_of(turn.delegate("x", agent=leaf)),
        await error_of(turn.delegate("x", key="k", agent=leaf)),
        await error_of(turn.delegate("x", key="", agent=leaf)),
        await error_of(turn.delegate("x", key="k" * 257, agent=leaf)),
        await error_of(turn.delegate("x", key="\ud800", agent=leaf)),
        await error_of(work(5, agent=leaf)),
        await error_of(work("x", agent=5)),
        await error_of(work("x", agent=lambda turn: None)),
        await error_of(turn.delegate("x", agent="nothing")),
        await error_of(turn.delegate("x", agent="__main__:x")),
        await error_of(turn.delegate("x", agent=leaf, options={"x": {1}})),
    ]
    turn.append(f"{(await one).text} {(await two).text}")
    turn.append("\n".join(told))


async def to_missing(turn: Turn) -> None:
    """Delegate to what cannot be loaded."""
    told: list[Result] = [
        await turn.delegate("x", agent="missing.py:x"),
        await turn.delegate("x", agent="no.such.module:x"),
        await turn.delegate("x", agent="children.py:missing"),
        await turn.delegate("x", agent="children.py:MODEL"),
    ]
    for each in told:
        turn.append(f"{each.stop_reason} {each.is_error} {each.text}")


async def side_calls(turn: Turn) -> None:
    """Ask a model beside the conversation."""
    one = await turn.ask("aside", model="m/side", system="Judge.", options={"t": 0})
    two, three = await asyncio.gather(
        turn.ask("b", model="m/side", key="b"), turn.ask("c", model="m/side", key="c")
    )
    turn.append(f"{one.text} {two.text} {three.text}")
    await turn.stream(model=MODEL)


async def deeper(turn: Turn) -> None:
    """Delegate to itself, until it is refused."""
    result = await turn.delegate(turn.prompt + "+", agent=deeper)
    turn.append(f"{result.is_error} {result.text}")


async def many(turn: Turn) -> None:
    """Start many children at once."""
    results = await asyncio.gather(
        *(
            turn.delegate(f"child {n}", key=f"k{n}", agent=leaf)
            for n in range(turn.options["count"])
        )
    )
    turn.append(" ".join(result.text for result in results))


async def silent(turn: Turn) -> None:
    """Say nothing."""


def _write(path: str) -> None:
    with Path(path).open("w") as file:
        file.write("told\n")


async def tells(turn: Turn) -> None:
    """Have two children, then write into a pipe."""
    for each in ("one", "two"):
        await turn.delegate(each, agent=silent)
    _write(turn.options["path"])


async def goes_on(turn: Turn) -> None:
    """Have a child that dies, and say what is told of it."""
    result = await turn.delegate("die", agent="tools.py:all_tools")
    turn.append(f"{result.stop_reason} {result.text}")
    await turn.stream(model=MODEL)


by_agent = Agent(MODEL, tools=[subagent, subagent_fork], subagent=leaf)
by_reference = Agent(MODEL, tools=[subagent], subagent="children.py:leaf")
by_itself = Agent(MODEL, "same", tools=[subagent])
