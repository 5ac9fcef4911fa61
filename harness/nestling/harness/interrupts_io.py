"""Signals that ask the program to stop: Ctrl-C, a supervisor, a closed terminal.

A signal that the program was started to ignore stays ignored. What a signal's handler
raises is lost where it comes in a finalizer or a callback, and comes out as something
else in a few other places. So it is also noted that one came, and whoever goes on asks.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import asyncio

EXIT_INTERRUPTED: Final = 130
SAME_WISH: Final = 1.0
"""Seconds within which signals after the first one ask for nothing more."""
RUNS_END: Final = 15.0
"""Seconds that the runs may take to end after a second wish; what is killed ends at once."""
PATIENCE: Final = 2.0
"""Seconds that everything else of this program has to end after that."""

T = TypeVar("T")

_NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP")

_arrived: Final[list[int]] = []
"""The signals that have asked this program to stop."""


def stop_signals() -> list[signal.Signals]:
    """Return the signals that this system has and that are not to be ignored."""
    found = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    return [number for number in found if signal.getsignal(number) != signal.SIG_IGN]


def hear_of_children() -> None:
    """Let the exits of children be collected, whatever this program was started with.

    With SIGCHLD ignored the kernel reaps them, and nobody learns how they ended.
    """
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextmanager
def exits_when_interrupted() -> Iterator[None]:
    """Raise ``SystemExit`` where a signal arrives; after the body, ignore them all.

    However the body ends, it ends so if a signal came. After it the exit code is
    settled, and what Python still does to end is not to be disturbed.
    """
    numbers, tell = stop_signals(), sys.unraisablehook
    for number in numbers:
        signal.signal(number, _exit)
    sys.unraisablehook = lambda lost: None if _arrived else tell(lost)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        sys.unraisablehook = tell
        was_interrupted = is_interrupted()
        _arrived.clear()
        if was_interrupted:
            raise SystemExit(EXIT_INTERRUPTED) from None


def is_interrupted() -> bool:
    """Tell whether a signal has asked this program to stop."""
    return bool(_arrived)


def _exit(number: int, _: object) -> None:
    _arrived.append(number)
    raise SystemExit(EXIT_INTERRUPTED)


async def unless_interrupted(
    work: Callable[[], Awaitable[T]],
    clock: Callable[[], float] = time.monotonic,
    abort: Callable[[], None] = lambda: None,
) -> T | None:
    """Run `work` on an asyncio loop in the main thread; None if a signal has ended it.

    It is not begun if one came before.

    A signal cancels `work` where it waits, so that whatever it started is cleaned up
    whole. Those that follow at once are the same wish: a key that was hit twice, a
    terminal and a supervisor. One that comes later cancels every task of the loop,
    whatever shields it: what is waited for may be a provider that does not end. That
    may heed nothing, or block the loop; what then, is for `abort` to say.

    Args:
        work: what to do.
        clock: tells the time, in seconds.
        abort: called in another thread when such a later signal comes, once.
    """
    # Not at the top: signals are handled before anything that takes time is loaded.
    import asyncio

    import anyio

    loop = asyncio.get_running_loop()
    result, has_to_end, is_abort, since = None, False, False, clock()
    with anyio.CancelScope() as scope:

        def interrupt(*_: object) -> None:
            nonlocal has_to_end, is_abort, since
            if not has_to_end:
                has_to_end, since = True, clock()
                loop.call_soon_threadsafe(scope.cancel)
            elif clock() - since > SAME_WISH:
                loop.call_soon_threadsafe(_cancel_all, loop)
                if not is_abort:
                    is_abort = True
                    threading.Thread(target=abort, daemon=True).start()

        before = {n: signal.signal(n, interrupt) for n in stop_signals()}
        try:
            has_to_end = has_to_end or is_interrupted()
            if not has_to_end:
                result = await work()
        except asyncio.CancelledError:
            if not has_to_end:
                raise
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if has_to_end else handler)
    return None if has_to_end else result


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    import asyncio

    for task in asyncio.all_tasks(loop):
        task.cancel()


def end_anyway(at_last: Callable[[], None] = lambda: None) -> None:
    """End this process, if it does not end by itself; for programs, not for libraries.

    It ends two seconds after nothing is left of its runs.

    Args:
        at_last: called before.
    """
    from nestling.driver.hub_thread_io import abort_all
    from nestling.driver.template_pool_io import close_all

    abort_all(RUNS_END)
    threading.main_thread().join(PATIENCE)
    close_all()
    at_last()
    os._exit(EXIT_INTERRUPTED)
