"""Live runs that a user cancels, at a moment of the user's, and that are recorded.

Nobody says ahead where a session stops, as the plans of ``support.stopped`` do: the call
comes from outside while everything goes on, and where it met the sessions is only in
their logs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from nestling.driver import Driver
from nestling.driver.exits import Log
from nestling.driver.launcher_io import Launcher
from nestling.driver.started_run_io import StartedRun
from nestling.harness import Answer, ScriptedModel
from nestling.harness.scripted_model_io import AnswerLike
from nestling.session.jsontext import dumps
from nestling.session.store_io import open_store
from support.live import SECONDS, called, calling, reference
from support.stopped import Stopped

LONG: Final = Answer(" ".join(map(str, range(60))), chunk_delay=0.002)
"""An answer of more than a hundred chunks; there is time for everybody to get at it."""

LATER: Final = 0.2
"""Seconds that further events may take."""

Cancels = Callable[[StartedRun], Awaitable[bool]]


class Moment(NamedTuple):
    """A moment at which a run is cancelled.

    Attributes:
        kind: the type of an event,
        nth: the how manieth of them it is that the user sees,
        path: and of which session.
        agent: of ``tests/live/agents``.
        model: who answers; a new one each time.
        cancels: how it is cancelled.
        reasons: how turns end by it, by path; the root's first turn, then.
        goes_on: whether it is told to go on afterwards.
    """

    kind: str
    nth: int
    path: str
    agent: str
    model: Callable[[], ScriptedModel]
    cancels: Cancels
    reasons: Mapping[str, list[str]]
    goes_on: bool = True


def _cancel(run: StartedRun) -> Awaitable[bool]:
    return run.cancel()


def _cancel_call(run: StartedRun) -> Awaitable[bool]:
    return run.cancel_call()


def _says(*answers: AnswerLike) -> Callable[[], ScriptedModel]:
    return lambda: ScriptedModel(
        answers, by_prompt={"go on": ["It went on."], "one": [LONG], "two": [LONG]}
    )


def _deep() -> ScriptedModel:
    """A root has a child, and that one another."""
    answers = {"go": [_child("subagent")], "one": [_child("subagent", "two")]}
    return ScriptedModel(by_prompt={**answers, "two": [LONG], "go on": ["It went on."]})


def _child(name: str, prompt: str = "one") -> AnswerLike:
    arguments = {"description": "d", "prompt": prompt}
    asked = called(name, dumps(arguments).decode(), "a")
    return calling(asked, called("quick", call_id="q"), text="I ask.")


_CALLED: Final = calling(
    called("quick", call_id="a"), called("hangs", call_id="b"), called("quick")
)
_ABORTED: Final = {"/": ["user", "completed"]}
_WITH_CHILD: Final = {"/": ["user", "completed"], "/t1s1b1": ["parent"]}
_BY_CODE: Final = {
    "/": ["user"],
    "/t1s0kone": ["parent"],
    "/t1s0ktwo": ["parent"],
}

MOMENTS: Final[dict[str, Moment]] = {
    "in an answer": Moment(
        "assistant/chunk", 9, "/", "stopped:lead", _says(LONG), _cancel, _ABORTED
    ),
    "before the first chunk": Moment(
        "request/header",
        1,
        "/",
        "stopped:lead",
        _says(Answer("late").hangs()),
        _cancel,
        _ABORTED,
    ),
    "in a spawned child": Moment(
        "assistant/chunk",
        9,
        "/t1s1b1",
        "stopped:lead",
        _says(_child("subagent")),
        _cancel,
        _WITH_CHILD,
    ),
    "in a forked child": Moment(
        "assistant/chunk",
        9,
        "/t1s1b1",
        "stopped:forks",
        _says(_child("subagent_fork")),
        _cancel,
        _WITH_CHILD,
    ),
    "only a child": Moment(
        "assistant/chunk",
        9,
        "/t1s1b1",
        "stopped:lead",
        _says(_child("subagent"), "It was stopped."),
        lambda run: run.cancel("/t1s1b1"),
        {"/": ["completed", "completed"], "/t1s1b1": ["user"]},
    ),
    "in a grandchild": Moment(
        "assistant/chunk",
        9,
        "/t1s1b1/t1s1b1",
        "stopped:lead",
        _deep,
        _cancel,
        {**_WITH_CHILD, "/t1s1b1/t1s1b1": ["parent"]},
    ),
    "in a child of a tool": Moment(
        "assistant/chunk",
        9,
        "/t1s1b0",
        "stopped:lead",
        _says(calling(called("asks", '{"question":"one"}'))),
        _cancel,
        {"/": ["user", "completed"], "/t1s1b0": ["parent"]},
    ),
    "in children of code": Moment(
        "assistant/chunk",
        9,
        "/t1s0ktwo",
        "stopped:asks_two",
        _says(),
        _cancel,
        _BY_CODE,
        goes_on=False,
    ),
    "in a tool": Moment(
        "tool/result", 1, "/", "stopped:lead", _says(_CALLED), _cancel, _ABORTED
    ),
    "as tools begin": Moment(
        "tool/call", 1, "/", "stopped:lead", _says(_CALLED), _cancel, _ABORTED
    ),
    "in the wait for a retry": Moment(
        "llm/retry",
        1,
        "/",
        "stopped:patient",
        _says(Answer("half").fails(after=2)),
        _cancel,
        _ABORTED,
    ),
    "in code that sleeps": Moment(
        "user/message",
        2,
        "/",
        "stopped:sleeps",
        _says("Good night."),
        _cancel,
        {"/": ["user"]},
        goes_on=False,
    ),
    "a call": Moment(
        "assistant/chunk",
        9,
        "/",
        "stopped:lead",
        _says(LONG),
        _cancel_call,
        {"/": ["error", "completed"]},
    ),
    "a call of code that goes on": Moment(
        "assistant/chunk",
        9,
        "/",
        "stopped:hears_of_its_call",
        _says(LONG, "again"),
        _cancel_call,
        {"/": ["completed", "completed"]},
    ),
}
"""By what happens then."""


async def _grown(run: StartedRun, count: int, path: str = "", kind: str = "") -> None:
    """Wait until the user has seen so many events, of a type and a session, or any."""
    if count:
        async for grown in run.events():
            is_one = not path or (grown.path, grown.event.type) == (path, kind)
            count -= is_one
            if not count:
                return


async def cancelled(
    moment: Moment, store: Path, launcher: Launcher, later: int = 0
) -> Stopped:
    """Run an agent, cancel it then, and read what the store has.

    Args:
        moment: when.
        store: a folder for the store.
        launcher: starts the workers.
        later: so many events later; the run may be past it then.
    """
    agent, model, prompts = reference(moment.agent), moment.model(), ["go"]
    with anyio.fail_after(SECONDS):
        async with Driver(
            store=f"jsonl:{store}", providers={"m": model}, launcher=launcher
        ) as driver:
            run = await driver.start(agent, prompts)
            await _grown(run, moment.nth, moment.path, moment.kind)
            with anyio.move_on_after(LATER):  # nothing more may come
                await _grown(run, later)
            await moment.cancels(run)
            await run.result()
            if moment.goes_on:
                prompts.append("go on")
                await run.send("go on")
                await run.result()
            logs = await run.close()
    with open_store(f"jsonl:{store}") as opened:
        stored = {path: opened.load(log.header.id) for path, log in logs.items()}
    logs = {path: Log(each.header, each.events) for path, each in stored.items()}
    return Stopped(logs, agent, prompts, store / "marks", {})
