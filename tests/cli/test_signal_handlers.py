"""Who handles the signals that ask to stop: before, while and after a run."""

from __future__ import annotations

import asyncio
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import anyio
import anyio.lowlevel
import pytest

from nestling.harness.interrupts_io import (
    exits_when_interrupted,
    is_interrupted,
    stop_signals,
    unless_interrupted,
)

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    """Give back the handlers that the test run has."""
    before = {number: signal.getsignal(number) for number in STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _handlers() -> list[object]:
    return [signal.getsignal(number) for number in STOPS]


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_ends_the_program_where_it_is(number: signal.Signals) -> None:
    with pytest.raises(SystemExit) as caught, exits_when_interrupted():
        signal.raise_signal(number)
    assert caught.value.code == 130
    # What Python does to end is not disturbed any more.
    assert _handlers() == [signal.SIG_IGN] * 3
    signal.raise_signal(number)


def test_a_program_that_ends_is_not_disturbed_either() -> None:
    with exits_when_interrupted():
        assert signal.SIG_IGN not in _handlers()
    assert _handlers() == [signal.SIG_IGN] * 3


def test_a_signal_whose_exception_was_lost() -> None:
    async def work() -> str:
        pytest.fail("it was begun")

    def body() -> None:
        with suppress(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        assert is_interrupted()
        assert asyncio.run(unless_interrupted(work)) is None

    with pytest.raises(SystemExit) as caught, exits_when_interrupted():
        body()
    assert caught.value.code == 130
    assert not is_interrupted()


def test_what_else_is_lost_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    class Lost:
        def __del__(self) -> None:
            raise ValueError

    with exits_when_interrupted():
        Lost()
    assert len(told) == 1
    assert sys.unraisablehook == told.append


def test_work_that_nobody_disturbs() -> None:
    before = _handlers()

    async def work() -> str:
        assert all(handler not in before for handler in _handlers())
        return "done"

    assert asyncio.run(unless_interrupted(work)) == "done"
    assert _handlers() == before


def test_work_that_fails() -> None:
    before = _handlers()

    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(unless_interrupted(work))
    assert _handlers() == before


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_arrives_where_the_work_waits(number: signal.Signals) -> None:
    done: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(number)
            done.append("what it was at")
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                signal.raise_signal(number)
                await anyio.lowlevel.checkpoint()
                done.append("cleaning up")

    assert asyncio.run(unless_interrupted(work)) is None
    assert done == ["what it was at", "cleaning up"]
    # Nothing but the end is left to do.
    assert _handlers() == [signal.SIG_IGN] * 3


def test_a_later_signal_ends_what_does_not_end() -> None:
    """A provider that holds up cleaning up, say; those that come at once do not."""
    times, done = iter([0.0, 1.0, 1.5, 2.5, 3.5]), []
    aborts: queue.Queue[str] = queue.Queue()

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                signal.raise_signal(signal.SIGINT)
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                done.append("was not disturbed")
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)
                await anyio.sleep_forever()

    async def bounded() -> object:
        async with asyncio.timeout(10):
            return await unless_interrupted(work, lambda: next(times), abort)

    def abort() -> None:
        aborts.put(threading.current_thread().name)

    assert asyncio.run(bounded()) is None
    assert aborts.get(timeout=10) != threading.main_thread().name
    assert aborts.empty()  # it is called once
    assert done == ["was not disturbed"]


def test_a_signal_in_the_last_moment_counts() -> None:
    async def work() -> str:
        signal.raise_signal(signal.SIGINT)
        return "done"

    assert asyncio.run(unless_interrupted(work)) is None


def test_what_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert stop_signals() == [signal.SIGINT, signal.SIGTERM]

    async def work() -> str:
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        signal.raise_signal(signal.SIGHUP)
        return "done"

    assert asyncio.run(unless_interrupted(work)) == "done"
