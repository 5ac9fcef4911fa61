"""A harbourmaster, who has sixteen berths looked at: eight at a time.

An agent of one's own: an async function that is called once a turn. What it delegates
without naming another agent runs the same function, as the model's delegations do.
"""

from __future__ import annotations

import asyncio

from nestling.worker import Turn, subagent, subagent_fork

MODEL = "scripted/harbour"
TOOLS = [subagent, subagent_fork]


async def harbourmaster(turn: Turn) -> None:
    """Run one turn."""
    if turn.origin != "root" or turn.number == 1:
        await turn.stream(model=MODEL)
        return
    reply = await turn.stream(model=MODEL, tools=TOOLS)
    await turn.run_tools(reply)
    looked = await asyncio.gather(*(look_at(turn, berth) for berth in range(9, 17)))
    turn.append("\n".join(looked))
    await turn.stream(model=MODEL, tools=TOOLS)


async def look_at(turn: Turn, berth: int) -> str:
    """Have one berth looked at, by turns from one who knows the watchword."""
    result = await turn.delegate(
        f"Look at berth {berth}.", key=f"berth-{berth}", fork=berth % 2 == 0
    )
    return result.text
