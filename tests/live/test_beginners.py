"""Slips of those who are new to it: one sentence, and where it is looked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nestling.driver import Driver, SyncDriver
from nestling.harness import ScriptedModel, load_scenario
from nestling.harness.support import hindrances
from nestling.session.errors import AgentReferenceError
from nestling.session.jsontext import JsonObject
from nestling.worker.references_io import load_module
from support.live import launcher_named
from support.scenarios import MIXED

SELF_STARTING = """
import anyio
from nestling.driver import Driver, SyncDriver
from nestling.worker import Agent
keeper = Agent("m/one")
async def main():
    async with Driver() as driver:
        await driver.start(__file__ + ":keeper", "hi")
"""


@pytest.mark.parametrize("start", ["anyio.run(main)", "SyncDriver().__enter__()"])
def test_a_module_that_starts_a_driver_when_it_is_imported(
    tmp_path: Path, start: str
) -> None:
    path = tmp_path / "agent.py"
    path.write_text(f"{SELF_STARTING}{start}\n")
    with pytest.raises(AgentReferenceError, match="starts a driver when it is import"):
        load_module(str(path))
    path.write_text(SELF_STARTING)
    load_module(str(path))  # that failure is over
    SyncDriver()


@pytest.mark.parametrize("launcher", ["template", "exec"])
async def test_no_worker_starts_a_driver(tmp_path: Path, launcher: str) -> None:
    path = tmp_path / "agent.py"
    path.write_text(f"{SELF_STARTING}anyio.run(main)\n")
    async with Driver(launcher=launcher_named(launcher)) as driver:
        run = await driver.start(f"{path}:keeper", "hi")
        result = await run.result()
        await run.close()
    assert result.stop_reason == "error"
    assert result.diagnostic is not None
    assert 'under `if __name__ == "__main__":`' in result.diagnostic


async def silent(request: object) -> object:
    """A provider that says nothing."""
    chunks: list[JsonObject] = []
    for chunk in chunks:
        yield chunk


async def misspelt(request: object) -> object:
    """A provider whose tool call has another name."""
    block = {"type": "tool_call", "id": "1", "name": "x", "arguments": "{}"}
    yield {"type": "block-end", "index": 0, "block": block}
    yield {"type": "finish", "reason": {"kind": "tool-calls"}}


AGENT = "from nestling.worker import Agent\nkeeper = Agent('m/one')\n"
RAISING = "async def keeper(turn):\n    print('so far')\n    raise ValueError('so')\n"


async def ran(folder: Path, source: str, provider: object) -> tuple[str | None, str]:
    """Run an agent once; return why it failed, and what was printed."""
    (folder / "agent.py").write_text(source)
    providers: JsonObject = {} if provider is None else {"m": provider}
    async with Driver(providers=providers) as driver:
        run = await driver.start(f"{folder / 'agent.py'}:keeper", "hi")
        result = await run.result()
        await run.close()
    assert result.stop_reason == "error"
    return result.diagnostic, run.printed["/"]


@pytest.mark.parametrize(
    ("source", "provider", "why"),
    [
        (AGENT, None, "NO_PROVIDER: no provider is named 'm', there are: none"),
        (AGENT, silent, "BAD_CHUNK: the provider's stream ended without a finish"),
        (
            AGENT,
            misspelt,
            'BAD_CHUNK: chunk 1: a block has the type "tool_call", expected one of text',
        ),
        (AGENT, ScriptedModel([]), "SCRIPT_EXHAUSTED: the scripted model had no"),
        (RAISING, None, "AGENT_ERROR: ValueError: so"),
    ],
)
async def test_why_a_run_failed_is_in_its_result(
    tmp_path: Path, source: str, provider: object, why: str
) -> None:
    diagnostic, printed = await ran(tmp_path, source, provider)
    assert diagnostic is not None
    assert diagnostic.startswith(why)
    if source is RAISING:
        assert printed.startswith("so far\nTraceback (most recent call last):\n")


@pytest.mark.parametrize("gone", [(2,), (1, 2)])
def test_logs_of_children_that_are_missing(
    tmp_path: Path, gone: tuple[int, ...]
) -> None:
    folder = shutil.copytree(MIXED, tmp_path / "mixed")
    for number in gone:
        (folder / f"session.{number}.jsonl").unlink()
    problems = hindrances(load_scenario(folder))
    assert [problem.kind for problem in problems] == ["tree-differs"] * len(gone)
    assert all("its child's log is missing" in p.message for p in problems)
