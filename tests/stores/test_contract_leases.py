"""The contract of stores: a session has one writer, also across processes (B12)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nestling.session.errors import (
    AppendError,
    LeaseError,
    SessionExistsError,
    SessionNotFoundError,
)
from nestling.session.event import Event
from nestling.session.repair import closers
from nestling.session.store_io import SessionStore
from support.leaks import reap_quietly
from support.processes import Lines, environment_with_tests
from support.session_logs import LogWriter
from support.stores import Place, exact, header, written

_START = Event(0, "turn/start", 1, {"turn": 1})


@contextmanager
def _holder(place: Place, *ids: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which is writing these sessions."""
    command = [sys.executable, "-m", "support.store_holder", place.address, *ids]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment_with_tests(),
    )
    try:
        assert process.stdout is not None
        assert Lines(process.stdout.fileno()).next() == "holding"
        yield process
    finally:
        reap_quietly(process)


def _answered() -> list[Event]:
    log = LogWriter()
    log.answered_turn("q", "a")
    return log.events


WRITES: list[Callable[[SessionStore], object]] = [
    lambda store: store.resume("s"),
    lambda store: store.delete("s"),
    lambda store: store.append("s", [Event(1, "turn/end", 1, {"turn": 1})]),
    lambda store: store.load("s"),
]


def test_another_process_is_the_writer(durable: Place) -> None:
    """B12, O20: it is named; what only reads may read; others are not concerned."""
    written(durable, _answered(), header("other"))
    with _holder(durable, "s") as process, durable.open() as store:
        for write in WRITES:
            with pytest.raises(LeaseError):
                write(store)
        with pytest.raises(LeaseError, match=str(process.pid)):
            store.resume("s")
        with pytest.raises(SessionExistsError):
            store.create(header())
        assert store.is_live("s")
        seen = store.inspect("s")
        assert (seen.is_live, seen.closers) == (True, 0)
        assert exact(seen.events) == exact([_START])
        assert len(store.read_from("s", 0)) == 1
        assert not store.is_live("other")
        store.resume("other")


@pytest.mark.parametrize("take", WRITES)
def test_what_a_killed_writer_held_is_taken_over(
    durable: Place, take: Callable[[SessionStore], object]
) -> None:
    """B12: at once, by whatever needs the lease."""
    with durable.open() as store, _holder(durable, "s") as process:
        assert store.is_live("s")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not store.is_live("s")
        assert store.inspect("s").closers == 1
        if take is WRITES[2]:  # the turn is closed first, so it is no turn/end
            store.append("s", [Event(2, "session/title", 1, {})])
        else:
            take(store)
    with durable.open() as store:
        if take is WRITES[1]:
            with pytest.raises(SessionNotFoundError):
                store.load("s")
        else:
            stored = store.load("s").events
            assert exact(stored[:2]) == exact([_START, *closers([_START])])


def test_a_writer_that_ends_lets_go(durable: Place) -> None:
    """O16: closing the store gives every lease back."""
    with durable.open() as store, _holder(durable, "a", "b") as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
        for name in "ab":
            assert not store.is_live(name)
            store.resume(name)


def test_a_reserved_id_is_nobody_elses(durable: Place) -> None:
    """O28: before anything is stored, too; and released it is free."""
    with durable.open() as first, durable.open() as second:
        first.create(header())
        with pytest.raises(LeaseError):
            second.create(header())
        assert second.is_live("s")
        with pytest.raises(SessionNotFoundError):
            second.inspect("s")
        first.release("s")
        second.create(header(created_at=2))
        with pytest.raises(LeaseError):
            first.create(header())
        second.append("s", _answered())
        with pytest.raises(SessionExistsError):
            first.create(header())


def test_two_objects_of_one_process_exclude_each_other(durable: Place) -> None:
    """B12: the rule is one of objects, not of processes."""
    written(durable, _answered())
    with durable.open() as first, durable.open() as second:
        first.resume("s")
        with pytest.raises(LeaseError):
            second.resume("s")
        with pytest.raises(LeaseError):
            first.resume("s")
        first.release("s")
        stored = second.resume("s")
        with pytest.raises(LeaseError):
            first.append("s", [Event(len(stored.events), "turn/start", 1, {"turn": 2})])
        second.append("s", [Event(len(stored.events), "turn/start", 1, {"turn": 2})])
        first.release("s")
        assert first.is_live("s"), "a release of what one does not hold is none"


def test_what_failed_leaves_no_lease(place: Place) -> None:
    """P7: a refused create, resume or delete does not keep others out."""
    written(place, _answered())
    with place.open() as first, place.open() as second:
        with pytest.raises(SessionExistsError):
            first.create(header())
        for refused in (first.resume, first.delete):
            with pytest.raises(SessionNotFoundError):
                refused("nobody")
        assert not second.is_live("s")
        assert not second.is_live("nobody")
        second.create(header("nobody"))
        second.resume("s")


def test_a_stale_writer_overwrites_nothing(durable: Place) -> None:
    """B12, S7: who let go and kept what it knew is told that the log went on."""
    events = _answered()
    with durable.open() as first, durable.open() as second:
        first.create(header())
        first.append("s", events[:4])
        first.release("s")
        second.resume("s")
        with pytest.raises(LeaseError):
            first.append("s", events[4:])
        length = len(second.read_from("s", 0))
        second.release("s")
        assert length > 4
        before = exact(first.read_from("s", 0))
        with pytest.raises(AppendError, match=f"continues at {length}"):
            first.append("s", events[4:])
        assert exact(first.read_from("s", 0)) == before
