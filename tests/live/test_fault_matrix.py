"""Live runs whose processes are killed and stopped at every place, both launchers.

What a tree of recorded sessions does is in ``tests/driver_io/test_deaths.py``, single
processes are in ``tests/launchers``; here it is what a user gets.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from nestling.driver import Driver, Limits, TemplateLauncher
from nestling.driver.hub_io import HubLoop
from nestling.driver.instructions import Durable, HubEvent
from nestling.driver.processes_io import process_of
from nestling.driver.started_run_io import StartedRun
from nestling.harness import Answer, ScriptedModel
from nestling.session.invariants import log_findings
from nestling.session.jsontext import JsonObject, dumps
from nestling.wire.messages import Bye, Events, Hello, Result, Stream, ToHub, Tool
from support.launchers import LAUNCHERS
from support.live import (
    SECONDS,
    called,
    calling,
    launcher_named,
    reference,
    shorten_ladder,
)
from support.processes import (
    fifo,
    have_ended,
    needs_linux,
    parent_of,
    pidfds,
    wait_stopped,
)
from support.runs import on_each_message, on_each_start, silent

AGENT = reference("nasty:agent")
CHILD = "/t1s1b0"
ENDED = "its worker ended (SIGKILL"

pytestmark = [needs_linux, pytest.mark.parametrize("launcher", LAUNCHERS)]


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # what it had said comes in one message after it
        os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_stopped(pid)


def delegating(prompt: str) -> Answer:
    return calling(called("subagent", delegated(prompt)))


def delegated(prompt: str) -> str:
    return f'{{"description":"d","prompt":"{prompt}"}}'


def family(*answers: Any) -> ScriptedModel:
    """A root that delegates once and goes on; its child has these answers."""
    return ScriptedModel(
        by_prompt={"go": [delegating("work"), "went on"], "work": list(answers)}
    )


def check_logs(run: StartedRun) -> None:
    """Every log is valid, and closed."""
    for log in run.logs.values():
        assert [f.line for f in log_findings(log.header, log.events)] == []


def result_of(run: StartedRun) -> JsonObject:
    """The block with which the root was told of its child."""
    (event,) = [e for e in run.logs["/"].events if e.type == "tool/result"]
    block: JsonObject = event.data["message"]["content"][0]
    return block


def check_lost(run: StartedRun, why: str = ENDED) -> None:
    """The child was lost, its parent was told so, and nobody else noticed."""
    ((path, told),) = run.losses
    assert path == CHILD
    assert why in told
    assert result_of(run)["isError"]
    assert why in str(result_of(run)["content"])
    check_logs(run)


async def ran(
    launcher: str,
    model: ScriptedModel,
    limits: Limits | None = None,
    at: Callable[[StartedRun], Any] | None = None,
) -> StartedRun:
    """Run a tree to its end, doing something meanwhile."""
    with anyio.fail_after(SECONDS):
        async with Driver(
            providers={"m": model}, launcher=launcher_named(launcher), limits=limits
        ) as driver:
            run = await driver.start(AGENT, "go")
            if at is not None:
                await at(run)
            assert (await run.result()).text == "went on"
            await run.close()
    return run


# --- SIGKILL of a worker ---------------------------------------------------------------


async def test_before_its_hello(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_start(launch: str, pid: int) -> None:
        if launch == "w1":
            kill(pid)

    on_each_start(monkeypatch, on_start)
    check_lost(await ran(launcher, family("never said")))


async def test_the_dead_take_no_room(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D7: three may start at once, three die of it, and three others follow.

    So it is of another driver, which takes up what the first one has stored.
    """
    started: list[str] = []

    def on_start(launch: str, pid: int) -> None:
        started.append(launch)
        if launch in ("w1", "w2", "w3") and len(started) < 5:
            kill(pid)

    on_each_start(monkeypatch, on_start)
    three = [called("subagent", delegated("work"), call_id) for call_id in "abc"]
    answers = ["one", "two", "three"] * 2
    model = ScriptedModel(
        by_prompt={
            "go": [calling(*three), calling(*three), "went on"],
            "again": [calling(*three), "and on"],
            "work": answers,
        }
    )
    store, limits = f"sqlite:{tmp_path / 'runs.db'}", Limits(starting=3)
    with anyio.fail_after(SECONDS):
        for prompt, text in (("go", "went on"), ("again", "and on")):
            async with Driver(
                store=store,
                providers={"m": model},
                launcher=launcher_named(launcher),
                limits=limits,
            ) as driver:
                if prompt == "go":
                    run = await driver.start(AGENT, prompt, session_id="r")
                else:
                    run = await driver.resume("r", prompt)
                assert (await run.result()).text == text
                await run.close()
            check_logs(run)
            lost = [] if prompt == "again" else [f"/t1s1b{n}" for n in range(3)]
            assert sorted(path for path, _ in run.losses) == lost
    assert len(started) == 7 + 4, started


