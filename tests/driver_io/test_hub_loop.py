"""The hub's loop when something in it breaks: the run ends with it, nothing hangs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from nestling.driver import hub_io, hub_thread_io, run_directory_io, workers_io
from nestling.driver.director import Answer, CallRequest, Stop
from nestling.driver.exec_process_io import ExecProcess
from nestling.driver.hub_io import Bounds, HubLoop
from nestling.driver.instructions import HubEvent, Notice
from nestling.driver.launcher_io import ExecLauncher
from nestling.driver.run_io import run_tree
from nestling.driver.workers_io import Workers
from nestling.driver.writer_io import StoreWriter
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from nestling.session.errors import LaunchError, WireError
from nestling.session.event import Event
from nestling.wire.codec import encode
from nestling.wire.messages import Chunks, Close, Create, Delegate, ToHub, ToWorker
from nestling.worker.process_io import EXIT_ORPHANED
from support.processes import needs_linux
from support.runs import Watched, kinds, loaded, on_each_message
from support.scenarios import MIXED, hanging

pytestmark = [
    needs_linux,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
]


class Planted(Exception):
    """An error that a test has put where none belongs."""


class Failing(Watched):
    """A director that fails at one of its decisions."""

    failing = ""

    def on_stream(self, call: CallRequest) -> Answer | Stop:
        """Answer a call."""
        if self.failing == "on_stream":
            raise Planted
        return super().on_stream(call)

    def on_events(self, session_id: str, events: Sequence[Event]) -> None:
        """Take in events."""
        if self.failing == "on_events" and len(events) > 1:
            raise Planted

    def on_root(self) -> Any:
        """Create the root."""
        if self.failing == "on_root":
            raise Planted
        return super().on_root()


@pytest.mark.parametrize("failing", ["on_root", "on_stream", "on_events"])
async def test_a_director_that_fails(tmp_path: Path, failing: str) -> None:
    director = Failing(loaded(tmp_path, "spawn_and_fork"))
    director.failing = failing
    with anyio.fail_after(20), pytest.raises(Planted):
        await run_tree(director, ExecLauncher())


@pytest.mark.parametrize("text", ["starting", "call 1"])
async def test_a_watcher_that_fails(text: str) -> None:
    def watch(notice: Notice) -> None:
        if notice == Notice("/t2s1b1", text):
            raise Planted

    with anyio.fail_after(20), pytest.raises(Planted):
        await replay(load_scenario(MIXED), watch=watch)


@pytest.mark.parametrize("kind", [Create, Chunks, Close])
async def test_what_cannot_be_sent_ends_that_session_alone(
    monkeypatch: pytest.MonkeyPatch, kind: type[Create | Chunks | Close]
) -> None:
    def refuse(message: ToWorker, body: bytes = b"") -> list[bytes]:
        if isinstance(message, kind) and message.sid == 1:
            raise WireError("it is too large")
        return encode(message, body)

    monkeypatch.setattr(hub_io, "encode", refuse)
    with anyio.fail_after(20):
        report = await replay(load_scenario(MIXED), Bounds(15, 60))
    # Its parent is told, which was not recorded; the next child comes after that.
    assert kinds(report.problems) == [("worker-lost", "/t2s1b1"), ("log-differs", "/")]
    assert report.problems[0].message.startswith("protocol: it is too large (")


async def test_nothing_is_started_after_the_run_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delegation that is on its way when the run breaks does not become a worker."""
    started: list[str] = []
    start = Workers.start
    delegated = threading.Event()

    def counted(self: Workers, launch: str, module: str = "") -> None:
        started.append(launch)
        start(self, launch, module)

    def break_first(user: str, pid: int, message: ToHub) -> None:
        if isinstance(message, Delegate) and not delegated.is_set():
            delegated.set()
            hub = next(h for h in hubs if not h._over.done())
            hub._broke(hub._loop, {"exception": Planted()})

    hubs: list[HubLoop] = []
    run = HubLoop.run

    async def kept(self: HubLoop) -> hub_io.RunEnd:
        hubs.append(self)
        return await run(self)

    monkeypatch.setattr(HubLoop, "run", kept)
    monkeypatch.setattr(Workers, "start", counted)
    on_each_message(monkeypatch, break_first)
    with anyio.fail_after(20), pytest.raises(Planted):
        await run_tree(Watched(loaded(tmp_path, "spawn_and_fork")), ExecLauncher())
    assert delegated.is_set()
    assert started == ["w0"]


