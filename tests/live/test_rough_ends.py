"""What ends roughly: providers that exit, agents that leave tasks behind, much text."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from nestling.driver import Driver
from nestling.driver.caller_loop_io import CallerLoop
from nestling.harness import Answer, ScriptedModel, tool_call
from nestling.session.errors import JsonDomainError
from nestling.session.jsontext import JsonObject
from nestling.session.request import Request
from nestling.session.store_io import open_store

DONE: JsonObject = {"type": "finish", "reason": {"kind": "stop"}}
YES: JsonObject = {
    "type": "block-end",
    "index": 0,
    "block": {"type": "text", "text": "yes"},
}
AGENT = "from nestling.worker import Agent\nroot = Agent('m/one')\n"


async def exits(request: Request) -> AsyncIterator[JsonObject]:
    yield YES
    sys.exit(3)


async def closes_a_task_group(request: Request) -> AsyncIterator[JsonObject]:
    async with anyio.create_task_group():
        yield YES
        yield DONE


async def ends_basely(request: Request) -> AsyncIterator[JsonObject]:
    yield YES
    raise BaseException("so")  # noqa: TRY002 - what no handler waits for


async def ran(folder: Path, source: str, provider: object) -> tuple[str, str, str]:
    """Run an agent once; return its stop reason, its text and why it failed."""
    (folder / "agent.py").write_text(source)
    providers: JsonObject = {"*": provider}
    async with Driver(providers=providers) as driver:
        run = await driver.start(f"{folder / 'agent.py'}:root", "hi")
        with anyio.fail_after(30):
            result = await run.result()
        await run.close()
    return result.stop_reason, result.text, result.diagnostic or ""


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("provider", "why"),
    [
        (exits, "PROVIDER_ERROR: the provider raised SystemExit: 3"),
        (ends_basely, "PROVIDER_ERROR: the provider raised BaseException: so"),
    ],
)
async def test_a_provider_that_ends_the_program(
    tmp_path: Path, provider: object, why: str
) -> None:
    assert (await ran(tmp_path, AGENT, provider))[2] == why


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_provider_that_yields_inside_a_task_group(tmp_path: Path) -> None:
    found = await ran(tmp_path, AGENT, closes_a_task_group)
    assert found == ("completed", "yes", "")


LEAVING = """
import asyncio
async def root(turn):
    async def again():
        while True:
            await turn.stream(model="m/x")
    async def fail():
        await turn.stream(model="m/x")
        raise ValueError("my own")
    task = asyncio.create_task(again())
    await asyncio.sleep(0)
    raise ValueError("my own")
"""


async def test_an_agent_that_leaves_a_task_behind(tmp_path: Path) -> None:
    """The call that it has made comes to its end, and there is no other one."""
    model = ScriptedModel(lambda request: "yes")
    found = await ran(tmp_path, LEAVING, model)
    assert found[::2] == ("error", "AGENT_ERROR: ValueError: my own")
    assert len(model.requests) == 1


async def says_no_reason(request: Request) -> AsyncIterator[JsonObject]:
    yield {"type": "finish", "reason": {"kind": "error"}}


async def test_a_failure_without_a_reason(tmp_path: Path) -> None:
    assert await ran(tmp_path, AGENT, says_no_reason) == ("error", "", "it failed")


class Full:
    """A stream on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        """Have nothing to flush."""


async def test_a_provider_whose_traceback_nobody_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call fails for the reason that it has, and the driver goes on."""
    monkeypatch.setattr(sys, "stderr", Full())
    why = "PROVIDER_ERROR: the provider raised BaseException: so"
    assert await ran(tmp_path, AGENT, ends_basely) == ("error", "", why)


SILENT = """
import os
from nestling.worker import Agent, tool
@tool
def closes() -> str:
    '''Close the standard streams, and fail.'''
    os.closerange(0, 3)
    raise ValueError("so")
