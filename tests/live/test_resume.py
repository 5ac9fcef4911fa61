"""Sessions that go on after their driver has ended, or was killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from nestling.driver import Driver, SyncDriver, run_directory_io
from nestling.harness import Answer, ScriptedModel
from nestling.session.digest import seed_digest
from nestling.session.errors import (
    AgentReferenceError,
    CorruptError,
    JsonDomainError,
    LaunchError,
    LeaseError,
    NestlingError,
    SessionExistsError,
    SessionNotFoundError,
    StoreError,
)
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject
from nestling.session.repair import closers
from nestling.session.store_io import SessionStore, open_store
from support.killed_drivers import delegation, mortal, wait_for
from support.live import SECONDS, called, calling, reference, text_of, warm
from support.mortal_driver import model
from support.processes import needs_linux

PARENT = reference("family:parent")
CHILD = reference("family:child")


@pytest.fixture(params=["jsonl", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that lives as long as its files."""
    return f"{request.param}:{tmp_path / 'store'}"


def driver_of(store: str | SessionStore, answers: Any = ()) -> Driver:
    scripted = answers if isinstance(answers, ScriptedModel) else ScriptedModel(answers)
    return Driver(store=store, providers={"m": scripted}, launcher=warm())


def inspected(address: str, session_id: str = "root") -> list[Event]:
    with open_store(address) as store:
        return store.inspect(session_id).events


def kinds(events: list[Event]) -> list[str]:
    return [event.type for event in events if event.type != "assistant/chunk"]


async def first_run(address: str, *prompts: str) -> None:
    """Run the parent to its end, repeating each prompt."""
    async with driver_of(address, ScriptedModel(model)) as driver:
        run = await driver.start(PARENT, prompts, session_id="root")
        await run.result()


# --- a session that had ended ----------------------------------------------------------


async def test_a_session_goes_on_with_its_conversation(address: str) -> None:
    """B8: the request is the one of before, and what was said since."""
    with anyio.fail_after(SECONDS):
        await first_run(address, "one")
        with open_store(address) as store:
            before = store.inspect("root")
        answers = ScriptedModel(["four"])
        async with driver_of(address, answers) as driver:
            run = await driver.resume("root", "three")
            assert (await run.result()).text == "four"
            grown = [each.event.seq async for each in run.events()]
    (request,) = answers.requests
    assert request.system == "Be brief."
    assert [tool["name"] for tool in request.tools] == [
        "echo",
        "subagent",
        "subagent_fork",
    ]
    said = [text_of(message["content"]) for message in request.messages]
    assert said == ["one", "said one", "three"]
    with open_store(address) as store:
        after = store.inspect("root")
    assert after.header.row() == before.header.row()
    length = len(before.events)
    assert [e.row() for e in after.events[:length]] == [e.row() for e in before.events]
    assert grown == list(range(length, len(after.events)))
    fresh = kinds(after.events[length:])
    assert fresh[:3] == ["turn/start", "user/message", "step/start"]
    assert after.events[length].data == {"turn": 2}
    assert "request/header" not in fresh, "nothing about it has changed"
    assert "session/end-seed" not in kinds(after.events)


async def test_until_it_is_told_something_it_is_what_is_stored(address: str) -> None:
    with anyio.fail_after(SECONDS):
        await first_run(address, "one")
        async with driver_of(address, ["b"]) as driver:
            run = await driver.resume("root")
            assert (await run.result()).text == "said one"
            assert [each async for each in run.events()] == []
            await run.send("go on")
            assert (await run.result()).text == "b"
            await run.send("hang")
        assert kinds(inspected(address))[-1] == "turn/end"


async def test_one_that_is_only_looked_at_grows_by_nothing(address: str) -> None:
    with anyio.fail_after(SECONDS):
        await first_run(address, "one")
        before = inspected(address)
        async with driver_of(address) as driver:
            run = await driver.resume("root")
            logs = await run.close()
        assert [e.row() for e in logs["/"].events] == [e.row() for e in before]
        assert [e.row() for e in inspected(address)] == [e.row() for e in before]


