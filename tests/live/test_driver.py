"""The driver: starting, leaving, and the caller's event loop."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from nestling.driver import Driver, Limits, Request, SyncDriver
from nestling.driver.started_run_io import StartedRun
from nestling.harness import ScriptedModel
from nestling.session.errors import (
    AgentReferenceError,
    JsonDomainError,
    NestlingError,
)
from nestling.session.jsontext import JsonObject
from support.live import SECONDS, reference, warm
from support.processes import fifo
from support.session_logs import finish

AGENT = reference("turns:never_retries")


class Planted(Exception):
    """Raised by a test."""


class Hanging:
    """A provider that hangs until it is cancelled.

    Attributes:
        begun: set when it is asked.
        has_ended: whether it was cancelled.
    """

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.has_ended = False

    async def __call__(self, request: Request) -> AsyncGenerator[JsonObject, None]:
        """Hang."""
        self.begun.set()
        try:
            await anyio.sleep_forever()
            yield finish()
        finally:
            self.has_ended = True


def _fail() -> None:
    raise Planted


def driver_of(provider: Any) -> Driver:
    return Driver(providers={"m": provider}, launcher=warm())


# --- starting --------------------------------------------------------------------------


async def test_a_driver_starts_agents_inside_of_its_block() -> None:
    driver = driver_of(ScriptedModel(["a"]))
    outside = "a driver starts agents inside of `async with`"
    with pytest.raises(NestlingError, match=outside):
        await driver.start(AGENT, "go")
    async with driver:
        with pytest.raises(NestlingError, match="a driver is entered once"):
            await driver.__aenter__()
    with pytest.raises(NestlingError, match=outside):
        await driver.start(AGENT, "go")
    with pytest.raises(NestlingError, match="a driver is entered once"):
        await driver.__aenter__()


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        ("nothing", "has no colon"),
        ("__main__:x", "is in __main__"),
        ("x.py:", "has no name"),
        (5, "5 has no reference"),
        (test_a_driver_starts_agents_inside_of_its_block, "has no reference"),
    ],
)
async def test_what_is_no_reference(agent: Any, problem: str) -> None:
    async with driver_of(ScriptedModel()) as driver:
        with pytest.raises(AgentReferenceError, match=problem):
            await driver.start(agent, "go")


@pytest.mark.parametrize(
    "prompt", [[], 5, None, [5], [{}], ["a", 5], [{"type": "text"}], {"type": "text"}]
)
async def test_what_is_no_prompt(prompt: Any) -> None:
    async with driver_of(ScriptedModel(["x"])) as driver:
        with pytest.raises(JsonDomainError, match="a prompt is a text or a list of"):
            await driver.start(AGENT, prompt)
        run = await driver.start(AGENT, "go")
        with pytest.raises(JsonDomainError, match="a prompt is a text or a list of"):
            await run.send(prompt)
        assert (await run.result()).text == "x"


async def test_options_that_are_no_json() -> None:
    async with driver_of(ScriptedModel(["x"])) as driver:
        with pytest.raises(JsonDomainError):
            await driver.start(AGENT, "go", options={"x": {1}})


async def test_an_id_that_is_none() -> None:
    async with driver_of(ScriptedModel()) as driver:
        with pytest.raises(JsonDomainError, match="a session's id is a string"):
            await driver.start(AGENT, "go", session_id=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (Limits(starting=0), "starting must be at least 1, found 0"),
        (Limits(max_depth=-1), "max_depth must be at least 0, found -1"),
        (Limits(start_timeout=0), "start_timeout must be more than 0, found 0"),
        (Limits(start_timeout=float("nan")), "start_timeout must be more than 0"),
    ],
)
def test_limits_that_make_no_sense(limits: Limits, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Driver(limits=limits)


async def test_several_runs_of_one_driver() -> None:
    """Idle ones take no thread away from anybody."""
    count = 3

    async def provide(request: Request) -> AsyncGenerator[JsonObject, None]:
        await anyio.to_thread.run_sync(threading.get_ident)
        yield finish()

    limiter = anyio.to_thread.current_default_thread_limiter()
    limiter.total_tokens = 1
    with anyio.fail_after(SECONDS):
        async with driver_of(provide) as driver:
            runs = [await driver.start(AGENT, "go") for _ in range(count)]
            for run in runs:
                assert (await run.result()).stop_reason == "completed"
            assert len({run.session_id for run in runs}) == count


# --- ending ----------------------------------------------------------------------------


async def test_a_run_that_was_closed() -> None:
    async with driver_of(ScriptedModel(["a"])) as driver:
        run = await driver.start(AGENT, "go")
        with pytest.raises(NestlingError, match=f"{run.session_id} has not ended"):
            assert run.logs
        logs = await run.close()
        assert await run.close() is logs
        assert (await run.result()).text == "a"
        with pytest.raises(NestlingError, match=f"{run.session_id} has ended"):
            await run.send("more")
        assert run.losses == []


async def test_a_prompt_that_comes_while_a_run_is_closed() -> None:
    """It would not be heard, so it is refused."""
    async with driver_of(ScriptedModel(["a"])) as driver:
        run = await driver.start(AGENT, "go")
        await run.result()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.close)
            await anyio.lowlevel.checkpoint()
            with pytest.raises(NestlingError, match="has ended"):
                await run.send("late")


async def test_options_that_are_changed_later() -> None:
    options: JsonObject = {"count": 1}
    async with driver_of(ScriptedModel(["a"])) as driver:
        run = await driver.start(reference("children:many"), "go", options=options)
        options["count"] = {1}
        assert (await run.result()).stop_reason == "completed"
        assert len(await run.close()) == 2


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_leaving_while_a_run_works(anyio_backend: str) -> None:
    hanging = Hanging()
    with anyio.fail_after(SECONDS):
        async with driver_of(hanging) as driver:
            run = await driver.start(AGENT, "go")
            await anyio.to_thread.run_sync(hanging.begun.wait)
    await check_aborted(run, hanging)


async def check_aborted(run: StartedRun, hanging: Hanging) -> None:
    """It was ended in the middle of its call, and its turn is closed."""
    assert hanging.has_ended
    result = await run.result()
    assert (result.stop_reason, result.diagnostic) == ("aborted", None)
    end = run.logs["/"].events[-1]
    assert end.data["reason"] == {"kind": "aborted", "reason": {"kind": "user"}}
    assert run.losses == []


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_leaving_with_an_error(anyio_backend: str) -> None:
    """It is raised as it is, not in a group."""
    hanging = Hanging()
    with anyio.fail_after(SECONDS):
        with pytest.raises(Planted):  # noqa: PT012 - the block is what is left
            async with driver_of(hanging) as driver:
                run = await driver.start(AGENT, "go")
                await anyio.to_thread.run_sync(hanging.begun.wait)
                raise Planted
    await check_aborted(run, hanging)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_leaving_cancelled(anyio_backend: str) -> None:
    hanging = Hanging()
    with anyio.fail_after(SECONDS), anyio.CancelScope() as scope:
        async with driver_of(hanging) as driver:
            run = await driver.start(AGENT, "go")
            await anyio.to_thread.run_sync(hanging.begun.wait)
            scope.cancel()
            await run.result()
    assert scope.cancelled_caught
    await check_aborted(run, hanging)


async def test_leaving_right_after_a_start() -> None:
    async with driver_of(ScriptedModel()) as driver:
        run = await driver.start(AGENT, "go")
    assert run.end is not None
    assert (await run.result()).stop_reason == "aborted"


# --- the caller's loop -----------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_caller_who_blocks_its_loop(tmp_path: Path, anyio_backend: str) -> None:
    """The run goes on as far as it needs no provider: to its end, here."""
    with anyio.fail_after(SECONDS), fifo(tmp_path / "fifo") as lines:
        async with driver_of(ScriptedModel()) as driver:
            options = {"path": str(tmp_path / "fifo")}
            run = await driver.start(reference("children:tells"), "go", options=options)
            assert lines.next() == "told"  # the loop stands still here
            assert (await run.result()).stop_reason == "completed"
            assert len(await run.close()) == 3


async def test_events_that_come_while_they_are_read() -> None:
    """The reader sees every one, whenever the hub's thread adds it."""
    async with driver_of(ScriptedModel(["a b c d e f g h"])) as driver:
        run = await driver.start(AGENT, "go")
        told = [grown.event.seq async for grown in run.events()]
        logs = await run.close()
        assert told == list(range(len(logs["/"].events)))


