"""Stores that fail, move or fill up while agents run (faults B7, F6, G4)."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from nestling.driver import Driver, Request
from nestling.harness import Answer, ScriptedModel
from nestling.session.store_io import open_store
from support.live import SECONDS, called, calling, reference, warm
from support.mortal_driver import model
from support.processes import needs_linux

PARENT = reference("family:parent")

pytestmark = needs_linux


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes: a kernel's error, at any write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_disk_that_is_full_and_then_is_not(tmp_path: Path) -> None:
    """F6: nothing half stands in the log, and what was acknowledged is there."""
    address = f"jsonl:{tmp_path / 'store'}"
    path = tmp_path / "store" / "root" / "session.jsonl"
    scripted = ScriptedModel(model)
    with anyio.fail_after(SECONDS):
        async with Driver(
            store=address, providers={"m": scripted}, launcher=warm()
        ) as driver:
            run = await driver.start(PARENT, "one", session_id="root")
            await run.result()
            before = path.read_bytes()
            with full_disk(len(before) + 50):
                await run.send("two")
                result = await run.result()
                assert result.stop_reason == "error"
                assert "File too large" in str(result.diagnostic)
                assert str(path) in str(result.diagnostic)
                await run.close()
            assert len(scripted.requests) == 1, "no call was made for what was not kept"
            assert path.read_bytes().startswith(before)
            again = await driver.resume("root", "three")
            assert (await again.result()).text == "said three"
    with open_store(address) as store:
        events = store.inspect("root").events
    assert [event.seq for event in events] == list(range(len(events)))
    assert next(e.data["turn"] for e in events if e.type == "turn/start") == 1


@pytest.mark.parametrize("scheme", ["jsonl", "sqlite"])
async def test_a_store_that_goes_away(scheme: str, tmp_path: Path) -> None:
    """B7: the session stops, with a reason, before its next call."""
    place = tmp_path / "store"
    scripted = ScriptedModel(model)
    with anyio.fail_after(SECONDS):
        async with Driver(
            store=f"{scheme}:{place}", providers={"m": scripted}, launcher=warm()
        ) as driver:
            run = await driver.start(PARENT, "one", session_id="root")
            await run.result()
            place.rename(tmp_path / "elsewhere")
            await run.send("two")
            result = await run.result()
    assert result.stop_reason == "error"
    assert str(place) in str(result.diagnostic)
    assert len(scripted.requests) == 1


async def test_one_session_that_cannot_be_kept_stops_alone(tmp_path: Path) -> None:
    """Its parent is told, and goes on; no call was made for it."""
    place = tmp_path / "store"
    place.mkdir()
    (place / "root.t1s1b0").write_text("in the way")
    ask = called("subagent", '{"description":"d","prompt":"work"}')
    scripted = ScriptedModel([calling(ask), "on alone"])
    with anyio.fail_after(SECONDS):
        async with Driver(
            store=f"jsonl:{place}", providers={"m": scripted}, launcher=warm()
        ) as driver:
            run = await driver.start(PARENT, "go", session_id="root")
            assert (await run.result()).text == "on alone"
            (loss,) = run.losses
    assert loss[0] == "/t1s1b0"
    assert "root.t1s1b0" in loss[1]
    assert len(scripted.requests) == 2
    told = scripted.requests[1].messages[-1]["content"][0]
    assert told["isError"]


async def test_a_driver_that_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7: the place of a store is the one of when it was named."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)

    def moves(request: Request) -> Answer:
        os.chdir(tmp_path / "other")
        return model(request)

    with anyio.fail_after(SECONDS):
        for address in ("jsonl:store", "sqlite:runs.db"):
            os.chdir(tmp_path)
            async with Driver(
                store=address, providers={"m": ScriptedModel(moves)}, launcher=warm()
            ) as driver:
                run = await driver.start(PARENT, ["one", "two"], session_id="root")
                assert (await run.result()).text == "said two"
            os.chdir(tmp_path)
            with open_store(address) as store:
                assert store.inspect("root").closers == 0
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize("scheme", ["jsonl", "sqlite"])
async def test_a_line_of_fifteen_megabytes(scheme: str, tmp_path: Path) -> None:
    """G4: stored, given back, and sent to the model again."""
    address = f"{scheme}:{tmp_path / 'store'}"
    ask = called("large", '{"size":15000000}')
    scripted = ScriptedModel([calling(ask), "seen", "again"])
    with anyio.fail_after(SECONDS):
        async with Driver(
            store=address, providers={"m": scripted}, launcher=warm()
        ) as driver:
            run = await driver.start(
                reference("family:collector"), "go", session_id="root"
            )
            assert (await run.result()).text == "seen"
        async with Driver(
            store=address, providers={"m": scripted}, launcher=warm()
        ) as driver:
            run = await driver.resume("root", "more")
            assert (await run.result()).text == "again"
    (block,) = scripted.requests[2].messages[2]["content"]
    assert len(block["content"][0]["text"]) == 15_000_000


async def test_a_hundred_megabytes_are_an_error_that_the_model_reads() -> None:
    """G4: bounded, in a child as in its parent."""
    ask = called("large", '{"size":100000000}')
    scripted = ScriptedModel([calling(ask), "seen"])
    with anyio.fail_after(SECONDS):
        async with Driver(providers={"m": scripted}, launcher=warm()) as driver:
            run = await driver.start(reference("family:collector"), "go")
            assert (await run.result()).text == "seen"
    (block,) = scripted.requests[1].messages[-1]["content"]
    assert block["isError"]
    assert len(block["content"][0]["text"]) < 1000
