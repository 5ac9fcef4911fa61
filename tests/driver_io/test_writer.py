"""The writer: what it says is durable is stored, and what fails fails closed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import anyio
import pytest

from nestling.driver.hub_io import Bounds
from nestling.driver.instructions import Durable, NotDurable, Persist
from nestling.driver.writer_io import RunWriter, StoreWriter
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from nestling.session.errors import LaunchError, LeaseError, StoreError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.memory_backend import MemoryBackend
from nestling.session.store_backend import Write
from nestling.session.store_io import SessionStore
from support.processes import needs_linux
from support.runs import kinds
from support.scenarios import MIXED

NEVER = 1e6
"""A window that no test waits for."""


class Flaky(MemoryBackend):
    """Fails the writes that a test says, and counts commits.

    Attributes:
        fails: says what becomes of a write, or None if it succeeds.
        commits: the ids of the sessions of each commit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[Write], BaseException | None] = lambda write: None
        self.commits: list[list[str]] = []
        self.gate: threading.Event | None = None

    def write(self, writes: Sequence[Write]) -> list[StoreError | None]:
        if self.gate is not None:
            assert self.gate.wait(20)
        self.commits.append([write.header.id for write in writes])
        outcomes: list[StoreError | None] = []
        for write in writes:
            problem = self.fails(write)
            if problem is not None and not isinstance(problem, StoreError):
                raise problem
            outcomes += [problem] if problem is not None else super().write([write])
        return outcomes


Outcomes = queue.SimpleQueue[Durable | NotDurable]


class Kit:
    """A writer, one run of it, and what that was told."""

    def __init__(self, window: float = 0.0) -> None:
        self.backend = Flaky()
        self.store = SessionStore(self.backend)
        self.writer = StoreWriter(self.store, window)
        self.outcomes: Outcomes = queue.SimpleQueue()

    def told(self) -> Durable | NotDurable:
        return self.outcomes.get(timeout=20)

    def stored(self, sid: int) -> list[int]:
        return [event.seq for event in self.store.read_from(f"s{sid}", 0)]


@contextmanager
def writing(window: float = 0.0) -> Iterator[tuple[Kit, RunWriter]]:
    kit = Kit(window)
    with kit.store, kit.writer:
        run = kit.writer.run(kit.outcomes.put)
        yield kit, run
        run.close()


def batch(sid: int, first: int, length: int, *, is_new: bool = False) -> Persist:
    header = Header(f"s{sid}", 1, {}) if is_new else None
    events = tuple(
        Event(seq, "note", 1, {"n": seq}, ignorable=True)
        for seq in range(first, length)
    )
    return Persist(sid, f"s{sid}", header, events, length)


def _fails_for_s0(write: Write) -> StoreError | None:
    return StoreError("no") if write.header.id == "s0" else None


def test_batches_are_written_in_order() -> None:
    with writing() as (kit, run):
        run.write(batch(0, 0, 2, is_new=True))
        assert kit.told() == Durable(0, 2)
        run.write(batch(1, 0, 0, is_new=True))
        assert kit.told() == Durable(1, 0)
        for first in range(2, 50):
            run.write(batch(0, first, first + 1))
        told = kit.told()
        while told != Durable(0, 50):
            told = kit.told()
        assert kit.stored(0) == list(range(50))
        assert [listed.id for listed in kit.store.sessions()] == ["s0"], (
            "a session without events is not stored"
        )


def test_what_waits_is_written_when_it_is_flushed() -> None:
    with writing(NEVER) as (kit, run):
        run.write(batch(0, 0, 1, is_new=True))
        run.write(batch(0, 1, 9))
        run.flush(0)
        assert kit.told() == Durable(0, 9)
        assert kit.backend.commits == [["s0"]]


def test_one_commit_for_all_sessions_of_all_runs() -> None:
    """Group commit: what is due takes with it what waits."""
    with writing(NEVER) as (kit, run):
        other = kit.writer.run(kit.outcomes.put)
        for sid in range(5):
            (run if sid % 2 else other).write(batch(sid, 0, 1, is_new=True))
        run.flush(1)
        told = {kit.told() for _ in range(5)}
        assert told == {Durable(sid, 1) for sid in range(5)}
        assert [sorted(ids) for ids in kit.backend.commits] == [
            ["s0", "s1", "s2", "s3", "s4"]
        ]
        other.close()


def test_a_window_is_written_without_a_flush() -> None:
    with writing(0.01) as (kit, run):
        run.write(batch(0, 0, 1, is_new=True))
        assert kit.told() == Durable(0, 1)


def test_closing_a_run_writes_what_waits_and_lets_others_have_it() -> None:
    with writing(NEVER) as (kit, run):
        run.write(batch(0, 0, 1, is_new=True))
        run.write(batch(0, 1, 9))
        run.close()
        assert kit.told() == Durable(0, 9)
        assert not kit.store.is_live("s0")
        assert kit.stored(0) == list(range(9))


def test_closing_the_writer_writes_what_waits() -> None:
    kit = Kit(NEVER)
    with kit.store:
        with kit.writer:
            kit.writer.run(kit.outcomes.put).write(batch(0, 0, 3, is_new=True))
        assert kit.stored(0) == [0, 1, 2]


