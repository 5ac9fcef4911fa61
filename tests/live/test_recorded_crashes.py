"""Workers and drivers that died: what was recorded of them replays, wherever it was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from nestling.driver import Driver, ExecLauncher, Log
from nestling.driver.director import KillAt, Stops
from nestling.driver.launcher_io import Launcher
from nestling.harness import ScriptedModel
from nestling.harness.scripted_model_io import AnswerLike
from nestling.session.jsontext import JsonObject, dumps
from nestling.session.store_io import open_store
from support.killed_drivers import delegation, mortal, wait_for
from support.live import SECONDS, called, calling, reference, warm
from support.mortal_driver import model as mortal_model
from support.processes import needs_linux
from support.stopped import Plan, Stopped, check, check_processes, check_tape, stopped

ASK = '{"description":"d","prompt":"one"}'
CALLS = [
    called("quick", call_id="a"),
    called("subagent", ASK, "b"),
    called("quick", call_id="c"),
]
TURN = (
    "turn/start",
    "user/message",
    "step/start",
    "request/header",
    "assistant/chunk",
    "assistant/message",
    "tool/call",
    "tool/result",
    "step/end",
)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    """A template that all runs of this module share."""
    with warm() as launcher:
        yield launcher


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where tools leave their marks."""
    return tmp_path / "marks"


def kill(*lengths: int) -> Stops:
    return Stops(kills=tuple(map(KillAt, lengths)))


def answers(*calls: JsonObject) -> ScriptedModel:
    return ScriptedModel(
        [calling(*(calls or CALLS), text="Let me see."), *("wxyz")],
        by_prompt={"one": [calling(called("quick")), "child done"]},
    )


# --- workers -------------------------------------------------------------------


@pytest.mark.parametrize("kind", TURN)
async def test_a_worker_dies_after_an_event(
    kind: str, marks: Path, launcher: Launcher
) -> None:
    """After the first and the last of its turn's; the next turn is another worker's."""
    whole = await stopped("stopped:lead", answers(), Plan(), marks, launcher)
    end = whole.after("turn/end")
    seqs = [e.seq for e in whole.events() if e.type == kind and e.seq < end]
    for length in {seqs[0] + 1, seqs[-1] + 1}:
        run = await stopped(
            "stopped:lead", answers(), Plan({"/": kill(length)}), marks, launcher
        )
        assert run.reasons() == ["interrupted", "completed"]
        await check(run, launcher)


async def test_a_tool_that_a_worker_died_in_is_not_run_again(
    marks: Path, launcher: Launcher
) -> None:
    calls = called("quick", call_id="a"), called("hangs", call_id="b")
    whole = await stopped(
        "stopped:lead", answers(*calls), Plan(serves=True), marks, launcher
    )
    stops = {"/": kill(whole.after("tool/result"))}
    # Its first result is what ends the worker, and must not come before both tools run.
    plan = Plan(stops, options={"after": "hangs"})
    run = await stopped("stopped:lead", answers(*calls), plan, marks, launcher)
    run = run._replace(told={})
    assert run.ran() == ["hangs", "quick"]
    results = [e.data.get("error") for e in run.events() if e.type == "tool/result"]
    assert [None if e is None else e["code"] for e in results] == [
        None,
        "TOOL_OUTCOME_UNKNOWN",
    ]
    scenario = check_tape(run)
    for runs_tools, ran in ((False, []), (True, ["quick"])):
        cast = run.cast(runs_tools=runs_tools)
        await check_processes(scenario, launcher, cast)
        assert run.ran() == ran


async def test_a_worker_kills_itself_after_a_call(
    marks: Path, launcher: Launcher
) -> None:
    """What was heard of it is heard again, though its code does not wait for that."""
    model = ["Said.", "again"]
    whole = await stopped(
        "stopped:lead", ScriptedModel(model), Plan(), marks, launcher, ["go"]
    )
    length = whole.after("assistant/message") - 1
    plan = Plan({"/": kill(length)})
    run = await stopped(
        "stopped:kills_itself", ScriptedModel(model), plan, marks, launcher, ["go"]
    )
    assert run.kinds()[-3:] == ["request/header", "step/end", "turn/end"]
    assert run.events()[-3].seq == length - 1
    await check(run, launcher)