# --- starting ------------------------------------------------------------------


async def test_an_endpoint_that_cannot_be_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_directory_io, "_SOCKET", "logs")
    with anyio.fail_after(20), pytest.raises(WireError, match="exists already"):
        await replay(load_scenario(MIXED))


async def test_a_writer_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: StoreWriter, *_: object) -> None:
        raise Planted

    monkeypatch.setattr(StoreWriter, "__init__", fail)
    with anyio.fail_after(20), pytest.raises(Planted):
        await replay(load_scenario(MIXED))


async def test_a_thread_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(hub_thread_io.HubThread, "start", fail)
    with pytest.raises(LaunchError, match="hub's thread: can't start new thread"):
        await replay(load_scenario(MIXED))


async def test_too_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_thread_io, "DESCRIPTORS", 2_000_000)
    with pytest.raises(LaunchError, match="free descriptors, expected 2000000"):
        await replay(load_scenario(MIXED))


# --- ending --------------------------------------------------------------------


async def test_a_worker_that_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[ExecProcess] = []

    def shrug(self: ExecProcess) -> None:
        refused.append(self)

    monkeypatch.setattr(hub_io, "GRACE", 0.3)
    monkeypatch.setattr(workers_io, "GRACE", 0.3)
    with monkeypatch.context() as patch:
        patch.setattr(ExecProcess, "kill", shrug)
        with anyio.fail_after(20):
            report = await replay(
                load_scenario(hanging(tmp_path)), Bounds(0.4, 60), ExecLauncher()
            )
    assert kinds(report.problems) == [("worker-lost", "/")]
    # It ends at its lifeline now, or with the hub's thread, whichever it hears of first;
    # a process that hangs in the kernel would not.
    assert len(set(refused)) == 1
    assert refused[0]._process.wait(20) in (EXIT_ORPHANED, -signal.SIGKILL)


async def test_what_moves_the_run_is_told_from_what_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time without progress begins anew with each event that brings some."""
    tell = HubLoop._tell
    long_ago = -1.0
    seen: set[tuple[bool, bool]] = set()

    def told(self: HubLoop, event: HubEvent) -> None:
        before, since = self._hub.tree.progress, self._last_progress
        self._last_progress = long_ago
        tell(self, event)
        is_new = self._last_progress != long_ago
        seen.add((self._hub.tree.progress != before, is_new))
        self._last_progress = self._last_progress if is_new else since

    monkeypatch.setattr(HubLoop, "_tell", told)
    director = ReplayDirector(loaded(tmp_path, "spawn_and_fork"))
    with anyio.fail_after(20):
        end = await run_tree(director, ExecLauncher())
    assert end.ending == "done"
    assert seen == {(True, True), (False, False)}


async def test_a_hub_that_did_not_run_judges_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that was stopped for a while blames no worker for it."""
    tick = HubLoop._tick
    jumps: list[int] = []

    def late(self: HubLoop) -> None:
        jump = 100 if self._workers._running and not jumps else 0
        sessions = [s for s in self._hub.tree if s.started_at is not None]
        self._last_tick -= jump
        self._last_progress -= jump
        for session in sessions:
            session.started_at = (session.started_at or 0) - jump
        tick(self)
        for session in sessions:
            session.started_at = (session.started_at or 0) + jump
        jumps.extend([jump] if jump else [])

    monkeypatch.setattr(HubLoop, "_tick", late)
    director = ReplayDirector(loaded(tmp_path, "plain_answer"))
    with anyio.fail_after(20):
        end = await run_tree(director, ExecLauncher(), Bounds(10, 60))
    assert jumps == [100]
    assert end.ending == "done"
    assert director.ledger.problems == []
