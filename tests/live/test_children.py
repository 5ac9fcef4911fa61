"""Children of live agents: what they are told, where they stand, what comes back."""

from __future__ import annotations

import json

import pytest

from nestling.driver import Limits, TemplateLauncher
from nestling.driver.started_run_io import prompt_blocks
from nestling.harness import Cast, ScriptedModel, replay
from support.live import (
    called,
    calling,
    check_tape,
    launcher_named,
    ran,
    reference,
    warm,
)


def _asking(name: str, prompt: str, call_id: str = "c1") -> dict[str, object]:
    arguments = {"description": "label", "prompt": prompt}
    return called(name, json.dumps(arguments), call_id)


async def test_a_model_delegates() -> None:
    """Two at once; the fork sees the turns that are completed, and nothing else."""
    calls = [_asking("subagent", "one"), _asking("subagent_fork", "two", "c2")]
    model = ScriptedModel(
        ["hello", calling(*calls), "done"],
        by_text={"'one'": "of spawn", "'two'": "of fork"},
    )
    run = await ran("children:by_agent", model, "first", "second")
    assert run.tool_results() == [("c1", "of spawn", False), ("c2", "of fork", False)]
    assert run.said("/t2s1b0") == [repr(("spawn", "label", {}, ["one"]))]
    seen = ["first", "hello", "two"]
    assert run.said("/t2s1b1") == [repr(("fork", "label", {}, seen))]
    check_tape(run, "/t2s1b0", "/t2s1b1")


async def test_a_fork_in_the_first_turn_has_nothing_to_inherit() -> None:
    calls = calling(_asking("subagent_fork", "two"))
    model = ScriptedModel([calls, "done"], by_text={"'two'": "of fork"})
    run = await ran("children:by_agent", model)
    header = run.logs["/t1s1b0"].header
    assert header.seed_length == 0
    assert header.seed_digest is None
    assert run.said("/t1s1b0") == [repr(("fork", "label", {}, ["two"]))]
    check_tape(run, "/t1s1b0")


@pytest.mark.parametrize("agent", ["by_reference", "by_itself"])
async def test_which_agent_a_child_is(agent: str) -> None:
    calls = calling(_asking("subagent", "one"))
    model = ScriptedModel([calls, "of child", "done"])
    run = await ran(f"children:{agent}", model)
    assert run.tool_results() == [("c1", "of child", False)]
    assert [r.system for r in run.model.requests] == (
        ["same"] * 3 if agent == "by_itself" else [None] * 3
    )
    check_tape(run, "/t1s1b0")


async def test_delegations_with_keys() -> None:
    model = ScriptedModel(["done"], by_text={"'one'": "first", "'two'": "second"})
    run = await ran("children:with_keys", model)
    assert run.said() == ["first second"]
    one, two = "/t1s0ka", "/t1s0kb%2F%C3%BC"
    assert run.said(one) == [repr(("spawn", "first", {}, ["one"]))]
    assert run.said(two) == [repr(("fork", "", {"x": 1}, ["two"]))]
    check_tape(run, one, two)


async def test_delegations_without_keys_are_counted_step_by_step() -> None:
    model = ScriptedModel(["1", "2", "of parent", "3"])
    run = await ran("children:without_keys", model)
    assert run.said() == ["1 2 3"]
    check_tape(run, "/t1s0d0", "/t1s0d1", "/t1s1d0")


async def test_delegations_that_cannot_be() -> None:
    model = ScriptedModel(by_text={"'one'": "1", "'two'": "2"})
    run = await ran("children:wrongly", model)
    children, told = run.said()
    assert children == "1 2"
    assert [line.split(",")[0] for line in told.splitlines()] == [
        "AgentError: delegations that overlap need keys: delegate(…",
        "AgentError: the key 'k' was used before in this step",
        *["AgentError: a key has 1 to 256 whole characters"] * 3,
        "AgentError: prompt must be a string",
        "AgentError: a child runs an Agent",
        *[line.split(",")[0] for line in told.splitlines()[7:]],
    ]
    assert "is a lambda" in told.splitlines()[7]
    assert "has no colon" in told.splitlines()[8]
    assert "is in __main__" in told.splitlines()[9]
    assert told.splitlines()[10].startswith("JsonDomainError: ")
    check_tape(run, "/t1s0kk", "/t1s0d0")


