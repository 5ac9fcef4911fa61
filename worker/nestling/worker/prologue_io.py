"""What a freshly forked process does before it is a worker, in an order that matters.

A fresh interpreter gets all of this from the kernel and from its own start; a fork has
to undo what it inherited. numpy's global random generator, unlike ``random``, goes on
where the template's stood: all forks of one template would draw the same numbers, so
an agent that uses it makes a generator of its own after its start.
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn, TypeAlias

from nestling.wire.fork import Fork
from nestling.worker import process_io
from nestling.worker.kernel_io import (
    adopt_orphans,
    call_myself,
    die_with_parent,
    flush_c_streams,
)

LIFELINE: Final = 3
"""The descriptor that a forked worker finds its launch spec and lifeline at."""

_ALL_FDS: Final = 2**31 - 1


Adopt: TypeAlias = Callable[[int], tuple[Fork, int, int] | None]
"""Waits at a descriptor for what a spare becomes: that, its log and its lifeline."""


class Surroundings(NamedTuple):
    """What a forked process needs to know of its template.

    Attributes:
        template: the template's pid.
        log: the descriptor that takes what the worker prints.
        lifeline: its lifeline.
    """

    template: int
    log: int
    lifeline: int


def flush() -> None:
    """Write out what was printed, so that no fork prints it once more."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # closed, or its file is full: nothing more can be done for it
    flush_c_streams()


def become_worker(fork: Fork, around: Surroundings) -> NoReturn:
    """Turn this fresh fork into a worker, run it, and end."""
    _ends(lambda: _become(fork, around))


def become_spare(template: int, seat: int, adopt: Adopt) -> NoReturn:
    """Do what can be done before anybody asks; then wait, become a worker, and end.

    Args:
        template: the template's pid.
        seat: the descriptor at which it is told what it becomes, or that it is not
            needed: the other end is closed.
        adopt: waits for that.
    """
    _ends(lambda: _wait(template, seat, adopt))


def _ends(work: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        code = work()
    except BaseException:  # noqa: BLE001 - nothing may unwind into the template's code
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def _become(fork: Fork, around: Surroundings) -> int:
    _bind(around.template)
    _take_seats(around.log, around.lifeline)
    os.closerange(LIFELINE + 1, _ALL_FDS)
    return _work(fork)


def _wait(template: int, seat: int, adopt: Adopt) -> int:
    _bind(template)
    call_myself("nestling:spare")
    os.dup2(seat, LIFELINE + 1)
    os.closerange(LIFELINE + 2, _ALL_FDS)
    adopted = adopt(LIFELINE + 1)
    if adopted is None:
        return 0
    fork, log, lifeline = adopted
    _take_seats(log, lifeline)
    os.closerange(LIFELINE + 1, _ALL_FDS)
    return _work(fork)


def _work(fork: Fork) -> int:
    # The template ignores it; everything else is as it was when that started.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _settle(fork)
    gc.enable()
    return _run(fork.entry)


def _bind(template: int) -> None:
    """Die with the template, whichever way it ends; lead a group of its own."""
    die_with_parent()
    if os.getppid() != template:  # it died before the kernel was asked
        os._exit(process_io.EXIT_ORPHANED)
    os.setpgid(0, 0)
    # What its own children leave behind stays below it as long as it lives, and
    # goes to the template, which ends it, afterwards.
    adopt_orphans()


def _take_seats(log: int, lifeline: int) -> None:
    """Put the standard streams and the lifeline where a worker looks for them.

    Whoever calls this closes all the rest: a sibling's lifeline or the template's own
    sockets in here would keep others from noticing ends.
    """
    if log <= LIFELINE or lifeline <= LIFELINE:
        raise AssertionError("the template runs without its standard streams")
    stdin = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((stdin, 0), (log, 1), (log, 2), (lifeline, LIFELINE)):
        os.dup2(source, target, inheritable=target < LIFELINE)


def _settle(fork: Fork) -> None:
    os.chdir(fork.directory)
    zone = os.environ.get("TZ")
    _set_environment(fork.environment)
    if os.environ.get("TZ") != zone:
        time.tzset()
    tempfile.tempdir = None  # TMPDIR may be another one now
    call_myself(f"nestling:{fork.launch}")


def _set_environment(wanted: dict[bytes, bytes]) -> None:
    """Make the environment this one, and touch only what differs."""
    current = os.environb
    for name in [name for name in current if name not in wanted]:
        del current[name]
    for name, value in wanted.items():
        if current.get(name) != value:
            current[name] = value


def _run(entry: str) -> int:
    """Run a program module, and return the exit code that it would end with."""
    sys.argv = [entry, str(LIFELINE)]
    try:
        if entry == process_io.PROGRAM:
            return process_io.main(sys.argv)
        runpy.run_module(entry, run_name="__main__", alter_sys=True)
    except SystemExit as exit:
        return _exit_code(exit)
    return 0


def _exit_code(exit: SystemExit) -> int:
    if exit.code is None:
        return 0
    if isinstance(exit.code, int):
        return exit.code & 0xFF
    sys.stderr.write(f"{exit.code}\n")
    return 1