MOMENTS: dict[str, Callable[[ToHub], bool]] = {
    "after its hello": lambda message: isinstance(message, Hello),
    "at its call": lambda message: isinstance(message, Stream),
    "in a batch": lambda message: isinstance(message, Events) and message.first > 5,
    "before its goodbye": lambda message: isinstance(message, Result),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_when_it_has_said_something(
    launcher: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_message(launch: str, pid: int, message: ToHub) -> None:
        if launch == "w1" and MOMENTS[moment](message):
            kill(pid)

    on_each_message(monkeypatch, on_message)
    # So much that it does not come in one message.
    words = " ".join(map(str, range(1000)))
    check_lost(await ran(launcher, family(words)))


async def test_between_a_write_and_its_acknowledgement(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written stays, though its worker never came to hear of it."""
    tell: Any = HubLoop._tell
    struck: list[HubEvent] = []

    def told(self: HubLoop, event: HubEvent) -> None:
        running = self._workers._running.get("w1")
        is_its = isinstance(event, Durable) and event.sid == 1 and event.length > 3
        if is_its and running is not None and not struck:
            struck.append(event)
            kill(running.process.pid)
        tell(self, event)

    monkeypatch.setattr(HubLoop, "_tell", told)
    run = await ran(launcher, family("one two three"))
    (durable,) = struck
    assert isinstance(durable, Durable)
    assert len(run.logs[CHILD].events) >= durable.length
    check_lost(run)


def pids(patch: pytest.MonkeyPatch) -> dict[str, int]:
    """The pid of each worker, as they start."""
    found: dict[str, int] = {}
    on_each_start(patch, lambda launch, pid: found.update({launch: pid}))
    return found


async def until(run: StartedRun, kind: str, count: int = 1) -> None:
    """Wait until the child's log has grown by so many events of a type."""
    async for grown in run.events():
        if grown.path == CHILD and grown.event.type == kind:
            count -= 1
            if not count:
                return


async def test_in_the_middle_of_an_answer(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had come of it is kept, and is not taken for an answer."""
    known = pids(monkeypatch)

    async def strike(run: StartedRun) -> None:
        await until(run, "assistant/chunk", 3)
        kill(known["w1"])

    model = family(Answer("one two three").hangs(after=3))
    run = await ran(launcher, model, at=strike)
    check_lost(run)
    chunks = [e for e in run.logs[CHILD].events if e.type == "assistant/chunk"]
    assert len(chunks) >= 3


async def test_in_a_tool(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    on_each_message(
        monkeypatch,
        lambda launch, pid, message: (
            asked.append(pid) if isinstance(message, Tool) else None
        ),
    )
    with fifo(tmp_path / "pipe") as told:

        async def strike(run: StartedRun) -> None:
            await until(run, "tool/call")
            pid = int(await anyio.to_thread.run_sync(told.until, "runs "))
            assert asked == [pid]
            kill(pid)

        arguments = dumps({"fifo": str(tmp_path / "pipe")}).decode()
        model = family(calling(called("stays", arguments)), "never said")
        run = await ran(launcher, model, at=strike)
    check_lost(run)
    codes = [
        e.data["error"]["code"]
        for e in run.logs[CHILD].events
        if e.type == "tool/result"
    ]
    assert codes == ["TOOL_OUTCOME_UNKNOWN"]


async def test_after_its_last_event(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said goodbye: nothing was lost, and nothing is said to be."""

    def on_message(launch: str, pid: int, message: ToHub) -> None:
        if launch == "w1" and isinstance(message, Bye):
            with suppress(ProcessLookupError):  # it may have gone already
                kill(pid)

    on_each_message(monkeypatch, on_message)
    run = await ran(launcher, family("one two three"))
    assert run.losses == []
    assert not result_of(run)["isError"]
    check_logs(run)


# --- SIGSTOP ---------------------------------------------------------------------------


async def ticks(patch: pytest.MonkeyPatch, count: int) -> None:
    """Wait until the hub has looked at its clock so often."""
    tick, done = HubLoop._tick, threading.Event()
    seen: list[int] = []

    def ticked(self: HubLoop) -> None:
        tick(self)
        seen.append(1)
        if len(seen) > count:
            done.set()

    patch.setattr(HubLoop, "_tick", ticked)
    assert await anyio.to_thread.run_sync(done.wait, 20)


async def test_a_worker_that_is_stopped_for_too_long(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is suspected, and ended though it heeds nothing that can be refused."""
    stopped = threading.Event()
    silent(monkeypatch, CHILD, lambda _: stopped.is_set(), lambda _: True)
    shorten_ladder(monkeypatch)
    known = pids(monkeypatch)

    async def strike(run: StartedRun) -> None:
        await until(run, "assistant/chunk", 3)
        stop(known["w1"])
        stopped.set()

    model = family(Answer("one two three").hangs(after=3))
    check_lost(await ran(launcher, model, at=strike), "wedged: ")


async def test_a_worker_that_is_stopped_for_a_while(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = pids(monkeypatch)
    answer = Answer("one two three", chunk_delay=0.1)

    async def strike(run: StartedRun) -> None:
        await until(run, "assistant/chunk", 2)
        stop(known["w1"])
        await ticks(monkeypatch, 3)
        os.kill(known["w1"], signal.SIGCONT)

    run = await ran(launcher, family(answer), Limits(silence=3.0), strike)
    assert run.losses == []
    assert "one two three" in str(result_of(run)["content"])
    check_logs(run)


# --- what tools leave ------------------------------------------------------------------


@pytest.mark.parametrize("end", ["well", "by a cancel", "by SIGKILL"])
@pytest.mark.parametrize("tool", ["daemonises", "vanishes"])
async def test_what_a_tool_has_made_a_daemon_of(
    launcher: str, tool: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with its worker, in whatever session.

    One is deaf to SIGTERM and holds stdout, one has neither environment nor output.
    """
    known = pids(monkeypatch)
    arguments = dumps({"fifo": str(tmp_path / "pipe")}).decode()
    answer = Answer("one two") if end == "well" else Answer("one two").hangs(after=2)
    model = family(calling(called(tool, arguments)), answer)
    with fifo(tmp_path / "pipe") as told:
        left: list[int] = []

        async def strike(run: StartedRun) -> None:
            left.append(int(await anyio.to_thread.run_sync(told.until, "left ")))
            if end != "well":
                await until(run, "assistant/chunk", 3)
            if end == "by a cancel":
                await run.cancel(CHILD)
            elif end == "by SIGKILL":
                kill(known["w1"])

        run = await ran(launcher, model, at=strike)
    (pid,) = left
    process = process_of(pid)  # whoever inherits it here may be slow to reap
    assert process is None or not process.is_alive
    assert run.losses == [] or end == "by SIGKILL"
    check_logs(run)


# --- SIGKILL of a template -------------------------------------------------------------

MANY = int(os.environ.get("LC_NESTLING_MANY", "12"))
"""So many workers a template has; the issue asks for 50."""


async def test_a_template_with_many_workers(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody ends; the next run has another template, or needs none."""
    known = pids(monkeypatch)
    prompts = [f"hang {number}" for number in range(MANY - 1)]
    delegations = [
        called("subagent", f'{{"description":"d","prompt":"{prompt}"}}', prompt)
        for prompt in prompts
    ]
    hanging = {prompt: [Answer("one two").hangs(after=2)] for prompt in prompts}
    model = ScriptedModel(
        ["again"], by_prompt={"go": [calling(*delegations)], **hanging}
    )
    with anyio.fail_after(SECONDS):
        # Not the template of the other tests, which is to stay.
        modules = (AGENT.partition(":")[0],)
        starts = TemplateLauncher(modules) if launcher == "template" else launcher
        async with Driver(providers={"m": model}, launcher=starts) as driver:
            run = await driver.start(AGENT, "go")
            talking = set()
            async for grown in run.events():
                if grown.event.type == "assistant/chunk" and grown.path != "/":
                    talking.add(grown.path)
                if len(talking) == MANY - 1:
                    break
            assert len(known) == MANY
            with pidfds(*known.values()) as fds:
                if launcher == "template":
                    kill(parent_of(known["w0"]))
                else:
                    for pid in known.values():
                        kill(pid)
                result = await run.result()
                assert have_ended(fds, 0.0)
            await run.close()
            assert result.stop_reason == "error"
            why = "template-lost" if launcher == "template" else "SIGKILL"
            assert why in str(result.diagnostic)
            assert len(run.losses) == MANY
            check_logs(run)
            again = await driver.start(AGENT, "once more")
            assert (await again.result()).text == "again"
