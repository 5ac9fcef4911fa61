"""Agents with loops of their own: streams, messages, and what goes wrong with them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable
from typing import Any

from nestling.worker import (
    NO_RETRY,
    Agent,
    ModelCallError,
    Reply,
    RetryPolicy,
    Turn,
    tool,
)

MODEL = "m/one"


async def error_of(work: Awaitable[Any]) -> str:
    """Return what an awaitable raises, in words."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - it is what is looked at
        return f"{type(error).__name__}: {error}"
    return "nothing"


def raised_by(act: Any, *arguments: Any) -> str:
    """Return what a call raises, in words."""
    try:
        act(*arguments)
    except Exception as error:  # noqa: BLE001 - it is what is looked at
        return f"{type(error).__name__}: {error}"
    return "nothing"


async def says_what_it_knows(turn: Turn) -> None:
    """Append what the turn tells."""
    told = (
        turn.number,
        turn.prompt,
        turn.origin,
        turn.description,
        turn.options,
        [(seen.role, seen.text) for seen in turn.messages],
    )
    turn.append(repr(told))
    await turn.stream(model=MODEL)


async def streams_twice_at_once(turn: Turn) -> None:
    """Call the model while a call is open; add a message while it is."""
    first = asyncio.create_task(turn.stream(model=MODEL))
    await asyncio.sleep(0)
    told = [
        await error_of(turn.stream(model=MODEL)),
        raised_by(turn.append, "no"),
        raised_by(turn.replace, 0, 0, "no"),
    ]
    reply = await first
    turn.append("\n".join([reply.text, *told]))


async def leaves_calls_unanswered(turn: Turn) -> None:
    """Call the model again, as if its tool calls had been answered; then end."""
    await turn.stream(model=MODEL, tools=[noop])
    turn.append(await error_of(turn.stream(model=MODEL)))


@tool
async def noop() -> str:
    """Do nothing."""
    return "nothing"


async def runs_tools_twice(turn: Turn) -> None:
    """Run tools again, and those of a message that is not the last one."""
    first = await turn.stream(model=MODEL, tools=[noop])
    results = await turn.run_tools(first)
    told = [results[0].text, await error_of(turn.run_tools(first))]
    second = await turn.stream(model=MODEL, tools=[noop])
    told.append(await error_of(turn.run_tools(first)))
    both = asyncio.gather(
        error_of(turn.run_tools(second)), error_of(turn.run_tools(second))
    )
    told += await both
    strange = Reply(second.id, second.content, second.finish, second.usage)
    told.append(await error_of(turn.run_tools(strange)))
    turn.append("\n".join(told))


async def replaces(turn: Turn) -> None:
    """Put a summary in the place of what was said; refuse what is not there."""
    turn.append("one")
    turn.append([{"type": "text", "text": "two"}], kind="note")
    seen = turn.messages
    told = [
        raised_by(turn.replace, 99, 99, "no"),
        raised_by(turn.replace, seen[-1].seq, seen[0].seq, "no"),
    ]
    turn.replace(seen[1].seq, seen[2].seq, "one and two")
    told.append(" | ".join(each.text for each in turn.messages))
    await turn.stream(model=MODEL)
    turn.append("\n".join(told))


async def replaces_a_tool_call(turn: Turn) -> None:
    """Put a message in the place of a call, its results and what led to them."""
    await turn.run_tools(await turn.stream(model=MODEL, tools=[noop]))
    seen = turn.messages
    turn.replace(seen[0].seq, seen[-1].seq, "what happened")
    await turn.stream(model=MODEL)


async def keeps_its_lists(turn: Turn) -> None:
    """Change, afterwards, what was given and what was got."""
    block = {"type": "text", "text": "a"}
    blocks = [block]
    turn.append(blocks)
    block["text"] = "b"
    turn.append(blocks)
    options: dict[str, Any] = {"stop": ["x"]}
    reply = await turn.stream(model=MODEL, options=options)
    options["stop"].append("y")
    for each in (*reply.content, *turn.messages[0].content):
        each["text"] = "changed"
    await turn.stream(model=MODEL, options=options)