async def test_a_worker_dies_again_and_again(marks: Path, launcher: Launcher) -> None:
    prompts = ["one", "two", "three"]
    whole = await stopped(
        "stopped:lead", ScriptedModel([*"abcd"]), Plan(), marks, launcher, prompts
    )
    first = whole.after("assistant/chunk")
    for second in (first + 3, first + 5, first + 7):
        plan = Plan({"/": kill(first, second)})
        run = await stopped(
            "stopped:lead", ScriptedModel([*"abcd"]), plan, marks, launcher, prompts
        )
        assert run.reasons() == ["interrupted", "interrupted", "completed"]
        await check(run, launcher)


@pytest.mark.parametrize("by", ["the model", "a tool", "code"])
async def test_a_child_dies(by: str, marks: Path, launcher: Launcher) -> None:
    """Its parent is told by a diagnostic, and goes on; in a replay, too."""
    name = "stopped:asks_two" if by == "code" else "stopped:lead"
    call = (
        called("asks", '{"question":"one"}') if by == "a tool" else called(*_SUBAGENT)
    )

    def model() -> ScriptedModel:
        child: list[AnswerLike] = [calling(called("quick")), "child done"]
        own: list[AnswerLike] = ["said"]
        if by != "code":
            own.insert(0, calling(call))
        return ScriptedModel(own, by_prompt={"one": child, "two": child})

    whole = await stopped(name, model(), Plan(), marks, launcher, ["go"])
    path = min(set(whole.logs) - {"/"})
    log = whole.logs[path].events
    for kind in ("step/start", "assistant/chunk", "tool/call", "tool/result"):
        length = next(event.seq for event in log if event.type == kind) + 1
        plan = Plan({path: kill(length)})
        run = await stopped(name, model(), plan, marks, launcher, ["go"])
        assert run.reasons(path) == ["interrupted"]
        assert run.reasons() == ["completed"]
        assert b"Diagnostic: its worker ended" in dumps(
            [event.content() for event in run.events()]
        )
        await check(run, launcher)


_SUBAGENT = ("subagent", ASK)


@pytest.mark.parametrize("by", ["the model", "a tool", "code"])
async def test_a_parent_dies_while_its_children_run(
    by: str, marks: Path, launcher: Launcher
) -> None:
    """They end with it, wherever they are, and are there when it is replayed."""
    name = "stopped:asks_two" if by == "code" else "stopped:lead"
    other = ASK.replace("one", "two")
    calls = [called("subagent", ASK, "a"), called("subagent", other, "b")]
    if by == "a tool":
        calls = [
            called("asks", dumps({"question": each}).decode(), each)
            for each in ("one", "two")
        ]

    def model() -> ScriptedModel:
        own: list[AnswerLike] = ["said"]
        if by != "code":
            own.insert(0, calling(*calls))
        one: list[AnswerLike] = [calling(called("quick")), "one, again"]
        return ScriptedModel(own, by_prompt={"one": one, "two": ["two", "two, again"]})

    whole = await stopped(name, model(), Plan(), marks, launcher, ["go"])
    one, two = sorted(set(whole.logs) - {"/"})
    length = whole.after("tool/call", 2) if by != "code" else 2
    child = whole.after("tool/call", path=one)
    stops = {"/": Stops(kills=(KillAt(length, 1),)), one: kill(child)}
    run = await stopped(name, model(), Plan(stops), marks, launcher)
    assert run.reasons()[0] == "interrupted"
    assert run.reasons(one) == ["interrupted"]
    assert run.reasons(two) in (["interrupted"], ["completed"], [])
    await check(run, launcher)


@pytest.mark.parametrize("name", ["exec", "template"])
async def test_a_death_is_the_same_each_time(
    name: str, marks: Path, launcher: Launcher
) -> None:
    """A root's and its child's, by both launchers; a tool may take any time."""
    whole = await stopped("stopped:lead", answers(), Plan(), marks, launcher, ["go"])
    (path,) = set(whole.logs) - {"/"}
    child = kill(whole.after("tool/call", path=path))
    root = Stops(kills=(KillAt(whole.after("tool/call", 3), 1),))
    plan = Plan({"/": root, path: child})
    run = await stopped("stopped:lead", answers(), plan, marks, launcher)
    scenario = check_tape(run, schedules=50)
    starts = ExecLauncher() if name == "exec" else launcher
    for cast in (None, run.cast(runs_tools=True)):
        for _ in range(2 if name == "exec" else 5):
            await check_processes(scenario, starts, cast)