# --- without a loop --------------------------------------------------------------------


def test_the_synchronous_driver() -> None:
    model = ScriptedModel(["a", "b"])
    driver = SyncDriver(providers={"m": model}, launcher=warm())
    with pytest.raises(NestlingError, match="inside of `with`"):
        driver.start(AGENT, "go")
    with driver:
        run = driver.start(AGENT, "go", session_id="s")
        assert run.session_id == "s"
        assert run.result().text == "a"
        told = [grown.event.seq for grown in run.events()]
        run.send("more")
        for grown in run.events():
            told.append(grown.event.seq)
            break
        told += [grown.event.seq for grown in run.events()]
        assert run.result().text == "b"
        logs = run.close()
        assert run.logs is logs
        assert told == list(range(len(logs["/"].events)))
    with pytest.raises(NestlingError, match="inside of `with`"):
        driver.start(AGENT, "go")


def test_leaving_the_synchronous_driver_with_an_error() -> None:
    hanging = Hanging()
    driver = SyncDriver(providers={"m": hanging}, launcher=warm())
    with pytest.raises(Planted), driver:  # noqa: PT012 - the block is what is left
        run = driver.start(AGENT, "go")
        assert hanging.begun.wait(SECONDS)
        _fail()

        run = driver.start(AGENT, "go")
        assert hanging.begun.wait(SECONDS)
        _fail()
    assert hanging.has_ended
    assert run.logs["/"].events[-1].type == "turn/end"


def test_leaving_the_synchronous_driver_while_a_run_works() -> None:
    hanging = Hanging()
    with SyncDriver(providers={"m": hanging}, launcher=warm()) as driver:
        run = driver.start(AGENT, "go")
        assert hanging.begun.wait(SECONDS)
    assert hanging.has_ended
    assert run.logs["/"].events[-1].data["reason"]["kind"] == "aborted"


def test_no_descriptor_is_lost() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    with SyncDriver(providers={"m": ScriptedModel(["a"])}, launcher=warm()) as driver:
        assert driver.start(AGENT, "go").result().text == "a"
    assert sorted(os.listdir("/proc/self/fd")) == before
