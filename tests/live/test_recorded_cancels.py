"""Turns that were cancelled: what was recorded of them replays, wherever it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nestling.driver.director import CancelAt, Stops
from nestling.driver.launcher_io import Launcher
from nestling.harness import Answer, ScriptedModel
from nestling.harness.scripted_model_io import AnswerLike
from nestling.session.jsontext import JsonObject
from support.live import called, calling, warm
from support.stopped import Plan, Stopped, check, stopped

USER: JsonObject = {"kind": "user"}
PARENT: JsonObject = {"kind": "parent"}
ASK = '{"description":"d","prompt":"one"}'


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    """A template that all runs of this module share."""
    with warm() as launcher:
        yield launcher


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where tools leave their marks."""
    return tmp_path / "marks"


def cancel(length: int, cause: JsonObject = USER, children: int = 0) -> Stops:
    return Stops(cancels=(CancelAt(length, cause, children),))


def answers(*calls: JsonObject) -> ScriptedModel:
    """A root that calls tools, and children that call one and then answer."""
    child: list[AnswerLike] = [calling(called("hangs", call_id="x")), "child done"]
    return ScriptedModel(
        [calling(*calls, text="Let me see."), "second", "third"],
        by_prompt={"one": child, "two": child},
    )


def error_codes(run: Stopped, path: str = "/") -> list[str | None]:
    return [
        event.data.get("error", {}).get("code")
        for event in run.events(path)
        if event.type == "tool/result"
    ]


async def test_in_a_tool(marks: Path, launcher: Launcher) -> None:
    calls = called("quick", call_id="a"), called("hangs", call_id="b")
    whole = await stopped(
        "stopped:lead", answers(*calls), Plan(serves=True), marks, launcher
    )
    for length, codes in (
        (whole.after("tool/call", 2), ["ABORTED", "ABORTED"]),
        (whole.after("tool/result"), [None, "ABORTED"]),
    ):
        plan = Plan({"/": cancel(length)})
        run = await stopped("stopped:lead", answers(*calls), plan, marks, launcher)
        assert run.reasons() == ["user", "completed"]
        if length == whole.after("tool/result"):
            assert error_codes(run) == codes
        await check(run, launcher)
        assert run.ran() in (["quick"], [])


async def test_before_the_first_chunk(marks: Path, launcher: Launcher) -> None:
    model = answers(called("quick"))
    plan = Plan(cut={("/", 0): USER, ("/", 2): PARENT})
    run = await stopped("stopped:lead", model, plan, marks, launcher, ("a", "b", "c"))
    assert run.reasons() == ["user", "parent", "completed"]
    await check(run, launcher)


@pytest.mark.parametrize("agent", ["sleeps", "naps"])
@pytest.mark.parametrize("seconds", [3600, 0])
async def test_in_code_that_sleeps(
    agent: str, seconds: float, marks: Path, launcher: Launcher
) -> None:
    """Also where the code sleeps for less when it is replayed."""
    name, model = f"stopped:{agent}", ["one", "two", "three", "four"]
    brief = Plan(options={"seconds": 0})
    whole = await stopped(name, ScriptedModel(model), brief, marks, launcher, ["go"])
    kind = "user/message" if agent == "sleeps" else "assistant/message"
    length = whole.after(kind, 2 if agent == "sleeps" else 1)
    plan = Plan({"/": cancel(length)})
    run = await stopped(name, ScriptedModel(model), plan, marks, launcher, ["go"])
    assert run.reasons() == ["user"]
    run = run._replace(told={"seconds": seconds})
    await check(run, launcher)


async def test_in_the_wait_for_a_retry(marks: Path, launcher: Launcher) -> None:
    model: list[AnswerLike] = [Answer("half").fails("SERVER", after=2), "two", "three"]
    whole = await stopped(
        "stopped:lead", ScriptedModel(model), Plan(), marks, launcher, ["go"]
    )
    plan = Plan({"/": cancel(whole.after("llm/retry"))})
    run = await stopped("stopped:patient", ScriptedModel(model), plan, marks, launcher)
    assert run.reasons() == ["user", "completed"]
    assert "llm/retry-started" not in run.kinds()
    await check(run, launcher)


DELEGATING = {
    "by the model": ("lead", [called("subagent", ASK, "a")], "/t1s1b0"),
    "in a tool": ("lead", [called("asks", '{"question":"one"}', "a")], "/t1s1b0"),
    "beside a tool": (
        "lead",
        [called("hangs", call_id="h"), called("subagent", ASK, "a")],
        "/t1s1b2",
    ),
    "before a tool": (
        "lead",
        [called("subagent", ASK, "a"), called("hangs", call_id="h")],
        "/t1s1b1",
    ),
}


@pytest.mark.parametrize("how", DELEGATING)
async def test_with_a_child(how: str, marks: Path, launcher: Launcher) -> None:
    """The child is cancelled with its parent, and so is its tool."""
    agent, calls, _ = DELEGATING[how]
    name = f"stopped:{agent}"
    serves = Plan(serves=how != "in a tool")
    if how == "in a tool":
        model = ScriptedModel(
            [calling(*calls, text="Let me see."), "second"],
            by_prompt={"one": "child done"},
        )
    else:
        model = answers(*calls)
    whole = await stopped(name, model, serves, marks, launcher, ["go"])
    (path,) = set(whole.logs) - {"/"}
    length = whole.after("tool/call", len(calls))
    child = whole.after("request/header", path=path)
    if how != "in a tool":
        child = whole.after("tool/call", path=path)
        plan = Plan({"/": cancel(length, USER, 1), path: cancel(child, PARENT)})
    else:
        plan = Plan({"/": cancel(length, USER, 1)}, cut={(path, 0): PARENT})
    model = answers(*calls)
    run = await stopped(name, model, plan, marks, launcher)
    assert run.reasons() == ["user", "completed"]
    assert run.reasons(path) == ["parent"]
    assert set(error_codes(run)) == {"ABORTED"}
    await check(run, launcher)
    assert run.ran() == (["asks", "asks"] if how == "in a tool" else [])


async def test_with_children_of_code(marks: Path, launcher: Launcher) -> None:
    name = "stopped:asks_two"
    model = answers(called("quick"))
    whole = await stopped(name, model, Plan(serves=True), marks, launcher, ["go"])
    one, two = sorted(set(whole.logs) - {"/"})
    length = whole.after("user/message")
    child = whole.after("tool/call", path=one)
    plan = Plan(
        {
            "/": cancel(length, USER, 2),
            one: cancel(child, PARENT),
            two: cancel(child, PARENT),
        }
    )
    model = answers(called("quick"))
    run = await stopped(name, model, plan, marks, launcher, ["go"])
    assert run.reasons() == ["user"]
    assert run.reasons(one) == run.reasons(two) == ["parent"]
    await check(run, launcher)
    assert run.ran() == []