# --- drivers -------------------------------------------------------------------


@pytest.fixture
def runs(box: Path) -> Iterator[None]:
    """Remove the run directories that a killed driver cannot remove."""
    yield
    for left in box.glob("nestling-*"):
        shutil.rmtree(left)


def harvested(address: str) -> dict[str, Log]:
    """What a store holds of one tree, by spawn path."""
    logs = {}
    with open_store(address) as store:
        for listed in store.sessions():
            stored = store.inspect(listed.id)
            path = listed.id.removeprefix("root").replace(".", "/") or "/"
            logs[path] = Log(stored.header, tuple(stored.events))
    return logs


async def resumed(address: str, prompt: str, session_id: str = "root") -> None:
    """Have another driver go on."""
    with anyio.fail_after(SECONDS):
        model = ScriptedModel(mortal_model)
        async with Driver(
            store=address, providers={"m": model}, launcher=warm()
        ) as driver:
            run = await driver.resume(session_id, prompt)
            await run.result()


DRIVERS = {
    "in a stream": (["one", "hang now"], "/", ["hangs hang now"]),
    "in a child": ([delegation("subagent", "hang on")], "/t1s1b0", ["hangs hang on"]),
    "with a child that had settled": (
        [
            delegation("subagent", "work")
            + "\n"
            + delegation("subagent_fork", "hang on")
        ],
        "/t1s1b1",
        ["hangs hang on", "stored root.t1s1b0 turn/end"],
    ),
    "in a grandchild": (
        ["one", delegation("subagent_fork", delegation("subagent_fork", "hang on"))],
        "/t2s1b0/t2s1b0",
        ["hangs hang on"],
    ),
}


@needs_linux
@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("where", DRIVERS)
@pytest.mark.parametrize("store", ["jsonl", "sqlite"])
async def test_a_driver_died_and_another_went_on(
    where: str, store: str, tmp_path: Path, marks: Path, launcher: Launcher
) -> None:
    """What a repair told the parent of its children is what it is told again."""
    prompts, deepest, lines_of_it = DRIVERS[where]
    address, agent = f"{store}:{tmp_path / 'store'}", reference("family:parent")
    with mortal(address, agent, *prompts) as (_, lines):
        wait_for(lines, *lines_of_it)
    await resumed(address, "What now?")
    await resumed(address, delegation("subagent", "work"))
    logs = harvested(address)
    told = [*prompts, "What now?", delegation("subagent", "work")]
    run = Stopped(logs, agent, told, marks, {})
    assert "interrupted" in run.reasons(deepest)
    assert run.reasons()[-3:] == ["interrupted", "completed", "completed"]
    await check(run._replace(told={}), launcher)


@needs_linux
@pytest.mark.usefixtures("runs")
async def test_a_driver_died_while_code_had_delegated(
    tmp_path: Path, marks: Path, launcher: Launcher
) -> None:
    address = f"jsonl:{tmp_path / 'store'}"
    agent = reference("family:delegates")
    with mortal(address, agent, "hang") as (_, lines):
        wait_for(lines, "hangs hang")
    await resumed(address, "again")
    run = Stopped(harvested(address), agent, ["hang", "again"], marks, {})
    assert set(run.logs) == {"/", "/t1s0d0", "/t2s0d0"}
    assert run.reasons("/t1s0d0") == ["interrupted"]
    await check(run, launcher)


@needs_linux
@pytest.mark.usefixtures("runs")
async def test_a_child_that_went_on_by_itself(
    tmp_path: Path, marks: Path, launcher: Launcher
) -> None:
    """After its driver's death and its parent's; its parent goes on later."""
    address, agent = f"jsonl:{tmp_path / 'store'}", reference("family:parent")
    prompt = delegation("subagent", "hang on")
    with mortal(address, agent, prompt) as (_, lines):
        wait_for(lines, "hangs hang on")
    await resumed(address, "What now?")
    await resumed(address, "And you?", "root.t1s1b0")
    run = Stopped(harvested(address), agent, [prompt, "What now?"], marks, {})
    assert run.reasons("/t1s1b0") == ["interrupted", "completed"]
    await check(run, launcher)
