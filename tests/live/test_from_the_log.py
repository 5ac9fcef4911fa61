"""What a log tells of a call that went wrong is replayed, in every session of a tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from nestling.driver import Driver, ExecLauncher
from nestling.harness import (
    ScriptedModel,
    cast_of,
    load_scenario,
    replay,
    save_scenario,
)
from nestling.session.errors import NestlingError
from support.live import SECONDS
from support.recordings import Folder, command

AGENT = """
import asyncio
from nestling.worker import Agent, ModelCallError, NO_RETRY, RetryPolicy

retries = Agent("m/any", "You work.", retry=RetryPolicy(max_retries=2, base_ms=1))
once = Agent("m/any", "You work.", retry=NO_RETRY)


async def copes(turn):
    try:
        await turn.stream(model="m/any", retry=NO_RETRY)
    except ModelCallError:
        turn.append("It failed.")
    await turn.stream(model="m/any", retry=NO_RETRY)


async def hasty(turn):
    # It gives its stream up before the first chunk; the call is in the log, and goes on.
    try:
        async with asyncio.timeout(0):
            await turn.stream(model="m/any")
    except TimeoutError:
        pass


async def family(turn):
    child = "agent.py:" + turn.options["child"]
    await turn.delegate("work", key="one", agent=child)
    await turn.stream(model="m/any")
"""

MODEL = """
from nestling.harness import Answer, ScriptedModel

SAID = "One two three four."
ANSWERS = {answers}


def model():
    return ScriptedModel(by_prompt={{"work": ANSWERS, "It failed.": "Then again."}},
                         answers=["The root is done."])
"""

FAILURES = {
    "before the first chunk": "Answer(SAID).fails('SERVER', after=0)",
    "in mid-stream": "Answer(SAID).fails('SERVER', after=3)",
    "after an empty block": "Answer(SAID).fails('RATE_LIMIT', after=1)",
    "by its own finish": "Answer(SAID, finish='error')",
}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with the agents."""
    path = tmp_path / "log"
    path.mkdir()
    (path / "agent.py").write_text(AGENT)
    return Folder(path, path / "marks")


def configured(
    folder: Folder, agent: str, is_child: bool, *answers: str, **more: Any
) -> str:
    """Write a scenario whose root, or whose child, is an agent; return that one's path."""
    listed = f"[{', '.join(answers)}]"
    (folder.path / "model.py").write_text(MODEL.format(answers=listed))
    lines = [f'agent = "agent.py:{"family" if is_child else agent}"']
    lines.append('provider = "model.py:model"')
    path = "/t1s0kone" if is_child else "/"
    cancel = more.get("cancel")
    stop = "" if cancel is None else f', path = "{path}"'
    lines += ["[[steps]]", f'prompt = "{"root" if is_child else "work"}"']
    if cancel is not None:
        lines.append(f"cancel = {{ after = {cancel}{stop} }}")
    if is_child:
        lines += ["[options]", f'child = "{agent}"']
    (folder.path / "scenario.toml").write_text("\n".join(lines))
    return path


def recorded(folder: Folder, path: str) -> list[list[str]]:
    """Record, replay as both kinds, and return the chunks' types of each call."""
    result = folder.record("--json")
    assert result.json["problems"] == [], result.err
    for agent in ((), ("--agent", "tape"), ("--agent", "tape", "--speed", "1000")):
        replay = folder.replay("--json", *agent)
        assert replay.json["problems"] == []
    assert command("refresh", str(folder.path), "--json").json["changed"] == []
    script = load_scenario(folder.path).by_path[path].script
    return [[chunk["type"] for chunk in call.entry.chunks] for call in script]