async def test_five_resumes_of_one_turn_each(address: str) -> None:
    """B1: the log grows by what is new, and every message has an id of its own."""
    with anyio.fail_after(SECONDS):
        await first_run(address, "turn 0")
        lengths = [len(inspected(address))]
        for number in range(1, 6):
            async with driver_of(address, ScriptedModel(model)) as driver:
                run = await driver.resume("root", f"turn {number}")
                assert (await run.result()).text == f"said turn {number}"
            lengths.append(len(inspected(address)))
        grown = {b - a for a, b in pairwise(lengths)}
        assert len(grown) == 1
        events = inspected(address)
    assert [event.seq for event in events] == list(range(len(events)))
    ids = [e.data["id"] for e in events if e.type == "user/message"]
    ids += [e.data["message"]["id"] for e in events if e.type == "assistant/message"]
    assert len(set(ids)) == len(ids) == 12


async def test_another_agent_and_other_options(address: str) -> None:
    with anyio.fail_after(SECONDS):
        await first_run(address, "one")
        async with driver_of(address, ["a"]) as driver:
            run = await driver.resume("root", "go", agent=CHILD, options={"x": 1})
            await run.result()
        said = [e.data for e in inspected(address) if e.type == "user/message"]
    assert text_of(said[-1]["content"]) == "('root', '', {'x': 1})"


async def test_the_options_it_had(address: str) -> None:
    with anyio.fail_after(SECONDS):
        async with driver_of(address, ["a"]) as driver:
            await (
                await driver.start(CHILD, "a", session_id="r", options={"x": 1})
            ).result()
        async with driver_of(address, ["b"]) as driver:
            await (await driver.resume("r", "b")).result()
        said = [e.data for e in inspected(address, "r") if e.type == "user/message"]
    told = [text_of(each["content"]) for each in said]
    assert told == ["a", "('root', '', {'x': 1})", "b", "('root', '', {'x': 1})"]


def test_without_async(address: str) -> None:
    options: Any = {"providers": {"m": ScriptedModel(model)}, "launcher": warm()}
    with SyncDriver(store=address, **options) as driver:
        assert (
            driver.start(PARENT, "one", session_id="root").result().text == "said one"
        )
    with SyncDriver(store=address, **options) as driver:
        assert driver.resume("root", "two").result().text == "said two"


async def test_a_store_of_the_callers_stays_open() -> None:
    """And one driver goes on with what another one left in memory."""
    with anyio.fail_after(SECONDS), open_store("memory:") as store:
        async with driver_of(store, ["a"]) as driver:
            await (await driver.start(PARENT, "one", session_id="root")).result()
        async with driver_of(store, ["b"]) as driver:
            assert (await (await driver.resume("root", "two")).result()).text == "b"
        assert len(store.sessions()) == 1


# --- boundaries ------------------------------------------------------------------------


async def test_a_resumed_fork_child_keeps_its_boundary(address: str) -> None:
    """And a fork of it inherits all of its log, what it inherited included."""
    fork = called("subagent_fork", '{"description":"d","prompt":"work"}')
    with anyio.fail_after(SECONDS):
        model = ScriptedModel(
            by_text={"work": ["worked"]}, answers=["said one", calling(fork), "end"]
        )
        async with driver_of(address, model) as driver:
            run = await driver.start(PARENT, ["one", "two"], session_id="root")
            await run.result()
        with open_store(address) as store:
            child = store.inspect("root.t2s1b0")
        inherited = child.header.seed_length
        assert 0 < inherited < len(child.events)
        model = ScriptedModel(
            by_text={"work": ["worked"]}, answers=[calling(fork), "end"]
        )
        async with driver_of(address, model) as driver:
            run = await driver.resume("root.t2s1b0", "go on")
            assert (await run.result()).text == "end"
        with open_store(address) as store:
            after = store.inspect("root.t2s1b0")
            grandchild = store.inspect("root.t2s1b0.t3s1b0")
    assert after.header.row() == child.header.row()
    assert kinds(after.events).count("session/end-seed") == 1
    length = len(child.events)
    assert grandchild.header.seed_length == length
    assert grandchild.header.seed_digest == seed_digest(child.events)
    assert grandchild.header.delegation_depth == 2
    assert grandchild.events[length].type == "session/end-seed"