async def appends_nonsense(turn: Turn) -> None:
    """Append what no message can hold."""
    found: tuple[Any, ...] = (
        5,
        [5],
        {"type": "text", "text": "x"},
        [{"no": "type"}],
        [{"type": "text", "text": float("nan")}],
        [{"type": "text", "text": {1}}],
    )
    told = [raised_by(turn.append, each) for each in found]
    await turn.stream(model=MODEL)
    turn.append("\n".join(told))


async def names_no_model(turn: Turn) -> None:
    """Call without a model, or with what is none."""
    told = [
        await error_of(turn.stream()),
        await error_of(turn.ask("x")),
        await error_of(turn.stream(model="m")),
        await error_of(turn.stream(model=MODEL, options={"model": "two"})),
        await error_of(turn.stream(model=MODEL, options={"x": {1}})),
        await error_of(turn.stream(model="m/" + 300 * "x")),
    ]
    await turn.stream(model=MODEL)
    turn.append("\n".join(told))


async def raises_first(turn: Turn) -> None:
    """Raise in the first turn, in the middle of a step; go on in the next one."""
    reply = await turn.stream(model=MODEL, tools=[noop])
    if turn.number == 1:
        raise ValueError(f"no {reply.text}")


class Mute(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no words")


async def raises_mutely(turn: Turn) -> None:
    """Raise what cannot be shown."""
    raise Mute


async def is_cancelled_within(turn: Turn) -> None:
    """Wait for what was cancelled."""
    waiting = asyncio.create_task(asyncio.Event().wait())
    waiting.cancel()
    await waiting


async def cancels_itself(turn: Turn) -> None:
    """Cancel the task that the code runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await turn.stream(model=MODEL)


async def forgets_a_task(turn: Turn) -> None:
    """Leave a task behind that has failed, and that nobody waits for."""

    async def fail() -> None:
        raise ValueError("nobody hears this")

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    del task
    gc.collect()
    await turn.stream(model=MODEL)


_kept: list[Any] = []


async def ends_with_a_call_open(turn: Turn) -> None:
    """End while a call is open, and use the turn when it is over."""
    if turn.number == 2:
        earlier, calling = _kept
        told = [
            (await calling).text,
            raised_by(earlier.append, "late"),
        ]
        turn.append("\n".join(told))
    else:
        calling = asyncio.create_task(turn.stream(model=MODEL, tools=[noop]))
        _kept.extend([turn, calling])
        await asyncio.sleep(0)


async def ends_with_a_delegation_open(turn: Turn) -> None:
    """End while a child works; ask in the next turn what has become of it."""
    if turn.number == 1:
        work = turn.delegate("child", agent=child_of_code)
        _kept.append(asyncio.create_task(work))
        await asyncio.sleep(0)
    else:
        turn.append((await _kept[0]).text)


async def child_of_code(turn: Turn) -> None:
    """Be a child."""
    await turn.stream(model=MODEL)


async def hears_of_failures(turn: Turn) -> None:
    """Go on after a call that failed."""
    try:
        await turn.stream(model=MODEL, retry=NO_RETRY)
    except ModelCallError as error:
        turn.append(f"{error.failure['code']}: {error}")
        if turn.number == 2:
            raise
    await turn.stream(model=MODEL)


async def raises_an_old_failure(turn: Turn) -> None:
    """Raise what an earlier call had failed with."""
    try:
        await turn.stream(model=MODEL, retry=NO_RETRY)
    except ModelCallError as error:
        await turn.stream(model=MODEL)
        raise error from None


async def gives_up_waiting(turn: Turn) -> None:
    """Stop waiting for a call, which goes on."""
    calling = asyncio.create_task(turn.stream(model=MODEL))
    await asyncio.sleep(0)
    calling.cancel()
    await asyncio.wait([calling])
    turn_goes_on = await error_of(turn.stream(model=MODEL))
    _kept.append(turn_goes_on)


patient = RetryPolicy(
    max_retries=2, codes=frozenset({"SERVER", "BUSY"}), base_ms=10, jitter=0.5
)
retries = Agent(MODEL, retry=patient)
never_retries = Agent(MODEL, retry=NO_RETRY)
