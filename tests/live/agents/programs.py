"""An agent that does what a program says: a list of verbs for each turn."""

from __future__ import annotations

import asyncio
from typing import Any

from nestling.worker import (
    ModelCallError,
    RetryPolicy,
    Turn,
    current_turn,
    subagent,
    subagent_fork,
    tool,
)

MODEL = "m/one"
QUICK = RetryPolicy(max_retries=1, base_ms=0)


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool
async def asks(question: str) -> str:
    """Ask a child."""
    turn = current_turn()
    told = [
        await turn.delegate(question, agent=leaf),
        await turn.ask("aside", model=MODEL),
    ]
    return " ".join(each.text for each in told)


TOOLS = (add, asks, subagent, subagent_fork)


async def leaf(turn: Turn) -> None:
    """Answer, and use what tools the model wants but those that delegate."""
    reply = await turn.stream(model=MODEL, tools=[add], retry=QUICK)
    if reply.tool_calls:
        await turn.run_tools(reply)


async def root(turn: Turn) -> None:
    """Do what the program says."""
    programs: list[list[list[Any]]] = turn.options["programs"]
    for number, (verb, *arguments) in enumerate(programs[turn.number - 1]):
        await VERBS[verb](turn, number, *arguments)


async def _stream(turn: Turn, number: int, runs: bool) -> None:
    try:
        reply = await turn.stream(model=MODEL, tools=TOOLS, retry=QUICK)
    except ModelCallError as error:
        turn.append(f"failed: {error}")
        return
    if reply.tool_calls and runs:
        await turn.run_tools(reply)
    elif reply.tool_calls:
        raise ValueError("left unanswered")


async def _append(turn: Turn, number: int, text: str) -> None:
    turn.append(text, kind="note")


async def _replace(turn: Turn, number: int, count: int) -> None:
    seen = turn.messages[:count]
    turn.replace(seen[0].seq, seen[-1].seq, f"instead of {len(seen)}")


async def _delegate(turn: Turn, number: int, fork: bool) -> None:
    result = await turn.delegate(f"task {number}", fork=fork, agent=leaf)
    turn.append(result.text)


async def _fan(turn: Turn, number: int, count: int) -> None:
    results = await asyncio.gather(
        *(
            turn.delegate(f"part {n}", key=f"{number}.{n}", fork=n % 2 == 1, agent=leaf)
            for n in range(count)
        )
    )
    turn.append(" ".join(result.text for result in results))


async def _ask(turn: Turn, number: int) -> None:
    turn.append((await turn.ask(f"aside {number}", model=MODEL)).text)


async def _raise(turn: Turn, number: int) -> None:
    raise ValueError(f"as told, {number}")


VERBS: dict[str, Any] = {
    "stream": _stream,
    "append": _append,
    "replace": _replace,
    "delegate": _delegate,
    "fan": _fan,
    "ask": _ask,
    "raise": _raise,
}