@pytest.mark.parametrize("is_child", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("agent", ["retries", "once", "copes"])
def test_a_call_that_fails(
    folder: Folder, agent: str, failure: str, is_child: bool
) -> None:
    path = configured(folder, agent, is_child, FAILURES[failure], "SAID")
    calls = recorded(folder, path)
    is_retried = agent == "copes" or (agent == "retries" and "finish" not in failure)
    assert len(calls) == (2 if is_retried else 1)
    assert all(types[-1] == "finish" for types in calls)


@pytest.mark.parametrize("is_child", [False, True])
@pytest.mark.parametrize("after", [0, 2])
def test_a_call_that_hangs_and_is_cancelled(
    folder: Folder, after: int, is_child: bool
) -> None:
    hanging = f"Answer(SAID).hangs(after={after})"
    path = configured(folder, "once", is_child, hanging, cancel=after)
    calls = recorded(folder, path)
    assert [len(types) for types in calls] == ([after] if after else [])


@pytest.mark.parametrize("is_child", [False, True])
def test_a_stream_that_its_consumer_gives_up(folder: Folder, is_child: bool) -> None:
    """The whole call is in the log: it had been made, and its answer was paid for."""
    path = configured(folder, "hasty", is_child, "SAID")
    (types,) = recorded(folder, path)
    assert types[-1] == "finish"
    own = load_scenario(folder.path).by_path[path].own_events
    assert [e.type for e in own if e.type == "assistant/message"] == [
        "assistant/message"
    ]


# --- {{fromRequest}} -------------------------------------------------------------------


@pytest.mark.parametrize("is_child", [False, True])
def test_a_placeholder_is_filled_from_the_live_request(
    folder: Folder, is_child: bool
) -> None:
    """And what the log says of it is filled in likewise; a refresh leaves it there."""
    path = configured(folder, "once", is_child, "'You said: work, twice.'")
    recorded(folder, path)
    number = ".1" if is_child else ""
    log = folder.path / f"session{number}.jsonl"
    text = log.read_text()
    pieces = '"You"," said",":"," work",","," twice","."'
    assert text.count(pieces) <= 1
    placeholder = "{{fromRequest:w(or)k}}"
    edited = text.replace(" work, twice", f" {placeholder}, twice")
    edited = edited.replace('" work,"', f'" {placeholder},"')
    edited = edited.replace('" work"', f'" {placeholder}"')
    assert edited.count(placeholder) >= 2
    log.write_text(edited)
    for agent in ((), ("--agent", "tape")):
        result = folder.replay("--json", *agent)
        assert result.json["problems"] == []
        outputs = {each["path"]: each["output"] for each in result.json["sessions"]}
        assert outputs[path] == "You said: or, twice."


@pytest.mark.parametrize(
    ("placeholder", "told"),
    [
        ("{{fromRequest:never said}}", "matched nothing in the request"),
        ("{{fromRequest:(}}", "fromRequest: "),
        ("{{fromRequest:work", "expected }} at its end"),
    ],
)
def test_a_placeholder_that_cannot_be(
    folder: Folder, placeholder: str, told: str
) -> None:
    configured(folder, "once", False, "'Wonderful.'")
    assert folder.record().exit_code == 0
    log = folder.path / "session.jsonl"
    log.write_text(log.read_text().replace("Wonderful", json.dumps(placeholder)[1:-1]))
    result = folder.replay("--json", "--agent", "tape")
    assert result.exit_code == 1
    assert any(
        "call 1: fromRequest: " in problem["message"] and told in problem["message"]
        for problem in result.json["problems"]
    )


# --- saving a run ----------------------------------------------------------------------


async def _run(folder: Path, *prompts: str, options: dict[str, Any]) -> Any:
    model = ScriptedModel(["one", "two", "three"])
    with anyio.fail_after(SECONDS):
        async with Driver(providers={"*": model}, launcher="exec") as driver:
            agent = f"{folder / 'agent.py'}:family"
            run = await driver.start(agent, prompts, options=options)
            await run.result()
            return await run.close()


async def test_a_run_is_saved(folder: Folder) -> None:
    options = {"child": "once", 'a "key"': ["é\n", {"deep": [1, 2.5, True]}]}
    logs = await _run(folder.path, 'first "one"', options=options)
    agent = f"{folder.path / 'agent.py'}:family"
    saved = folder.path.parent / "saved"
    # The child's reference is the agent's own business: it is found beside it.
    (saved).mkdir()
    report = save_scenario(saved, logs, agent=agent, options=options)
    assert report.is_ok
    assert {path.name for path in saved.iterdir()} == {
        "scenario.toml",
        "session.jsonl",
        "session.1.jsonl",
    }
    assert 'agent = "../log/agent.py:family"' in (saved / "scenario.toml").read_text()
    for cast in (cast_of(saved, None), cast_of(saved, "tape")):
        with anyio.fail_after(SECONDS):
            replayed = await replay(
                load_scenario(saved), None, ExecLauncher(), cast=cast
            )
        assert replayed.problems == ()
    again = save_scenario(saved, logs, agent="other.py:x")
    assert again.is_ok
    assert "other" not in (saved / "scenario.toml").read_text()


async def test_a_run_that_is_no_recording(folder: Folder) -> None:
    logs = await _run(folder.path, "first", options={})
    report = save_scenario(folder.path / "new", logs, agent="a.py:b")
    assert not report.is_ok
    assert not (folder.path / "new").exists()


async def test_what_a_configuration_cannot_hold(folder: Folder) -> None:
    logs = await _run(folder.path, "first", options={"child": "once", "x": None})
    with pytest.raises(NestlingError, match="found null"):
        save_scenario(folder.path / "new", logs, agent="a.py:b", options={"x": None})
    assert not (folder.path / "new").exists()
