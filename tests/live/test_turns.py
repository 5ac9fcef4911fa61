"""Turns of live agents: what they may do, in which order, and how they end."""

from __future__ import annotations

import json

import anyio
import pytest

from nestling.driver import Driver
from nestling.harness import Answer, ScriptedModel
from support.live import (
    SECONDS,
    called,
    calling,
    check_tape,
    ran,
    reference,
    warm,
)


async def test_several_turns() -> None:
    """Results, events and more prompts; every event is told once."""
    model = ScriptedModel(["a", "b", "c"])
    with anyio.fail_after(SECONDS):
        async with Driver(providers={"m": model}, launcher=warm()) as driver:
            run = await driver.start(
                reference("turns:says_what_it_knows"),
                ["one", "two"],
                session_id="s",
                options={"x": [1]},
            )
            first = [grown async for grown in run.events()]
            assert (await run.result()).text == "b"
            assert [grown async for grown in run.events()] == []
            await run.send([{"type": "text", "text": "three"}])
            assert (await run.result()).text == "c"
            second = [grown async for grown in run.events()]
            logs = await run.close()
    told = [*first, *second]
    assert {(grown.path, grown.session_id) for grown in told} == {("/", "s")}
    assert [grown.event.seq for grown in told] == list(range(len(told)))
    assert [grown.event.row() for grown in told] == [
        event.row() for event in logs["/"].events
    ]
    assert first[-1].event.type == second[-1].event.type == "turn/end"
    said = [
        event.data["content"][0]["text"]
        for event in logs["/"].events
        if event.type == "user/message" and event.data["source"]["kind"] == "agent"
    ]
    options, two = {"x": [1]}, [("user", "one"), ("user", said[0])]
    assert said[0] == repr((1, "one", "root", "", options, [("user", "one")]))
    seen = [*two, ("assistant", "a"), ("user", "two")]
    assert said[1] == repr((2, "two", "root", "", options, seen))
    assert said[2].startswith("(3, 'three', 'root', ")


OPEN = (
    "AgentError: a call is open: a session has one at a time, Turn.ask makes side calls"
)


async def test_one_call_at_a_time() -> None:
    run = await ran("turns:streams_twice_at_once", ["hi"])
    assert run.said()[0].splitlines() == [
        "hi",
        OPEN,
        "AgentError: a message cannot be added while a call is open",
        "AgentError: a message cannot be added while a call is open",
    ]
    check_tape(run)


async def test_tool_calls_that_are_left_unanswered() -> None:
    """The next call is refused; at the end they are answered as aborted."""
    answer = calling(called("noop"), called("noop", "{}", "c2"))
    run = await ran("turns:leaves_calls_unanswered", [answer, answer], "go", "again")
    assert run.said()[0] == (
        "AgentError: the last message calls noop, which has no result yet: "
        "Turn.run_tools comes before the next Turn.stream"
    )
    assert run.tool_results() == 2 * [
        ("c1", "Error: the tool call was not run", True),
        ("c2", "Error: the tool call was not run", True),
    ]
    assert [reason["kind"] for reason in run.reasons()] == ["completed", "completed"]
    check_tape(run)


async def test_tools_run_once_and_for_the_last_message() -> None:
    answer = calling(called("noop"))
    run = await ran("turns:runs_tools_twice", [answer, answer])
    have_run = "AgentError: the tools of this message have run"
    not_last = "AgentError: run_tools takes the message of the last stream()"
    assert run.said()[0].splitlines() == [
        "nothing",
        have_run,
        not_last,
        "nothing",
        have_run,
        not_last,
    ]
    check_tape(run)


async def test_messages_are_replaced() -> None:
    """The next request, and those of later turns, show the replacement."""
    run = await ran("turns:replaces", ["a", "b"])
    told = run.said()[-1].splitlines()
    assert told[0].startswith("AgentError: the model sees no messages from 99 to 99, ")
    assert told[1].startswith("AgentError: the model sees no messages from ")
    assert told[2] == "go | one and two"
    (request,) = run.model.requests
    assert [m["content"][0]["text"] for m in request.messages] == ["go", "one and two"]
    assert run.said(kind="note") == ["two"]
    check_tape(run)


async def test_tool_calls_are_replaced() -> None:
    run = await ran("turns:replaces_a_tool_call", [calling(called("noop")), "b"])
    (message,) = run.model.requests[1].messages
    assert message["content"] == [{"type": "text", "text": "what happened"}]
    check_tape(run)


async def test_what_the_code_changes_later_is_not_logged() -> None:
    run = await ran("turns:keeps_its_lists", ["a", "b"])
    assert run.result.text == "b"
    assert run.said() == ["a", "b"]
    first, second = run.model.requests
    assert first.config["stop"] == ["x"]
    assert second.config["stop"] == ["x", "y"]
    texts = [message["content"][0]["text"] for message in second.messages]
    assert texts == ["go", "a", "b", "a"]
    check_tape(run)


async def test_messages_that_cannot_be_logged() -> None:
    run = await ran("turns:appends_nonsense", ["a"])
    told = run.said()[-1].splitlines()
    assert len(told) == 6
    assert told[0].startswith("TypeError: ")
    assert all(
        line.startswith("AgentError: the message cannot be") for line in told[1:]
    )
    assert [m["content"][0]["text"] for m in run.model.requests[0].messages] == ["go"]
    check_tape(run)


async def test_calls_without_a_model() -> None:
    run = await ran("turns:names_no_model", ["a"])
    told = run.said()[-1].splitlines()
    assert told[:4] == [
        "AgentError: stream() needs model='provider/model' here",
        "AgentError: ask() needs model='provider/model' here",
        "AgentError: a model is written provider/model, found 'm'",
        "AgentError: model options have no model, found 'two'",
    ]
    assert told[4].startswith("JsonDomainError: ")
    assert "config.model must be a string of at most 256" in told[5]
    assert run.result.stop_reason == "completed"


