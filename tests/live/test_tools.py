"""Tools of live agents: how they run, and what a model is told when they cannot."""

from __future__ import annotations

import json

import pytest

from nestling.driver.started_run_io import prompt_blocks
from nestling.harness import Cast, ScriptedModel, replay
from nestling.session.request import Request
from support.live import (
    Ran,
    called,
    calling,
    check_tape,
    ran,
    reference,
    warm,
)


async def one_call(name: str, arguments: str = "{}", *more: str) -> Ran:
    """Have the agent of all tools call one; children answer with their prompt."""
    model = ScriptedModel(
        [calling(called(name, arguments)), "done"],
        by_text={f"child {each}": f"answer {each}" for each in more},
    )
    run = await ran("tools:all_tools", model)
    assert run.result.text == "done"
    return run


async def test_results_stand_in_the_order_of_the_calls() -> None:
    """The last one ends first, the plain one in its thread next, then the first."""
    names = ("first", "second", "third")
    calls = [called(name, "{}", f"c-{name}") for name in names]
    run = await ran("tools:parallel", [calling(*calls), "done"])
    assert run.tool_results() == [(f"c-{name}", name, False) for name in names]
    types = [event.type for event in run.logs["/"].events]
    assert (
        types[types.index("tool/call") :][:6] == ["tool/call"] * 3 + ["tool/result"] * 3
    )
    check_tape(run)


async def test_a_call_id_that_a_message_has_twice() -> None:
    calls = [called("add", json.dumps({"a": n}), "same") for n in (1, 2)]
    run = await ran("tools:all_tools", [calling(*calls), "done"])
    assert run.tool_results() == [("same", "2", False), ("same", "3", False)]
    check_tape(run)


@pytest.mark.parametrize(
    ("name", "arguments", "told", "code"),
    [
        ("nope", "{}", "there is no tool 'nope', the tools are: add, ", "UNKNOWN_TOOL"),
        ("add", "{", "", "INVALID_ARGS"),
        ("add", "[]", "", "INVALID_ARGS"),
        ("add", '{"a": "x"}', "a", "INVALID_ARGS"),
        ("add", '{"a": 1, "z": 1}', "z", "INVALID_ARGS"),
        ("add", '{"a": 1e999}', "", "INVALID_ARGS"),
        ("breaks", '{"why": "so"}', "ValueError: so", "TOOL_ERROR"),
        ("breaks_mutely", "{}", "Mute", "TOOL_ERROR"),
        ("returns_set", "{}", "no result can hold", "TOOL_ERROR"),
        ("leaves", "{}", "SystemExit: 3", "TOOL_ERROR"),
        ("cancels", "{}", "CancelledError", "TOOL_ERROR"),
        ("subagent", "{", "delegation arguments: ", "INVALID_ARGS"),
        ("subagent", '{"description": "d"}', "prompt must be", "INVALID_ARGS"),
        (
            "subagent",
            '{"description": "d", "prompt": "p", "run_in_background": true}',
            "run_in_background must be false",
            "INVALID_ARGS",
        ),
    ],
)
async def test_what_a_model_is_told(
    name: str, arguments: str, told: str, code: str
) -> None:
    run = await one_call(name, arguments)
    ((call_id, text, is_error),) = run.tool_results()
    assert call_id == "c1"
    assert is_error
    assert text.startswith("Error: ")
    assert told in text
    assert run.data("tool/result")[0]["error"]["code"] == code
    assert [reason["kind"] for reason in run.reasons()] == ["completed"]
    check_tape(run)


async def test_two_delegations_in_a_tool_are_counted() -> None:
    run = await one_call("asks", '{"question": "child a"}', "a?", "a")
    assert run.tool_results() == [("c1", "answer a+answer a?", False)]
    check_tape(run, "/t1s1b0", "/t1s1b0.1")
    spawned_by = run.logs["/t1s1b0.1"].header.spawned_by
    assert spawned_by is not None
    assert (spawned_by.block, spawned_by.n, spawned_by.context) == (0, 1, "fork")


async def test_a_delegation_from_a_tools_thread() -> None:
    run = await one_call("asks_from_thread", '{"question": "child a"}', "a")
    assert run.tool_results() == [("c1", "answer a", False)]
    check_tape(run, "/t1s1b0")


async def test_a_delegation_from_a_loop_that_is_not_the_sessions() -> None:
    run = await one_call("asks_wrongly", '{"question": "child a"}', "a")
    ((_, text, is_error),) = run.tool_results()
    assert is_error
    assert "AgentError: " in text
    assert "anyio.from_thread" in text
    check_tape(run)


async def test_what_a_tool_may_not() -> None:
    answer = calling(called("misbehaves"))
    model = ScriptedModel([answer, "done"], by_prompt={"one": "1"})
    run = await ran("tools:all_tools", model)
    ((_, text, is_error),) = run.tool_results()
    assert not is_error
    lines = text.splitlines()
    assert lines[0] == "AgentError: inside a tool a delegation has no key"
    assert lines[1].startswith("AgentError: the last message calls misbehaves, ")
    assert lines[2] == (
        "AgentError: inside a tool one delegation ends before the next one starts"
    )


async def test_tools_that_are_not_waited_for() -> None:
    """They have results, so that the model is asked again; a child goes on."""
    child = called("subagent", '{"description": "d", "prompt": "child"}', "c2")
    answer = calling(called("never"), child)
    model = ScriptedModel([answer, "fine"], by_prompt={"child": "of child"})
    run = await ran("tools:gives_up", model)
    assert run.result.text == "fine"
    aborted = "Error: the tool call was aborted"
    assert run.tool_results() == [("c1", aborted, True), ("c2", aborted, True)]
    scenario = check_tape(run, "/t1s1b1")
    assert scenario.by_path["/t1s1b1"].script
    cast = Cast(reference("tools:gives_up"), (prompt_blocks("go"),), {}, True)
    assert (await replay(scenario, launcher=warm(), cast=cast)).problems == ()


async def test_the_steps_of_a_turn_have_a_limit() -> None:
    answers = [calling(called("add", '{"a": 1}', f"c{n}")) for n in range(2)]
    run = await ran("tools:two_steps", [*answers, "next"], "go", "again")
    assert [r.stop_reason for r in run.results] == ["error", "completed"]
    (failed, done) = run.reasons()
    assert failed["error"]["code"] == "AGENT_ERROR"
    assert failed["error"]["message"] == "AgentError: the turn had 2 steps, its limit"
    assert done == {"kind": "completed"}
    check_tape(run)


async def test_what_the_model_is_shown() -> None:
    requests: list[Request] = []

    def answer(request: Request) -> str:
        requests.append(request)
        return "done"

    await ran("tools:two_steps", ScriptedModel(answer))
    (request,) = requests
    assert request.system is None
    assert request.config == {"provider": "m", "model": "one"}
    assert [each["name"] for each in request.tools] == ["add"]