def test_a_session_is_released_after_its_last_events() -> None:
    with writing(NEVER) as (kit, run):
        run.write(batch(0, 0, 2, is_new=True))
        run.release(0)
        assert kit.told() == Durable(0, 2)
        run.write(batch(1, 0, 0, is_new=True))
        assert kit.told() == Durable(1, 0), "so the release is done"
        assert not kit.store.is_live("s0")
        assert kit.store.is_live("s1")


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (StoreError("the disk is gone"), "the disk is gone"),
        (MemoryError("no room"), "MemoryError('no room')"),
        (SystemExit(3), "SystemExit(3)"),
    ],
)
def test_what_fails_is_told_once_and_kept(error: BaseException, problem: str) -> None:
    """W7-W9: in front of what comes, and tried again with it."""
    with writing() as (kit, run):
        kit.backend.fails = lambda write: error
        run.write(batch(0, 0, 1, is_new=True))
        assert kit.told() == NotDurable(0, problem)
        run.write(batch(0, 1, 2))
        run.write(batch(1, 0, 0, is_new=True))
        assert kit.told() == Durable(1, 0), "nothing is told twice"
        kit.backend.fails = lambda write: None
        run.write(batch(0, 2, 3))
        assert kit.told() == Durable(0, 3)
        assert kit.stored(0) == [0, 1, 2]


def test_what_fails_for_one_session_is_nothing_to_the_others() -> None:
    with writing(NEVER) as (kit, run):
        kit.backend.fails = _fails_for_s0
        for sid in range(3):
            run.write(batch(sid, 0, 1, is_new=True))
        run.flush(0)
        told = {kit.told() for _ in range(3)}
        assert told == {NotDurable(0, "no"), Durable(1, 1), Durable(2, 1)}


def test_what_can_never_be_written_is_let_go_with_its_session() -> None:
    with writing() as (kit, run):
        kit.backend.fails = _fails_for_s0
        run.write(batch(0, 0, 1, is_new=True))
        assert kit.told() == NotDurable(0, "no")
        run.release(0)
        run.write(batch(1, 0, 1, is_new=True))
        assert kit.told() == Durable(1, 1)
        assert [listed.id for listed in kit.store.sessions()] == ["s1"]


def test_a_session_that_exists_already_is_refused_before_anything_of_it() -> None:
    with writing(NEVER) as (kit, run):
        run.write(batch(0, 0, 1, is_new=True))
        run.flush(0)
        assert kit.told() == Durable(0, 1)
        other = kit.writer.run(kit.outcomes.put)
        other.write(batch(0, 0, 5, is_new=True))
        told = kit.told()
        assert isinstance(told, NotDurable)
        assert 'session "s0" exists already' in told.problem
        other.write(batch(0, 5, 6))
        other.flush(0)
        other.close()
        assert kit.stored(0) == [0]
        assert kit.store.is_live("s0"), "it is the first one's still"


def test_a_lease_that_is_held_is_told_before_any_event() -> None:
    with writing(NEVER) as (kit, run):

        def create(header: Header) -> None:
            raise LeaseError("somebody writes it")

        kit.store.create = create  # type: ignore[method-assign]
        run.write(batch(0, 0, 0, is_new=True))
        assert kit.told() == NotDurable(0, "somebody writes it")


def test_a_resumed_session_goes_on_where_it_is() -> None:
    with writing() as (kit, run):
        run.write(batch(0, 0, 3, is_new=True))
        assert kit.told() == Durable(0, 3)
        run.close()
        kit.store.resume("s0")
        again = kit.writer.run(kit.outcomes.put)
        again.write(Persist(7, "s0", None, (), 3))
        assert kit.told() == Durable(7, 3)
        again.write(Persist(7, "s0", None, batch(0, 3, 5).events, 5))
        assert kit.told() == Durable(7, 5)
        again.close()
        assert kit.stored(0) == [0, 1, 2, 3, 4]
        assert not kit.store.is_live("s0")


def test_no_room_for_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    kit = Kit()
    monkeypatch.setattr(threading.Thread, "start", fail)
    with kit.store, pytest.raises(LaunchError, match="the writer's thread"), kit.writer:
        raise AssertionError


# --- in a run ------------------------------------------------------------------


@needs_linux
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    "error",
    [StoreError("No space left on device"), RuntimeError("nobody foresaw this")],
)
@pytest.mark.parametrize(("path", "after"), [("/", 0), ("/", 2), ("/t2s1b1", 0)])
async def test_a_store_that_fails_for_one_session(
    monkeypatch: pytest.MonkeyPatch, error: Exception, path: str, after: int
) -> None:
    scenario = load_scenario(MIXED)
    failing = scenario.by_path[path].recording.header.id
    write, count = MemoryBackend.write, 0

    def flaky(self: MemoryBackend, writes: Sequence[Write]) -> list[StoreError | None]:
        nonlocal count
        if any(each.header.id == failing for each in writes):
            count += 1
            if count > after:
                raise error
        return write(self, writes)

    monkeypatch.setattr(MemoryBackend, "write", flaky)
    with anyio.fail_after(20):
        report = await replay(scenario, Bounds(15, 60))
    assert ("worker-lost", path) in kinds(report.problems)
    lost = next(p for p in report.problems if p.path == path)
    assert str(error) in lost.message
    if after == 0:
        assert report.accounts[path].served == 0