root = Agent("m/one", tools=[closes])
"""


async def test_a_tool_that_closes_the_standard_streams(tmp_path: Path) -> None:
    model = ScriptedModel([Answer("", calls=[tool_call("closes", {})]), "done"])
    assert await ran(tmp_path, SILENT, model) == ("completed", "done", "")
    result = model.requests[1].messages[-1]["content"][0]
    assert result["content"][0]["text"] == "Error: ValueError: so"


MUCH = """
from nestling.worker import Agent, tool
@tool
def much() -> str:
    '''Say much.'''
    return "x" * (33 << 20)
@tool
def interrupt() -> str:
    '''Raise what is meant for a program.'''
    raise KeyboardInterrupt
root = Agent("m/one", tools=[much, interrupt])
"""


async def test_tools_that_say_too_much_or_raise_what_is_not_theirs(
    tmp_path: Path,
) -> None:
    calls = [tool_call("much", {}), tool_call("interrupt", {})]
    model = ScriptedModel([Answer("so", calls=calls), "done"])
    assert await ran(tmp_path, MUCH, model) == ("completed", "done", "")
    results = [m["content"][0] for m in model.requests[1].messages[-2:]]
    assert [result["isError"] for result in results] == [True, True]
    texts = [result["content"][0]["text"] for result in results]
    assert texts[0].startswith("Error: the tool returned 34603035 bytes of JSON, at")
    assert texts[1].startswith("Error: KeyboardInterrupt")


MUCH_CODE = """
async def root(turn):
    for act in (turn.append, turn.delegate):
        try:
            done = act("x" * (33 << 20))
            if act == turn.delegate:
                await done
        except Exception as error:
            turn.append(f"{type(error).__name__}: {error}")
    await turn.stream(model="m/x")
"""


async def test_code_that_says_too_much(tmp_path: Path) -> None:
    model = ScriptedModel(["done"])
    assert (await ran(tmp_path, MUCH_CODE, model))[1] == "done"
    told = [m["content"][0]["text"] for m in model.requests[0].messages[1:]]
    assert [text[:34] for text in told] == [
        "AgentError: the message is 3460303",
        "AgentError: the delegation is 3460",
    ]


@pytest.mark.parametrize("prompt", ["x" * (33 << 20), "fine"])
async def test_what_the_user_says_is_bounded(tmp_path: Path, prompt: str) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    options: JsonObject = [] if prompt == "fine" else {}  # type: ignore[assignment]
    async with Driver() as driver:
        with pytest.raises(JsonDomainError, match=r"bytes of JSON|must be a JSON obj"):
            await driver.start(f"{tmp_path}/agent.py:root", prompt, options=options)


class Said(logging.Handler):
    """Takes in what is warned of, and does something at once."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._act = act

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self._act()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_leaving_a_driver_with_a_provider_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for, and named; all else is gone by then, and can be gone on with."""
    store, asked, said = f"sqlite:{tmp_path / 'runs.db'}", anyio.Event(), anyio.Event()
    found: list[object] = []

    def look() -> None:
        with open_store(store) as kept:
            is_writing = driver._writer._thread.is_alive()
            found.extend((run.is_over, is_writing, kept.resume_tree("r").header.id))
            kept.release("r")
        said.set()

    async def stays(request: Request) -> AsyncIterator[JsonObject]:
        try:
            yield YES
            asked.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await said.wait()

    handler = Said(look)
    logger = logging.getLogger("nestling.driver")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(CallerLoop.__init__, "__defaults__", (0.2,))
    (tmp_path / "agent.py").write_text(AGENT)
    with anyio.fail_after(30):
        async with Driver(store=store, providers={"m": stays}) as driver:
            reference = f"{tmp_path / 'agent.py'}:root"
            run = await driver.start(reference, "hi", session_id="r")
            await asked.wait()
    waits = "leaving a driver waits for what was cancelled: the provider 'm'"
    assert handler.texts == [waits]
    assert found == [True, False, "r"]