# --- code that fails -----------------------------------------------------------------


async def test_code_that_raises() -> None:
    """The turn ends with an error, the session goes on."""
    answer = calling(called("noop"), text="way")
    run = await ran("turns:raises_first", [answer, "fine"], "go", "again")
    assert [r.stop_reason for r in run.results] == ["error", "completed"]
    error = {"message": "ValueError: no way", "code": "AGENT_ERROR"}
    assert run.reasons() == [{"kind": "error", "error": error}, {"kind": "completed"}]
    assert run.tool_results() == [("c1", "Error: the tool call was not run", True)]
    check_tape(run)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("raises_mutely", "Mute"),
        ("is_cancelled_within", "CancelledError: "),
        ("cancels_itself", "CancelledError: "),
    ],
)
async def test_other_ways_to_fail(agent: str, message: str) -> None:
    run = await ran(f"turns:{agent}", ["unheard"] * 2, "go", "again")
    error = {"message": message, "code": "AGENT_ERROR"}
    assert run.reasons() == 2 * [{"kind": "error", "error": error}]
    check_tape(run)


async def test_a_task_that_fails_and_that_nobody_waits_for() -> None:
    run = await ran("turns:forgets_a_task", ["fine"])
    assert run.result.text == "fine"


async def test_a_turn_that_ends_while_a_call_is_open() -> None:
    """It ends with the call, whose tools are not run."""
    answer = calling(called("noop"), text="late")
    run = await ran("turns:ends_with_a_call_open", [answer], "go", "again")
    assert run.tool_results() == [("c1", "Error: the tool call was not run", True)]
    assert run.said() == [
        "late\nAgentError: the turn is over: await what it starts before it ends"
    ]
    check_tape(run)


async def test_a_turn_that_ends_while_a_child_works() -> None:
    """The session waits for the child; its result is there in the next turn."""
    run = await ran("turns:ends_with_a_delegation_open", ["of child"], "go", "again")
    # The turn was over when the result came: what waits for it gets it all the same.
    assert run.said() == ["of child"]
    check_tape(run, "/t1s0d0")


async def test_who_stops_waiting_does_not_stop_the_call() -> None:
    run = await ran("turns:gives_up_waiting", ["it goes on"])
    assert run.result.text == "it goes on"
    check_tape(run)


# --- calls that fail -------------------------------------------------------------------


async def test_code_hears_of_a_failure_and_goes_on() -> None:
    failing = Answer("x").fails("SERVER", "down", after=1)
    run = await ran("turns:hears_of_failures", [failing, "up", failing], "go", "again")
    assert run.said() == 2 * ["SERVER: SERVER: down"]
    failure = {"message": "down", "code": "SERVER"}
    assert run.reasons() == [
        {"kind": "completed"},
        {"kind": "error", "error": failure},
    ]
    check_tape(run)


async def test_a_failure_that_is_raised_after_a_call_that_went_well() -> None:
    failing = Answer("x").fails("SERVER", "down")
    run = await ran("turns:raises_an_old_failure", [failing, "up"])
    message = "ModelCallError: SERVER: down"
    error = {"message": message, "code": "AGENT_ERROR"}
    assert run.reasons() == [{"kind": "error", "error": error}]
    check_tape(run)


async def test_a_call_is_tried_again() -> None:
    """In the same step, until it succeeds; what failed is not in the request."""
    answers: list[Answer | str] = [
        Answer("part of it").fails("SERVER", after=2),
        Answer("y").fails("BUSY", retry_after_ms=30),
        "at last",
    ]
    run = await ran("turns:retries", answers)
    assert run.result.text == "at last"
    assert len(run.data("step/start")) == 1
    first, second = run.data("llm/retry")
    assert (first["retry"], second["retry"]) == (1, 2)
    assert first["failure"]["code"] == "SERVER"
    assert 5 <= first["delayMs"] <= 10
    assert second["delayMs"] == 30
    assert first["maxRetries"] == 2
    assert len(run.data("llm/retry-started")) == 2
    assert len({json.dumps(r.messages) for r in run.model.requests}) == 1
    check_tape(run)


@pytest.mark.parametrize(
    ("agent", "code", "calls"),
    [
        ("retries", "SERVER", 3),
        ("retries", "AUTH", 1),
        ("never_retries", "SERVER", 1),
    ],
)
async def test_a_call_that_fails_for_good(agent: str, code: str, calls: int) -> None:
    failing = Answer("x").fails(code, "no", after=1)
    run = await ran(f"turns:{agent}", [failing] * 4)
    assert len(run.model.requests) == calls
    assert run.result.stop_reason == "error"
    failure = {"message": "no", "code": code}
    assert run.reasons() == [{"kind": "error", "error": failure}]
    check_tape(run)


async def test_delays_are_the_same_for_the_same_place() -> None:
    """The jitter follows from session, step and retry, so a replay logs it again."""
    answers: list[Answer | str]
    answers = [Answer("x").fails("SERVER"), Answer("x").fails("SERVER"), "z"]
    delays = []
    with anyio.fail_after(SECONDS):
        for session_id in ("s", "s", "t"):
            model = ScriptedModel(answers)
            async with Driver(providers={"m": model}, launcher=warm()) as driver:
                agent = reference("turns:retries")
                run = await driver.start(agent, "go", session_id=session_id)
                logs = await run.close()
            delays.append(
                [
                    event.data["delayMs"]
                    for event in logs["/"].events
                    if event.type == "llm/retry"
                ]
            )
    assert delays[0] == delays[1]
    assert delays[0] != delays[2]
