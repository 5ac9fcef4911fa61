"""Agents that log, by a handler that was made when their module was imported."""

from __future__ import annotations

import asyncio
import logging
import sys

from nestling.worker import Turn

MODEL = "m/one"

_log = logging.getLogger("speakers")
_log.addHandler(logging.StreamHandler(sys.stderr))


async def speaks(turn: Turn) -> None:
    """Log a line, and answer."""
    _log.warning("a child speaks")
    await turn.stream(model=MODEL)


async def has_many(turn: Turn) -> None:
    """Have many children speak, a few at a time."""
    few = asyncio.Semaphore(turn.options["at_once"])

    async def ask(number: int) -> None:
        async with few:
            await turn.delegate("work", key=str(number), agent=speaks)

    await turn.stream(model=MODEL)
    await asyncio.gather(*map(ask, range(turn.options["count"])))
