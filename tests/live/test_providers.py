"""Providers: plain async generators, whatever they yield, raise or never do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import pytest

from nestling.driver import Driver, ProviderError, Request
from nestling.driver.director import Answer, CallRequest
from nestling.driver.streams import AHEAD, OpenCall
from nestling.session.jsontext import JsonObject
from nestling.wire.credit import Window
from support.live import SECONDS, check_tape, ran, reference, warm
from support.session_logs import delta, finish

START: JsonObject = {"type": "block-start", "index": 0, "blockType": "text"}
Made = Callable[[Request], Any]


async def outcome_of(provider: Made) -> tuple[str, str]:
    """Return the code and message of the failure that a provider comes to."""
    run = await ran("turns:never_retries", providers={"m": provider})
    check_tape(run)
    (reason,) = run.reasons()
    assert reason["kind"] == "error"
    return reason["error"]["code"], reason["error"]["message"]


def yielding(*chunks: Any, error: BaseException | None = None) -> Made:
    """Make a provider that yields, and maybe raises then."""

    async def provide(request: Request) -> AsyncGenerator[Any, None]:
        for chunk in chunks:
            yield chunk
        if error is not None:
            raise error

    return provide


# --- what goes wrong -------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [(), (START, delta("a"))])
async def test_a_provider_that_raises_its_error(chunks: tuple[JsonObject, ...]) -> None:
    error = ProviderError("too much", "RATE_LIMIT", 5)
    provider = yielding(*chunks, error=error)
    assert await outcome_of(provider) == ("RATE_LIMIT", "too much")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("so"), "the provider raised ValueError: so"),
        (asyncio.CancelledError(), "the provider raised CancelledError: "),
        (
            ProviderError("x", retry_after_ms=float("nan")),  # type: ignore[arg-type]
            "the provider raised a ProviderError that no log can hold: .provider",
        ),
    ],
)
async def test_a_provider_that_raises_something_else(
    error: BaseException, message: str
) -> None:
    code, told = await outcome_of(yielding(START, delta("a"), error=error))
    assert code == "PROVIDER_ERROR"
    assert told.startswith(message.split(": ")[0])


async def test_a_provider_that_nobody_knows() -> None:
    run = await ran("turns:never_retries", providers={"m": None, "n": None})  # type: ignore[dict-item]
    assert run.reasons()[0]["error"]["code"] == "NO_PROVIDER"


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (5, "chunk 1: a chunk must be an object"),
        ({"type": "nonsense"}, "chunk 1: a chunk must have a known type"),
        ({"type": "text-delta"}, "chunk 1: index of a text-delta chunk must be int"),
        ({**delta("a"), "x": float("nan")}, "chunk 1: .x: nan is not a JSON number"),
        ({**delta("a"), "x": object()}, "chunk 1: .x: object is not a JSON value"),
        (
            {"type": "finish", "reason": "stop"},
            "chunk 1: reason of a finish chunk must be dict",
        ),
        (None, "chunk 1: a chunk must be an object"),
    ],
)
async def test_what_is_no_chunk(chunk: Any, message: str) -> None:
    code, told = await outcome_of(yielding(START, chunk, delta("b"), finish()))
    assert code == "BAD_CHUNK"
    assert told.startswith(message.replace(": .x", ".x").split(".x")[0])


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"type": 5},
        {"type": "tool-call"},
        {"type": "tool-call", "id": "a", "name": "b", "arguments": {}},
    ],
)
async def test_blocks_that_no_message_can_hold(block: JsonObject) -> None:
    end = {"type": "block-end", "index": 0, "block": block}
    code, _ = await outcome_of(yielding(end, finish()))
    assert code == "BAD_CHUNK"


UNKNOWN: JsonObject = {"type": "block-start", "index": 0, "blockType": "audio"}


async def test_a_block_that_cannot_be_built() -> None:
    code, told = await outcome_of(yielding(UNKNOWN, finish()))
    assert code == "BAD_CHUNK"
    assert "block 0 of unknown type 'audio' was never closed" in told


async def test_a_call_that_fails_inside_a_block() -> None:
    error = ProviderError("gone", "TRANSPORT")
    assert (await outcome_of(yielding(UNKNOWN, error=error)))[0] == "TRANSPORT"


async def test_a_provider_that_says_that_it_failed() -> None:
    provider = yielding(UNKNOWN, finish("error"))
    run = await ran("turns:hears_of_failures", providers={"m": provider})
    assert run.said() == ["UNKNOWN: UNKNOWN: the model call failed"]
    check_tape(run)


async def test_a_failure_that_is_no_object() -> None:
    reason = {"kind": "error", "failure": "text"}
    code, told = await outcome_of(yielding({"type": "finish", "reason": reason}))
    assert code == "BAD_CHUNK"
    assert told == (
        'chunk 0: failure of a finish chunk must be an object, found "text"'
    )


async def test_a_stream_without_a_finish() -> None:
    code, told = await outcome_of(yielding(START, delta("a")))
    assert code == "TRANSPORT"
    assert told == "the provider's stream ended without a finish chunk"


async def _coroutine(request: Request) -> None:
    """Be no generator."""


def _sync(request: Request) -> Iterator[JsonObject]:
    yield finish()


def _plain(request: Request) -> str:
    return "text"


def _takes_nothing() -> None:
    """Be no provider."""


@pytest.mark.parametrize("provider", [_coroutine, _sync, _plain, 5, _takes_nothing])
async def test_what_is_no_provider(provider: Any) -> None:
    code, told = await outcome_of(provider)
    assert code == "PROVIDER_ERROR"
    assert "provider" in told


async def test_an_answer_ends_with_its_finish() -> None:
    """What a provider would say afterwards is not asked for; it is closed."""
    log = []

    async def provide(request: Request) -> AsyncGenerator[JsonObject, None]:
        try:
            yield START
            yield delta("a")
            yield finish()
            log.append("went on")
            yield finish()
        finally:
            log.append("closed")

    run = await ran("turns:never_retries", providers={"m": provide})
    assert run.result.text == "a"
    assert log == ["closed"]
    check_tape(run)


async def test_a_chunk_that_its_provider_uses_again() -> None:
    async def provide(request: Request) -> AsyncGenerator[JsonObject, None]:
        chunk: JsonObject = delta("")
        yield START
        for text in "abc":
            chunk["text"] = text
            yield chunk
        chunk["text"] = "d"
        yield finish()

    run = await ran("turns:never_retries", providers={"m": provide})
    assert run.result.text == "abc"
    check_tape(run)


async def test_a_provider_may_change_its_request() -> None:
    async def provide(request: Request) -> AsyncGenerator[JsonObject, None]:
        request.messages.clear()
        request.config["provider"] = "other"
        yield finish()

    run = await ran("turns:never_retries", (), "a", "b", providers={"m": provide})
    assert [r.stop_reason for r in run.results] == ["completed"] * 2


async def test_a_name_for_all_providers() -> None:
    run = await ran("turns:never_retries", ["x"], providers={"*": yielding(finish())})
    assert run.result.text == "x"


# --- flow ----------------------------------------------------------------------------


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_one_that_never_ends_is_ended_with_its_run(anyio_backend: str) -> None:
    begun, ended = anyio.Event(), anyio.Event()

    async def provide(request: Request) -> AsyncIterator[JsonObject]:
        try:
            yield START
            begun.set()
            await anyio.sleep_forever()
        finally:
            ended.set()

    with anyio.fail_after(SECONDS):
        async with Driver(providers={"m": provide}, launcher=warm()) as driver:
            run = await driver.start(reference("turns:never_retries"), "go")
            await begun.wait()
    assert ended.is_set()
    assert (await run.result()).stop_reason == "aborted"


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_several_calls_at_once(anyio_backend: str) -> None:
    """Each provider waits for the other, so both are at work."""
    arrived = {"one": anyio.Event(), "two": anyio.Event()}

    async def provide(request: Request) -> AsyncGenerator[JsonObject, None]:
        text = request.messages[0]["content"][0]["text"]
        if text in arrived:
            arrived[text].set()
            for each in arrived.values():
                await each.wait()
        yield delta(text)
        yield finish()

    run = await ran("children:with_keys", providers={"m": provide})
    assert run.said() == ["one two"]
    assert run.result.text == "go"
    check_tape(run, "/t1s0ka", "/t1s0kb%2F%C3%BC")


async def test_a_fast_provider_is_held_back() -> None:
    """A worker that takes nothing stops it ``AHEAD`` chunks after what was served."""
    request = CallRequest("s", 0, "turn", "m", "one", 1, 1)
    call = OpenCall(request, None, Window(1, 1))
    yielded = 0
    allowed = AHEAD
    for _ in range(10 * AHEAD):
        while yielded < allowed:
            call.grow(delta("x"))
            yielded += 1
        batch = call.next_batch(0)
        if batch is not None and call.served % 2:
            call.window.grant(len(batch.body), 1)
        more = call.allowance()
        assert yielded <= call.served + AHEAD
        allowed = allowed if more is None else more
    assert call.served < yielded


async def test_how_far_a_provider_is_ahead() -> None:
    """Its worker is stopped: it is asked for no chunk that nobody has room for."""
    count = 40 * AHEAD
    most = 0
    text = "x" * 2000

    async def provide(request: Request) -> AsyncGenerator[JsonObject, None]:
        nonlocal most
        yield START
        for number in range(count):
            most = max(most, number + 2 - served[0])
            yield delta(text)
        yield finish()

    served = [0]
    patch = pytest.MonkeyPatch()
    batched = OpenCall.next_batch

    def spied(self: OpenCall, now: int) -> Any:
        batch = batched(self, now)
        served[0] = self.served
        return batch

    with patch.context() as context:
        context.setattr(OpenCall, "next_batch", spied)
        run = await ran("turns:never_retries", providers={"m": provide})
    assert len(run.result.text) == count * len(text)
    assert AHEAD // 2 < most <= AHEAD


def test_an_answer_is_not_grown_by_what_is_refused() -> None:
    request = CallRequest("s", 0, "turn", "m", "one", 1, 1)
    call = OpenCall(request, None, Window(1 << 18, 64))
    call.grow(delta("x"))
    with pytest.raises(ProviderError, match="chunk 1: a chunk must be an object"):
        call.grow(5)
    assert len(call.chunks) == 1
    call.finish({"message": "m", "code": "c"})
    assert isinstance(call.answer, Answer)
    assert call.answer.failure == {"message": "m", "code": "c"}
