"""Agents with tools."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from pathlib import Path

import anyio.from_thread

from nestling.worker import (
    NO_RETRY,
    Agent,
    Turn,
    current_turn,
    subagent,
    subagent_fork,
    tool,
)

_async_done = asyncio.Event()
_third_done = asyncio.Event()
_plain_may_end = threading.Event()


@tool
async def first() -> str:
    """Ends after the second and the third."""
    await _async_done.wait()
    await _third_done.wait()
    return "first"


@tool
def second() -> str:
    """Ends after the third has begun; in a thread."""
    assert threading.current_thread() is not threading.main_thread()
    assert _plain_may_end.wait(20)
    anyio.from_thread.run_sync(_async_done.set)
    return "second"


@tool
async def third() -> str:
    """Ends at once; in the loop."""
    assert threading.current_thread() is threading.main_thread()
    _plain_may_end.set()
    _third_done.set()
    return "third"


parallel = Agent("m/one", tools=[first, second, third])


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool
def breaks(why: str) -> str:
    """Raise."""
    raise ValueError(why)


@tool
async def leaves() -> str:
    """End the program, as a library might."""
    raise SystemExit(3)


@tool
async def cancels() -> str:
    """Fall to a cancellation that nobody asked for."""
    raise asyncio.CancelledError


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no words")


@tool
def breaks_mutely() -> str:
    """Raise what cannot be shown."""
    raise Mute


@tool
def returns_set() -> object:
    """Return what no result can hold."""
    return {1, 2}


@tool
def counts(path: str) -> str:
    """Leave a mark for each time that it runs."""
    with Path(path).open("a") as file:
        file.write("x")
    return "counted"


@tool
def dies() -> str:
    """End the process, at once."""
    os._exit(7)


@tool
def is_killed() -> str:
    """Be killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
    return "never"


@tool
async def asks(question: str) -> str:
    """Ask two children, one after the other."""
    turn = current_turn()
    one = await turn.delegate(question, agent="tools.py:plain")
    two = await turn.delegate(question + "?", fork=True, agent="tools.py:plain")
    return f"{one.text}+{two.text}"


@tool
def asks_from_thread(question: str) -> str:
    """Ask a child from a thread."""
    turn = current_turn()
    return anyio.from_thread.run(_asked, turn, question)


async def _asked(turn: Turn, question: str) -> str:
    return (await turn.delegate(question, agent="tools.py:plain")).text


@tool
def asks_wrongly(question: str) -> str:
    """Ask a child in a loop of its own, which is not the session's."""
    turn = current_turn()
    return asyncio.run(_asked(turn, question))


@tool
async def misbehaves() -> str:
    """Do in a tool what only an agent may."""
    turn = current_turn()
    told = []
    with contextlib.suppress(Exception):
        told.append(f"{turn.append('no')}")
    for act in (
        lambda: turn.delegate("x", key="k"),
        lambda: turn.stream(),
        lambda: _overlapping(turn),
    ):
        try:
            await act()
        except Exception as error:  # noqa: BLE001 - it is what is looked at
            told.append(f"{type(error).__name__}: {error}")
    return "\n".join(told)


async def _overlapping(turn: Turn) -> None:
    told = await asyncio.gather(
        turn.delegate("one", agent="tools.py:plain"),
        turn.delegate("two", agent="tools.py:plain"),
        return_exceptions=True,
    )
    for error in told:
        if isinstance(error, BaseException):
            raise error


_begun = asyncio.Event()


@tool
async def never() -> str:
    """Never end."""
    _begun.set()
    await asyncio.Event().wait()
    return "never"


async def gives_up(turn: Turn) -> None:
    """Wait no longer for its tools, and tell the model so; as a child, answer."""
    reply = await turn.stream(model="m/one", tools=[never, subagent])
    if turn.origin == "root":
        running = asyncio.create_task(turn.run_tools(reply))
        await _begun.wait()
        running.cancel()
        await asyncio.wait([running])
        turn.append("given up")
        await turn.stream(model="m/one")


plain = Agent("m/one", "You are plain.", retry=NO_RETRY)
all_tools = Agent(
    "m/one",
    "You have tools.",
    [
        add,
        breaks,
        breaks_mutely,
        cancels,
        returns_set,
        counts,
        dies,
        is_killed,
        asks,
        asks_from_thread,
        asks_wrongly,
        misbehaves,
        leaves,
        subagent,
        subagent_fork,
    ],
    retry=NO_RETRY,
)
two_steps = Agent("m/one", tools=[add], max_steps=2)
parent = Agent("m/one", tools=[subagent, subagent_fork], subagent=plain)
parent_of_mortal = Agent(
    "m/one", tools=[subagent, subagent_fork], subagent="tools.py:all_tools"
)