async def test_the_depth_of_a_resumed_child_counts(address: str) -> None:
    """The limit of 3 is the tree's, whatever a resume starts with."""
    deeper = called("subagent", '{"description":"d","prompt":"deeper"}')
    with anyio.fail_after(SECONDS):
        answers = [
            calling(deeper),
            calling(deeper),
            calling(deeper),
            "d",
            "c",
            "b",
            "a",
        ]
        async with driver_of(address, answers) as driver:
            run = await driver.start(PARENT, "go", session_id="root")
            assert (await run.result()).text == "a"
        deepest = "root.t1s1b0.t1s1b0.t1s1b0"
        async with driver_of(address, [calling(deeper), "no"]) as driver:
            run = await driver.resume(deepest, "again")
            assert (await run.result()).text == "no"
        results = [e for e in inspected(address, deepest) if e.type == "tool/result"]
    (block,) = results[-1].data["message"]["content"]
    assert block["isError"]
    assert "depth 4 exceeds the limit of 3" in text_of(block["content"])


# --- what is refused -------------------------------------------------------------------


async def test_what_cannot_be_resumed(address: str) -> None:
    with anyio.fail_after(SECONDS):
        async with driver_of(address, ["a"]) as driver:
            with pytest.raises(SessionNotFoundError, match='"no" is not stored'):
                await driver.resume("no")
            with open_store(address) as store:
                store.create(Header("plain", 1, {}))
                store.append("plain", [Event(0, "session/title", 1, {"title": "t"})])
            with pytest.raises(AgentReferenceError, match="does not say which agent"):
                await driver.resume("plain")
            run = await driver.resume("plain", "go", agent=CHILD)
            assert (await run.result()).text == "a"
            with pytest.raises(LeaseError, match='"plain" is being written here'):
                await driver.resume("plain", agent=CHILD)
            with pytest.raises(SessionExistsError, match="exists already"):
                await driver.start(CHILD, "go", session_id="plain")
        with pytest.raises(NestlingError, match="inside of `async with`"):
            await driver.resume("plain")


async def test_a_session_has_one_driver_at_a_time(address: str) -> None:
    """B12: the second one learns of it before its first call."""
    with anyio.fail_after(SECONDS):
        await first_run(address, "one")
        first, second = ScriptedModel(["a"]), ScriptedModel(["b"])
        async with driver_of(address, first) as one, driver_of(address, second) as two:
            run = await one.resume("root", "two")
            with pytest.raises(LeaseError, match="session 'root' is being written"):
                await two.resume("root", "two")
            await run.result()
            await run.close()
            again = await two.resume("root", "three")
            assert (await again.result()).text == "b"
    assert len(first.requests) == len(second.requests) == 1


async def test_an_id_that_is_taken_meanwhile(address: str) -> None:
    """Whoever reserves an id first has it; the other makes no call."""
    with anyio.fail_after(SECONDS), open_store(address) as store:
        async with driver_of(address, ["a"]) as driver:
            store.create(Header("root", 1, {}))
            run = await driver.start(PARENT, "go", session_id="root")
            result = await run.result()
    assert result.stop_reason == "error"
    assert result.diagnostic is not None
    assert "session 'root' is being written" in result.diagnostic
    assert run.end is not None
    assert driver._providers["m"].requests == []  # type: ignore[attr-defined]


async def test_a_store_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database")
    with anyio.fail_after(SECONDS):
        for address in (f"sqlite:{tmp_path / 'file'}", f"jsonl:{tmp_path / 'file'}"):
            async with driver_of(address) as driver:
                with pytest.raises(StoreError, match="file"):
                    await driver.start(PARENT, "go")
    assert (tmp_path / "file").read_text() == "no database"
    with pytest.raises(StoreError, match="expected jsonl:DIR"):
        Driver(store="runs.db")


async def test_a_damaged_session_is_refused_and_left(tmp_path: Path) -> None:
    address = f"jsonl:{tmp_path / 'store'}"
    with anyio.fail_after(SECONDS):
        await first_run(address, "one", "two")
        path = tmp_path / "store" / "root" / "session.jsonl"
        lines = path.read_bytes().split(b"\n")
        lines[3] = lines[3][:-5]
        path.write_bytes(b"\n".join(lines))
        before = path.read_bytes()
        async with driver_of(address) as driver:
            with pytest.raises(CorruptError, match="line 4"):
                await driver.resume("root", "go")
        assert path.read_bytes() == before


