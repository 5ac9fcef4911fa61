"""What bears the trace of a driver is found, whatever it was started with."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from nestling.driver import traces_io
from nestling.driver.marks import Mark, chances, mark_of_limit
from nestling.driver.traces_io import (
    MARK,
    Trace,
    bearers,
    mark_of,
    new_mark,
    owner_mark,
    set_mark,
)
from support.leaks import reap_quietly
from support.processes import needs_linux

pytestmark = needs_linux

RLIMIT_LOCKS = 10
NESTED = """
import os
from nestling.driver.traces_io import new_mark, set_mark, mark_of
mark = new_mark()
set_mark(os.getpid(), mark)
print(mark, mark_of(os.getpid()))
"""


@contextmanager
def _sleeper(mark: Mark | None, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """A process below one with a mark, which waits until it has that."""
    command = ["sh", "-c", "read go; sleep 600 & echo $!; exec cat"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={} if env is None else env,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if mark is not None:
                set_mark(process.pid, mark)
            process.stdin.write(b"\n")
            process.stdin.flush()
            yield int(process.stdout.readline())
        finally:
            os.killpg(process.pid, 9)
            reap_quietly(process)


def _found(mark: str) -> set[int]:
    return {process.pid for process in bearers(Trace(mark))}


def test_by_its_limit() -> None:
    """It inherits that; its environment is empty and it prints elsewhere."""
    mark, other = new_mark(), new_mark()
    with _sleeper(mark) as pid:
        assert mark_of(pid) == str(mark)
        assert pid in _found(str(mark))
        assert pid in _found(owner_mark())
        assert pid not in _found(str(other))


def test_by_its_environment_where_limits_cannot_be_set() -> None:
    mark = new_mark()
    with _sleeper(None, {MARK: str(mark)}) as pid:
        assert mark_of(pid) == str(mark)
        assert pid in _found(str(mark))


def test_by_its_environment_though_it_has_another_ones_limit() -> None:
    """As of a driver below a worker, where it could not give a limit of its own."""
    above, mark = Mark(1, 5, 1), new_mark()
    with _sleeper(above, {MARK: str(mark)}) as pid:
        assert pid in _found(str(above))
        assert pid in _found(str(mark))


def test_a_limit_like_others_says_nothing() -> None:
    with _sleeper(None) as pid:
        resource.prlimit(pid, RLIMIT_LOCKS, (1024, 1024))
        assert mark_of(pid) is None


def test_a_process_that_has_gone_is_given_no_mark() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    set_mark(process.pid, new_mark())


def test_a_driver_below_a_worker_lowers_the_limit() -> None:
    above = Mark(4_194_303, 1 << 10, 1)

    def lower() -> None:
        resource.setrlimit(RLIMIT_LOCKS, (above.limit, above.limit))

    ended = subprocess.run(
        [sys.executable, "-c", NESTED],
        preexec_fn=lower,
        capture_output=True,
        text=True,
        check=True,
    )
    mark, found = ended.stdout.split()
    assert mark == found
    chance = int(mark.partition("-")[2].partition(".")[0], 16)
    assert chance in chances(above.limit)
    assert chance < above.chance


def test_numbers_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_io, "_numbers", iter([(1 << 20) - 2, (1 << 20) - 1]))
    last, first = new_mark(), new_mark()
    assert (last.number, first.number) == ((1 << 20) - 1, 1)
    assert mark_of_limit(last.limit) == last
