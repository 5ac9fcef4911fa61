"""The scripted model: what it streams, which answer a request gets, how it goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from nestling.harness.scripted_model_io import (
    EXHAUSTED,
    Answer,
    Answers,
    ScriptedModel,
    fork_call,
    last_user_text,
    reasoning,
    spawn_call,
    text,
    tool_call,
)
from nestling.session.chunk import chunk_problem, error_finish, is_finish
from nestling.session.errors import ProviderError, ScriptedModelError
from nestling.session.fold import Folded, fold
from nestling.session.jsontext import JsonObject, check
from nestling.session.request import Provider, Request


def user(prompt: str) -> JsonObject:
    return {"role": "user", "content": [text(prompt)], "source": {"kind": "user"}}


def asking(prompt: str = "hi", *more: JsonObject) -> Request:
    """A request whose conversation starts with `prompt`."""
    config = {"provider": "scripted", "model": "m"}
    return Request("scripted", "m", config, None, None, [user(prompt), *more])


def result(call_id: str = "c") -> JsonObject:
    block = {"type": "tool-result", "toolCallId": call_id, "content": [text("seen")]}
    return {"role": "user", "content": [block], "source": {"kind": "tool"}}


async def stream(model: Provider, request: Request | None = None) -> list[JsonObject]:
    """The chunks of a call that ends well."""
    return [chunk async for chunk in model(request or asking())]


async def say(model: Provider, request: Request | None = None) -> str:
    """The text of a call that ends well."""
    blocks = fold(await stream(model, request)).blocks
    return "".join(block["text"] for block in blocks if block["type"] == "text")


async def folded(answer: Any) -> Folded:
    return fold(await stream(ScriptedModel([answer])))


# --- what is streamed ----------------------------------------------------------


async def test_blocks_are_streamed_as_providers_do() -> None:
    answer = Answer("Yes, I do.", "Hm.", [tool_call("look", {"a": 1}, "c1")])
    chunks = await stream(ScriptedModel([answer]))
    call = tool_call("look", {"a": 1}, "c1")
    head = {"type": "tool-call-delta", "index": 2, "id": "c1", "name": "look"}
    assert chunks == [
        {"type": "block-start", "index": 0, "blockType": "reasoning"},
        {"type": "reasoning-delta", "index": 0, "text": "Hm."},
        {"type": "block-end", "index": 0, "block": reasoning("Hm.")},
        {"type": "block-start", "index": 1, "blockType": "text"},
        {"type": "text-delta", "index": 1, "text": "Yes,"},
        {"type": "text-delta", "index": 1, "text": " I"},
        {"type": "text-delta", "index": 1, "text": " do."},
        {"type": "block-end", "index": 1, "block": text("Yes, I do.")},
        {"type": "block-start", "index": 2, "blockType": "tool-call"},
        {**head, "argumentsDelta": '{"a":1'},
        {**head, "argumentsDelta": "}"},
        {"type": "block-end", "index": 2, "block": call},
        {
            "type": "usage",
            "usage": {"inputTokens": 8, "outputTokens": 6, "reasoningTokens": 1},
        },
        {"type": "finish", "reason": {"kind": "tool-calls"}},
    ]
    assert [chunk_problem(chunk) for chunk in chunks] == [None] * len(chunks)
    check(chunks)


@pytest.mark.parametrize(
    ("answer", "blocks"),
    [
        ("hi there", [text("hi there")]),
        ("half \ud83d", [text("half \ud83d")]),
        ("", []),
        (Answer(), []),
        ([], []),
        (
            [text("a"), reasoning("b"), text("c")],
            [text("a"), reasoning("b"), text("c")],
        ),
        ([{"type": "image", "attachment": 1}], [{"type": "image", "attachment": 1}]),
        (Answer(calls=[tool_call("x", "{no", "i")]), [tool_call("x", "{no", "i")]),
    ],
)
async def test_an_answer_folds_to_its_blocks(answer: Any, blocks: Any) -> None:
    assert (await folded(answer)).blocks == blocks


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_the_size_of_a_chunk_is_given_in_characters(size: int) -> None:
    answer = Answer("é\U0001f600abcdef", chunk_size=size)
    chunks = await stream(ScriptedModel([answer]))
    pieces = [chunk["text"] for chunk in chunks if chunk["type"] == "text-delta"]
    assert "".join(pieces) == answer.text
    assert {len(piece) for piece in pieces[:-1]} <= {size}
    assert fold(chunks).blocks == [text(answer.text)]


async def test_the_finish_and_the_usage_can_be_said() -> None:
    answer = Answer("a", finish="max-tokens", usage={"inputTokens": 5})
    assert (await folded(answer))[1:3] == ({"kind": "max-tokens"}, {"inputTokens": 5})
    assert (await folded("a")).finish == {"kind": "stop"}
    delegating = Answer(calls=[spawn_call("d", "p"), fork_call("d", "p")])
    assert (await folded(delegating)).finish == {"kind": "tool-calls"}


async def test_calls_without_an_id_get_one_that_the_request_decides() -> None:
    calls = [tool_call("a", {}), tool_call("b", {}, "mine"), tool_call("c", {})]
    model = ScriptedModel(lambda request: Answer("x", calls=calls))
    first = fold(await stream(model)).blocks
    assert [block.get("id") for block in first] == [
        None,
        "call-1-1",
        "mine",
        "call-1-3",
    ]
    assert fold(await stream(model)).blocks == first
    later = fold(await stream(model, asking("hi", result()))).blocks
    assert later[1]["id"] == "call-2-1"


async def test_raw_chunks_are_sent_as_they_are() -> None:
    chunks = [{"type": "nonsense"}, error_finish({"message": "m", "code": "SERVER"})]
    assert await stream(ScriptedModel([Answer(chunks=chunks)])) == chunks
    assert await stream(ScriptedModel([Answer(chunks=[])])) == []


# --- which answer --------------------------------------------------------------


async def test_a_list_is_used_up_in_the_order_of_the_calls() -> None:
    model = ScriptedModel(["one", Answer("two"), [text("three")]])
    requests = [asking("a"), asking("b"), asking("c")]
    said = [await say(model, request) for request in requests]
    assert said == ["one", "two", "three"]
    assert model.requests == requests


@pytest.mark.parametrize(
    ("answers", "had"),
    [([], "no answers"), (["x"], "1 answer"), (["x", "y"], "2 answers")],
)
async def test_a_list_that_is_used_up(answers: list[str], had: str) -> None:
    model = ScriptedModel(answers)
    for _ in answers:
        await say(model)
    why = f"^the scripted model had {had} and was asked once more, with 'why[?]'$"
    with pytest.raises(ProviderError, match=why) as caught:
        await say(model, asking("why?"))
    assert caught.value.failure() == {"message": str(caught.value), "code": EXHAUSTED}
    assert len(model.requests) == len(answers) + 1


@pytest.mark.parametrize("one", ["x", Answer("x"), [[text("x")]], ((text("x"),),)])
async def test_an_answer_by_itself_is_used_once(one: Answers) -> None:
    model = ScriptedModel(one)
    assert await say(model) == "x"
    with pytest.raises(ProviderError, match="had 1 answer and"):
        await say(model)


async def test_a_function_answers_from_the_request() -> None:
    def answer(request: Request) -> str:
        return last_user_text(request).upper()

    async def later(request: Request) -> Answer:
        await anyio.lowlevel.checkpoint()
        return Answer(answer(request))

    for function in (answer, later):
        model = ScriptedModel(function)
        assert [await say(model, asking(p)) for p in ("a", "b", "a")] == ["A", "B", "A"]


async def test_a_function_may_look_at_the_requests_so_far() -> None:
    model: ScriptedModel

    def answer(request: Request) -> str:
        return str(len(model.requests))

    model = ScriptedModel(answer)
    assert [await say(model), await say(model)] == ["1", "2"]


async def test_what_a_function_raises_is_not_hidden() -> None:
    def answer(request: Request) -> str:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await say(ScriptedModel(answer))


async def test_children_that_run_at_once_are_told_apart_by_their_prompts() -> None:
    model = ScriptedModel(
        "all others",
        by_prompt={
            "Ask Ann.": [[tool_call("ask", {"who": "Ann"}, "c")], "Ann says yes."],
            "Ask Bob.": [[tool_call("ask", {"who": "Bob"}, "c")], "Bob says no."],
        },
        by_text={"Ask": "who?", "Bob": "never"},
    )
    said: dict[str, str] = {}

    async def child(prompt: str) -> None:
        await say(model, asking(prompt))
        said[prompt] = await say(model, asking(prompt, result()))

    async with anyio.create_task_group() as group:
        group.start_soon(child, "Ask Ann.")
        group.start_soon(child, "Ask Bob.")
    assert said == {"Ask Ann.": "Ann says yes.", "Ask Bob.": "Bob says no."}
    assert await say(model, asking("Ask, Bob!")) == "who?"
    assert await say(model, asking("Hello.")) == "all others"
    with pytest.raises(ProviderError, match=r"model's prompt 'Ask Bob.' had 2 answers"):
        await say(model, asking("Ask Bob."))
    with pytest.raises(ProviderError, match="model's text 'Ask' had 1 answer and"):
        await say(model, asking("Ask me."))


async def test_a_prompt_can_be_answered_by_a_function() -> None:
    model = ScriptedModel(by_text={"count": lambda r: str(len(r.messages))})
    assert await say(model, asking("count", result())) == "2"


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], ""),
        ([user("a")], "a"),
        ([user("a"), result()], "a"),
        ([user("a"), {"role": "assistant", "content": [text("x")]}], "a"),
        ([user("a"), user("b")], "b"),
        (
            [{"role": "user", "content": [text("a"), {"type": "image"}, text("b")]}],
            "ab",
        ),
    ],
)
def test_the_last_user_text(messages: list[JsonObject], said: str) -> None:
    assert last_user_text(asking()._replace(messages=messages)) == said


def test_threads_share_one_model() -> None:
    count = 200
    said: list[str] = []
    model = ScriptedModel([str(number) for number in range(count)])

    async def ask() -> None:
        said.extend([await say(model) for _ in range(count // 4)])

    threads = [threading.Thread(target=anyio.run, args=(ask,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said, key=int) == [str(number) for number in range(count)]
    assert len(model.requests) == count


# --- late, broken, hanging -----------------------------------------------------


async def read_into(seen: list[JsonObject], model: Provider) -> None:
    """Read a call; what came before an error is in `seen`."""
    async for chunk in model(asking()):
        seen.append(chunk)  # noqa: PERF401 - a comprehension would lose them


class Clock:
    """A clock that tests own: sleeping advances it."""

    def __init__(self) -> None:
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await anyio.lowlevel.checkpoint()


async def test_delays_before_the_first_chunk_and_between_chunks() -> None:
    clock = Clock()
    answer = Answer("one two", delay=10, chunk_delay=0.5)
    model = ScriptedModel([answer, "at once"], sleep=clock.sleep)
    times = [clock.now async for _ in model(asking())]
    assert times == [10, 10.5, 11, 11.5, 12, 12.5]
    await stream(model)
    assert clock.now == 12.5


async def test_a_model_without_delays_lets_others_run() -> None:
    model = ScriptedModel(lambda request: "x")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream(model)
    assert scope.cancelled_caught


@pytest.mark.parametrize("after", [0, 1, 4])
async def test_an_answer_fails_after_some_chunks(after: int) -> None:
    answer = Answer("one two").fails("RATE_LIMIT", "slow down", after=after)
    model = ScriptedModel([answer, "fine"])
    seen: list[JsonObject] = []
    with pytest.raises(ProviderError, match=r"^slow down$") as caught:
        await read_into(seen, model)
    assert seen == Answer("one two").stream(1)[:after]
    assert caught.value.failure() == {"message": "slow down", "code": "RATE_LIMIT"}
    assert await say(model) == "fine"


async def test_a_failure_may_say_when_to_come_back() -> None:
    model = ScriptedModel(lambda request: Answer().fails(retry_after_ms=1500))
    caught = []
    for _ in range(2):
        with pytest.raises(ProviderError) as error:
            await say(model)
        caught.append(error.value)
    assert caught[0] is not caught[1]
    assert caught[0].failure()["providerRetryAfterMs"] == 1500
    assert caught[0].code == "SERVER"


@pytest.mark.parametrize("after", [0, 2])
async def test_an_answer_hangs_until_it_is_cancelled(after: int) -> None:
    model = ScriptedModel([Answer("one two").hangs(after=after)])
    seen: list[JsonObject] = []
    arrived = anyio.Event()

    async def ask() -> None:
        if not after:
            arrived.set()
        async with aclosing(model(asking())) as chunks:
            async for chunk in chunks:
                seen.append(chunk)
                if len(seen) == after:
                    arrived.set()
        pytest.fail("it ended")

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await arrived.wait()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert seen == Answer("one two").stream(1)[:after]


async def test_a_stream_that_nobody_reads_on_can_be_closed() -> None:
    model = ScriptedModel(["one two"])
    chunks = model(asking())
    await anext(chunks)
    await chunks.aclose()
    assert [chunk async for chunk in chunks] == []


# --- what cannot be played -----------------------------------------------------

Making = Callable[[], object]

REFUSED: dict[str, tuple[Making, str]] = {
    "no characters": (lambda: Answer("x", chunk_size=0), "at least 1 character"),
    "back in time": (lambda: Answer("x", delay=-1), "at least 0 seconds, found -1"),
    "late back": (lambda: Answer("x", chunk_delay=-2), "at least 0 seconds, found -2"),
    "two contents": (
        lambda: Answer("x", blocks=[text("y")]),
        "either blocks, or text, reasoning and calls, found both",
    ),
    "raw and content": (lambda: Answer("x", chunks=[]), "either raw chunks or content"),
    "no block": (lambda: Answer(blocks=[{}]), "an object with a type, found {}"),
    "no text": (
        lambda: Answer(blocks=[{"type": "text"}]),
        "text of a text block must be text, found None",
    ),
    "no arguments": (
        lambda: Answer(calls=[{"type": "tool-call", "name": "x"}]),
        "arguments of a tool-call block must be text",
    ),
    "a late break": (
        lambda: Answer("x").fails(after=5),
        "cannot break after 5 chunks, it has 4 before its finish",
    ),
    "an early break": (lambda: Answer("x").hangs(after=-1), "cannot break after -1"),
    "a break after raw chunks": (
        lambda: Answer(chunks=[{"type": "finish"}]).hangs(after=1),
        "cannot break after 1 chunks, it has 0",
    ),
    "no answer": (lambda: ScriptedModel([3]), "an answer is an Answer, .* found 3"),  # type: ignore[list-item]
    "mixed": (
        lambda: ScriptedModel(by_prompt={"p": [text("x"), "y"]}),  # type: ignore[list-item]
        "list of content blocks, found {'type'",
    ),
}


@pytest.mark.parametrize(("making", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_played(making: Making, why: str) -> None:
    with pytest.raises(ScriptedModelError, match=why):
        making()


async def test_a_function_that_returns_what_is_no_answer() -> None:
    model = ScriptedModel(lambda request: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(ScriptedModelError, match=r"an answer is .* found 3"):
        await say(model)


def test_a_broken_stream_has_no_finish() -> None:
    whole = Answer("x").stream(1)
    assert [is_finish(chunk) for chunk in whole] == [False] * 4 + [True]
    assert Answer("x").hangs(after=4).stream(1) == whole[:4]