# --- after a kill ----------------------------------------------------------------------


@pytest.fixture
def runs(box: Path) -> Iterator[None]:
    """Remove the run directories that a killed driver cannot remove."""
    yield
    for left in box.glob("nestling-*"):
        shutil.rmtree(left)


def results_of(events: list[Event]) -> dict[str, JsonObject]:
    """Each tool result's data, by call id; a call has one."""
    results = [event.data for event in events if event.type == "tool/result"]
    by_id = {data["message"]["source"]["callId"]: data for data in results}
    assert len(by_id) == len(results)
    return by_id


def result_text(data: Mapping[str, Any]) -> str:
    (block,) = data["message"]["content"]
    return text_of(block["content"])


pytestmark = needs_linux


@pytest.mark.usefixtures("runs")
async def test_children_of_a_driver_that_was_killed(address: str) -> None:
    """One had settled, one had not, one has a child of its own that had."""
    settled = delegation("subagent", "work")
    hangs = delegation("subagent", "hang on")
    grandchild = delegation("subagent_fork", f"{settled}\n{hangs}")
    prompt = f"{settled}\n{hangs}\n{grandchild}"
    with mortal(address, PARENT, prompt) as (_, lines):
        wait_for(
            lines,
            "hangs hang on",
            "hangs hang on",
            "stored root.t1s1b0 turn/end",
            "stored root.t1s1b2.t1s1b0 turn/end",
        )
    with anyio.fail_after(SECONDS):
        for _ in range(2):
            async with driver_of(address) as driver:
                run = await driver.resume("root")
                result = await run.result()
                assert (result.stop_reason, result.diagnostic) == (
                    "error",
                    "its last turn was interrupted",
                )
        parent = inspected(address)
        results = results_of(parent)
        assert result_text(results["c0"]) == "said work"
        assert "error" not in results["c0"]
        assert results["c1"]["error"]["code"] == "SUBAGENT_INTERRUPTED"
        text = result_text(results["c1"])
        assert "interrupted before it had finished, after 0 model calls" in text
        assert 'its session is "root.t1s1b1".' in text
        assert results["c2"]["error"]["code"] == "SUBAGENT_INTERRUPTED"
        assert kinds(parent)[-5:] == [
            *("tool/result", "tool/result", "tool/result"),
            *("step/end", "turn/end"),
        ]
        inner = results_of(inspected(address, "root.t1s1b2"))
        assert result_text(inner["c0"]) == "said work"
        assert inner["c1"]["error"]["code"] == "SUBAGENT_INTERRUPTED"
        with open_store(address) as store:
            for listed in store.sessions():
                stored = store.inspect(listed.id)
                assert (stored.closers, stored.tail) == (0, ""), "all was committed"
                assert closers(stored.events) == []
        answers = ScriptedModel(["Then I go on alone."])
        async with driver_of(address, answers) as driver:
            run = await driver.resume("root", "What now?")
            assert (await run.result()).text == "Then I go on alone."
    (request,) = answers.requests
    roles = [message["role"] for message in request.messages]
    assert roles == ["user", "assistant", "user", "user", "user", "user"]
    assert text_of(request.messages[-1]["content"]) == "What now?"


@pytest.mark.usefixtures("runs")
async def test_a_grandchild_goes_on_where_it_was(address: str) -> None:
    """B9: the same session, whose calls in both runs are those of one run."""
    inner = delegation("subagent", 'call echo {"text":"hang until told"}')
    with mortal(address, PARENT, delegation("subagent", inner)) as (_, lines):
        lines.until("hangs hang until told")
    grandchild = "root.t1s1b0.t1s1b0"
    with anyio.fail_after(SECONDS):
        async with driver_of(address) as driver:
            await (await driver.resume("root")).result()
        with open_store(address) as store:
            before = [listed.id for listed in store.sessions()]
        answers = ScriptedModel(["approved"])
        async with driver_of(address, answers) as driver:
            run = await driver.resume(grandchild, "It is approved.")
            assert (await run.result()).text == "approved"
        with open_store(address) as store:
            assert [listed.id for listed in store.sessions()] == before
        messages = kinds(inspected(address, grandchild)).count("assistant/message")
    assert len(answers.requests) == 1
    assert messages == 2, "the call of the first run, and that of the second"