async def test_agents_that_cannot_be_loaded() -> None:
    """A child that cannot begin is an error of its own, with the reason."""
    run = await ran("children:to_missing", launcher=TemplateLauncher())
    told = run.said()
    assert len(told) == 4
    assert all(each.startswith("error True Error: the subagent ended") for each in told)
    assert "missing.py does not exist" in told[0]
    assert "No module named 'no'" in told[1]
    assert "has no attribute 'missing'" in told[2]
    assert "expected an agent" in told[3]
    assert run.result.stop_reason == "completed"


async def test_side_calls() -> None:
    answers = {"aside": "1", "b": "2", "c": "3"}
    run = await ran("children:side_calls", ScriptedModel(["done"], by_prompt=answers))
    assert run.said() == ["1 2 3"]
    (aside,) = [r for r in run.model.requests if r.system == "Judge."]
    assert aside.config == {"provider": "m", "model": "side", "t": 0}
    assert [m["content"][0]["text"] for m in run.model.requests[-1].messages] == [
        "go",
        "1 2 3",
    ]
    check_tape(run, "/t1s0d0", "/t1s0kb", "/t1s0kc")


async def test_the_depth_of_a_tree_has_a_limit() -> None:
    run = await ran("children:deeper", limits=Limits(max_depth=1))
    (told,) = run.said("/t1s0d0")
    assert told.startswith("True Error: the delegation was refused: depth 2 exceeds")
    assert run.result.stop_reason == "completed"
    assert list(run.logs) == ["/", "/t1s0d0"]


async def test_what_the_limit_refused_is_refused_in_a_replay() -> None:
    """By code, which leaves no trace of it in the log but what it says itself."""
    run = await ran("children:deeper")
    deepest = "/t1s0d0/t1s0d0/t1s0d0"
    assert "depth 4 exceeds" in run.said(deepest)[0]
    scenario = check_tape(run, "/t1s0d0", "/t1s0d0/t1s0d0", deepest)
    cast = Cast(reference("children:deeper"), (prompt_blocks("go"),), {})
    assert (await replay(scenario, launcher=warm(), cast=cast)).problems == ()


async def test_a_model_is_told_of_the_depths_limit() -> None:
    calls = calling(_asking("subagent", "one"))
    run = await ran("children:by_itself", [calls, "done"], limits=Limits(max_depth=0))
    ((_, text, is_error),) = run.tool_results()
    assert is_error
    assert "depth 1 exceeds the limit of 0" in text
    check_tape(run)


@pytest.mark.parametrize("launcher", ["exec", "template"])
@pytest.mark.parametrize(
    ("tool", "how"), [("dies", "exit code 7"), ("is_killed", "SIGKILL")]
)
async def test_a_child_whose_worker_dies(launcher: str, tool: str, how: str) -> None:
    """Its parent is told how, and goes on; by code, and by its model's call."""
    by_code = ScriptedModel(["done"], by_prompt={"die": calling(called(tool))})
    starts = launcher_named(launcher)
    run = await ran("children:goes_on", by_code, launcher=starts)
    (told,) = run.said()
    assert told.startswith("error Error: the subagent ended with stop reason error")
    assert f"Diagnostic: its worker ended ({how}" in told
    assert "after event " in told
    assert run.result.text == "done"
    assert run.reasons("/t1s0d0")[0]["kind"] == "interrupted"


async def test_a_root_whose_worker_dies() -> None:
    run = await ran("tools:all_tools", [calling(called("dies"))])
    assert run.result.stop_reason == "error"
    assert run.result.diagnostic is not None
    assert "exit code 7" in run.result.diagnostic


@pytest.mark.timeout(60)
async def test_two_hundred_children_at_once() -> None:
    count = 200
    model = ScriptedModel(lambda request: request.messages[0]["content"][0]["text"])
    run = await ran(
        "children:many",
        model,
        limits=Limits(starting=8),
        options={"count": count},
        seconds=55,
    )
    assert run.said() == [" ".join(f"child {n}" for n in range(count))]
    assert len(run.logs) == count + 1
    assert {birth.launcher for birth in run.end.births.values()} == {"template"}
