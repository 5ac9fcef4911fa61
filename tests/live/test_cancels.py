"""Cancelling live runs: calls, turns, trees; and who does not stop (E1, E2, E4, E5)."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nestling.driver import Driver, Limits
from nestling.driver.hub_io import HubLoop
from nestling.driver.started_run_io import StartedRun
from nestling.harness import Answer, OwnedClock, ScriptedModel
from nestling.session.errors import NestlingError
from nestling.session.jsontext import JsonObject
from nestling.session.request import Request
from support.live import SECONDS, called, calling, reference, shorten_ladder, warm
from support.processes import fifo, needs_linux
from support.runs import leaps, silent

AGENT = reference("stubborn:agent")
ABORTED: JsonObject = {"kind": "aborted", "reason": {"kind": "user"}}
BY_PARENT: JsonObject = {"kind": "aborted", "reason": {"kind": "parent"}}

pytestmark = needs_linux


@asynccontextmanager
async def driving(
    answers: Any, limits: Limits | None = None, store: str = "memory:"
) -> AsyncIterator[Driver]:
    model = answers if isinstance(answers, ScriptedModel) else ScriptedModel(answers)
    with anyio.fail_after(SECONDS):
        async with Driver(
            store=store, providers={"m": model}, launcher=warm(), limits=limits
        ) as driver:
            yield driver


async def seen(run: StartedRun, kind: str, count: int = 1) -> None:
    """Wait until the logs of a run have grown by so many events of a type."""
    async for grown in run.events():
        if grown.event.type == kind:
            count -= 1
            if count == 0:
                return


def reasons(run: StartedRun, path: str = "/") -> list[JsonObject]:
    events = run.logs[path].events
    return [e.data["reason"] for e in events if e.type == "turn/end"]


def kinds(run: StartedRun, path: str = "/") -> list[str]:
    events = run.logs[path].events
    return [e.type for e in events if e.type != "assistant/chunk"]


# --- a call ----------------------------------------------------------------------------


async def test_a_call_in_the_middle_of_its_answer() -> None:
    """E1, C11: what came is kept, marked as what it is, and the turn is closed."""
    answers = [Answer("one two three").hangs(after=3), "again"]
    async with driving(answers) as driver:
        run = await driver.start(AGENT, "go")
        await seen(run, "assistant/chunk", 3)
        assert await run.cancel() is True
        result = await run.result()
        assert (result.stop_reason, result.diagnostic) == ("aborted", None)
        await run.send("more")
        assert (await run.result()).text == "again"
        await run.close()
    assert reasons(run) == [ABORTED, {"kind": "completed"}]
    messages = [e.data for e in run.logs["/"].events if e.type == "assistant/message"]
    assert [data.get("interrupted") for data in messages] == [True, None]
    assert run.losses == []


async def test_only_the_call() -> None:
    answers = [Answer("one two").hangs(after=2), "again"]
    async with driving(answers) as driver:
        run = await driver.start(reference("stubborn:hears_of_its_call"), "go")
        await seen(run, "assistant/chunk", 2)
        assert await run.cancel_call() is True
        result = await run.result()
        assert (result.stop_reason, result.text) == ("completed", "again")
        assert await run.cancel_call() is False
        with pytest.raises(NestlingError, match="no session at '/x'"):
            await run.cancel_call("/x")
        await run.close()
    said = [e.data for e in run.logs["/"].events if e.type == "user/message"]
    told = said[-1]["content"][0]["text"]
    assert told == "ModelCallError: CANCELLED: the call was cancelled"


# --- a turn ----------------------------------------------------------------------------


@pytest.mark.parametrize("tool", ["waits", "sleeps"])
async def test_in_a_tool(tool: str) -> None:
    """Also one that blocks its thread: the turn does not wait for it."""
    async with driving([calling(called(tool)), "again"]) as driver:
        run = await driver.start(AGENT, "go")
        await seen(run, "tool/call")
        assert await run.cancel() is True
        assert await run.cancel() in (True, False), "twice is once"
        assert (await run.result()).stop_reason == "aborted"
        await run.send("more")
        assert (await run.result()).text == "again"
        await run.close()
    assert reasons(run) == [ABORTED, {"kind": "completed"}]
    results = [e.data for e in run.logs["/"].events if e.type == "tool/result"]
    assert [data["error"]["code"] for data in results] == ["ABORTED"]


async def test_before_the_start_and_after_the_end() -> None:
    """E4: no model call; a no-op; and the run goes on."""
    model = ScriptedModel(["one", "two"])
    async with driving(model) as driver:
        run = await driver.start(AGENT, "go")
        assert await run.cancel() is True
        assert (await run.result()).stop_reason == "aborted"
        assert model.requests == []
        await run.send("now")
        assert (await run.result()).text == "one"
        assert await run.cancel() is False
        await run.send("again")
        assert (await run.result()).text == "two"
        await run.close()
    assert reasons(run)[-2:] == [{"kind": "completed"}] * 2
    assert await run.cancel() is False, "it is over"


async def test_a_run_that_is_stopped() -> None:
    async with driving([Answer("one").hangs(after=1)]) as driver:
        run = await driver.start(AGENT, ["go", "and then"])
        await seen(run, "assistant/chunk")
        logs = await run.stop()
        assert (await run.result()).stop_reason == "aborted"
        with pytest.raises(NestlingError, match="has ended"):
            await run.send("more")
    assert reasons(run) == [ABORTED]
    assert logs is run.logs


# --- trees -----------------------------------------------------------------------------


def delegating(*prompts: str) -> Answer:
    return calling(
        *(
            called("subagent", f'{{"description":"d","prompt":"{prompt}"}}', f"c{n}")
            for n, prompt in enumerate(prompts)
        )
    )


async def test_a_tree_and_why(tmp_path: Path) -> None:
    """E2: causes user, parent, parent; and a counting tool counts no further."""
    counter = tmp_path / "counter"
    counts = calling(called("count", f'{{"text":"{counter}"}}'))
    model = ScriptedModel(
        by_prompt={
            "go": [delegating("middle")],
            "middle": [delegating("leaf")],
            "leaf": [counts] * 10_000,
        }
    )
    async with driving(model) as driver:
        run = await driver.start(AGENT, "go")
        async for grown in run.events():
            if grown.event.type == "tool/result" and grown.path.count("/") == 2:
                break
        assert await run.cancel() is True
        counted = len(counter.read_text().splitlines())
        assert (await run.result()).stop_reason == "aborted"
        await run.close()
    assert len(counter.read_text().splitlines()) <= counted + 1
    middle, leaf = "/t1s1b0", "/t1s1b0/t1s1b0"
    assert reasons(run) == [ABORTED]
    assert reasons(run, middle) == reasons(run, leaf) == [BY_PARENT]
    for path in ("/", middle, leaf):
        assert kinds(run, path).count("turn/end") == 1, "closers are written once"


async def test_one_subtree_of_three() -> None:
    """Its parent is told, and goes on with what the others came to."""
    model = ScriptedModel(
        by_prompt={
            "go": [delegating("quick", "stuck"), "went on"],
            "quick": ["quickly"],
            "stuck": [Answer("so far").hangs(after=2)],
        }
    )
    async with driving(model) as driver:
        run = await driver.start(AGENT, "go")
        async for grown in run.events():
            if grown.path == "/t1s1b1" and grown.event.type == "assistant/chunk":
                break
        assert await run.cancel("/t1s1b1") is True
        assert (await run.result()).text == "went on"
        await run.close()
    assert reasons(run) == [{"kind": "completed"}]
    assert reasons(run, "/t1s1b1") == [ABORTED]
    results = [e.data for e in run.logs["/"].events if e.type == "tool/result"]
    first, second = (data["message"]["content"][0] for data in results)
    assert (first["isError"], second["isError"]) == (False, True)
    assert "stop reason aborted" in second["content"][0]["text"]


# --- who does not stop -----------------------------------------------------------------


@pytest.mark.parametrize("agent", ["does_not_heed", "blocks"])
async def test_who_does_not_stop_is_ended(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5: in bounded time, its turn closed, and the store can go on with it.

    ``tests/driver`` has how long the ladder's rungs take.
    """
    shorten_ladder(monkeypatch)
    store, pipe = f"sqlite:{tmp_path / 'runs.db'}", tmp_path / "pipe"
    stubborn = reference(f"stubborn:{agent}")
    with fifo(pipe) as told:
        async with driving([], store=store) as driver:
            options = {"fifo": str(pipe)}
            run = await driver.start(stubborn, "go", session_id="r", options=options)
            told.until("blocked")
            await run.cancel()
            result = await run.result()
    assert result.stop_reason == "aborted", result
    assert "it was cancelled (user) and did not stop" in str(result.diagnostic)
    assert ("(SIGKILL" in str(result.diagnostic)) == (agent == "blocks"), "no rung less"
    assert reasons(run) == [{"kind": "interrupted"}]
    async with driving(["again"], store=store) as driver:
        run = await driver.resume("r", "go", agent=AGENT)
        assert (await run.result()).text == "again"