@pytest.mark.usefixtures("runs")
async def test_a_driver_killed_in_the_middle_of_an_answer(address: str) -> None:
    """A10, A2: what was acknowledged is there, the turn is closed, nothing invented."""
    with mortal(address, PARENT, "one", "hang now") as (_, lines):
        lines.until("hangs ")
    with anyio.fail_after(SECONDS):
        async with driver_of(address, ["again"]) as driver:
            run = await driver.resume("root", "Where were we?")
            assert (await run.result()).text == "again"
        events = inspected(address)
    reasons = [e.data["reason"]["kind"] for e in events if e.type == "turn/end"]
    assert reasons == ["completed", "interrupted", "completed"]
    assert kinds(events).count("assistant/message") == 2


@pytest.mark.usefixtures("runs")
async def test_a_delegation_by_code_is_closed_and_told_to_nobody(address: str) -> None:
    """The code that waited for it is gone, and no call of a model did."""
    with mortal(address, reference("family:delegates"), "hang") as (_, lines):
        lines.until("hangs ")
    with anyio.fail_after(SECONDS):
        async with driver_of(address, ["child", "parent"]) as driver:
            run = await driver.resume("root", "again")
            assert (await run.result()).text == "parent"
        assert kinds(inspected(address)).count("tool/result") == 0
        child = inspected(address, "root.t1s0d0")
        assert child[-1].data["reason"] == {"kind": "interrupted"}
        assert kinds(inspected(address, "root.t2s0d0"))[-1] == "turn/end"


async def test_a_failed_turn_has_no_answer_of_an_earlier_one(address: str) -> None:
    with anyio.fail_after(SECONDS):
        await first_run(address, "one")
        failing = ScriptedModel([Answer("").fails("AUTH", after=0)])
        async with driver_of(address, failing) as driver:
            run = await driver.resume("root", "two")
            result = await run.result()
    assert (result.stop_reason, result.text) == ("error", "")
    assert "AUTH" in str(result.diagnostic)


async def test_a_resume_that_cannot_start_gives_the_session_back(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Path:
        raise LaunchError("no place")

    with anyio.fail_after(SECONDS):
        await first_run(address, "one")
        async with driver_of(address, ["a"]) as driver:
            with monkeypatch.context() as patch:
                patch.setattr(run_directory_io, "new_directory", fail)
                run = await driver.resume("root", "two")
                with pytest.raises(LaunchError, match="no place"):
                    await run.result()
            run = await driver.resume("root", "two")
            assert (await run.result()).text == "a"


async def test_an_agent_that_is_gone(address: str) -> None:
    """Also where nothing was asked of it yet: it is no success."""
    with anyio.fail_after(SECONDS):
        await first_run(address, "one")
        async with driver_of(address) as driver:
            run = await driver.resume("root", agent=reference("family:missing"))
            await run.close()
            result = await run.result()
    assert result.stop_reason == "error"
    assert "missing" in str(result.diagnostic)


async def test_a_session_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    for scheme in ("jsonl", "sqlite"):
        async with driver_of(f"{scheme}:{tmp_path / 'new'}") as driver:
            with pytest.raises(SessionNotFoundError):
                await driver.resume("typo")
    assert os.listdir(tmp_path) == []


async def test_ids_and_stores_that_are_none(tmp_path: Path) -> None:
    async with driver_of("memory:") as driver:
        for wrong in ("", None, 5, b"x"):
            with pytest.raises(JsonDomainError, match="a session's id is a string"):
                await driver.resume(wrong)  # type: ignore[arg-type]
        with pytest.raises(JsonDomainError, match="a session's id is a string"):
            await driver.start(PARENT, "go", session_id="")
    for store in (None, 5, b"memory:", tmp_path):
        with pytest.raises(StoreError, match="a store's address is jsonl:DIR"):
            Driver(store=store)  # type: ignore[arg-type]


async def test_a_driver_keeps_no_run_that_has_ended() -> None:
    with anyio.fail_after(SECONDS):
        async with driver_of("memory:", ScriptedModel(model)) as driver:
            for _ in range(3):
                run = await driver.start(PARENT, "go")
                await run.result()
                await run.close()
            assert len(driver._runs) == 1
