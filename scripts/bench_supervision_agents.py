"""The agents that ``bench_supervision.py`` runs."""

from __future__ import annotations

import asyncio
import signal
import time

from nestling.worker import Turn

MODEL = "bench/hangs"


def block() -> None:
    """Block the calling thread for ever."""
    while True:
        time.sleep(3600)


async def tree(turn: Turn) -> None:
    """Delegate to as many as this level has, who do the same; the last ones call."""
    levels = turn.options["levels"]
    if levels:
        options = {**turn.options, "levels": levels[1:]}
        delegations = (
            turn.delegate(f"number {number}", key=f"n{number}", options=options)
            for number in range(levels[0])
        )
        await asyncio.gather(*delegations)
        return
    if turn.options.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        turn.append("stubborn")
        await asyncio.sleep(0)
        block()
    await turn.stream(model=MODEL)