async def test_a_worker_whose_loop_does_not_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is noticed by its silence, and what it printed says where it was."""
    blocked = threading.Event()

    def is_dumped(hub: HubLoop) -> bool:
        return "in block" in hub._run.printed_by("w0")

    silent(monkeypatch, "/", lambda _: blocked.is_set(), is_dumped)
    shorten_ladder(monkeypatch)
    pipe = tmp_path / "pipe"
    with fifo(pipe) as told:
        async with driving([]) as driver:
            run = await driver.start(
                reference("stubborn:blocks"), "go", options={"fifo": str(pipe)}
            )
            told.until("blocked")
            blocked.set()
            result = await run.result()
            await run.close()
    assert result.stop_reason == "error"
    assert str(result.diagnostic).startswith("wedged: its loop has not turned for")
    assert "in block" in run.printed["/"]
    assert reasons(run) == [{"kind": "interrupted"}]


async def test_leaving_a_driver_with_one_that_does_not_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_ladder(monkeypatch)
    async with driving([]) as driver:
        run = await driver.start(reference("stubborn:does_not_heed"), "go")
        await seen(run, "user/message")
    assert reasons(run) == [{"kind": "interrupted"}]


# --- timeouts --------------------------------------------------------------------------


async def test_a_stream_that_hangs() -> None:
    """E5: the call fails with what had come, and the retry succeeds."""
    answers = [Answer("one two").hangs(after=2), "again"]
    limits = Limits(stream_idle_timeout=0.3)
    async with driving(answers, limits) as driver:
        run = await driver.start(AGENT, "go")
        assert (await run.result()).text == "again"
        await run.close()
    retries = [e.data for e in run.logs["/"].events if e.type == "llm/retry"]
    assert [data["failure"]["code"] for data in retries] == ["TIMEOUT"]


async def test_a_stream_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """E5: never silent, and cut all the same, with what had come; its provider ends."""
    clock, yielded, closed = OwnedClock(), 0, anyio.Event()

    async def keeps_alive(request: Request) -> AsyncIterator[JsonObject]:
        nonlocal yielded
        try:
            yield {"type": "block-start", "index": 0, "blockType": "text"}
            while True:
                yield {"type": "text-delta", "index": 0, "text": "a"}
                yielded += 1
                await clock.sleep(1)
        finally:
            closed.set()

    limits = Limits(silence=1e9, turn_timeout=100.0, stream_idle_timeout=300.0)
    leaps(monkeypatch, (101.0, lambda hub: yielded >= 200))
    with anyio.fail_after(SECONDS):
        async with Driver(
            providers={"m": keeps_alive}, launcher=warm(), limits=limits
        ) as driver:
            run = await driver.start(AGENT, "go")
            async for grown in run.events():
                if grown.event.type == "assistant/chunk":
                    clock.advance(1)
            result = await run.result()
            await closed.wait()
            await run.close()
    assert result.stop_reason == "aborted", result
    why = "the turn took longer than 100 s"
    assert reasons(run) == [
        {"kind": "aborted", "reason": {"kind": "timeout", "reason": why}}
    ]
    (said,) = [e.data for e in run.logs["/"].events if e.type == "assistant/message"]
    assert said["interrupted"] is True
    (block,) = said["message"]["content"]
    assert 200 <= len(block["text"]) <= yielded + 1
    assert set(block["text"]) == {"a"}


async def test_one_stuck_sibling_does_not_block_the_others() -> None:
    """E6: their results are there at once, its own is an error."""
    model = ScriptedModel(
        by_prompt={
            "go": [delegating("quick", "quick", "stuck"), "went on"],
            "quick": ["quickly", "quickly"],
            "stuck": [Answer("so far").hangs(after=2)],
        }
    )
    async with driving(model, Limits(turn_timeout=1.5)) as driver:
        run = await driver.start(AGENT, "go")
        settled = set()
        async for grown in run.events():
            if grown.event.type == "turn/end":
                settled.add(grown.path)
            if settled == {"/t1s1b0", "/t1s1b1"}:
                break
        result = await run.result()
        await run.close()
    assert result.stop_reason in ("completed", "aborted")
    assert reasons(run, "/t1s1b2")[0]["kind"] == "aborted"


async def test_a_tool_that_takes_too_long() -> None:
    limits = Limits(tool_timeout=0.3)
    for tool in ("waits", "sleeps"):
        async with driving([calling(called(tool)), "went on"], limits) as driver:
            run = await driver.start(AGENT, "go")
            assert (await run.result()).text == "went on"
            await run.close()
        results = [e.data for e in run.logs["/"].events if e.type == "tool/result"]
        assert [data["error"]["code"] for data in results] == ["TOOL_TIMEOUT"]
