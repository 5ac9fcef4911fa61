"""The tree of a replay while it grows, on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from nestling.driver.instructions import Notice
from nestling.harness.drawn_tree import drawn_labels
from nestling.harness.replay_report import LABEL_WIDTH, cut

PAUSE: Final = 0.05
"""Seconds between two drawings: a large tree takes longer to draw than to change."""


def _later(seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


class GrowingTree:
    """Draws what each session does, one line a session, where there is a terminal.

    ``watch`` may be called from any thread. A terminal that goes away ends the
    drawing and nothing else.
    """

    def __init__(
        self,
        *,
        is_wanted: bool,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] = _later,
    ) -> None:
        """Prepare to draw.

        Args:
            is_wanted: whether to draw at all.
            clock: tells the time, in seconds.
            later: calls something after so many seconds, from any thread.
        """
        self._live: Live | None = None
        self._lines: dict[str, str] = {}
        self._clock = clock
        self._later = later
        self._lock = threading.RLock()
        self._next = clock()
        self._is_due = False
        # Not what rich takes for a terminal: variables can talk it into a pipe.
        if is_wanted and sys.stderr is not None and sys.stderr.isatty():
            self._live = Live(
                console=Console(stderr=True),
                get_renderable=lambda: Text(self._drawn()),
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            with suppress(OSError):
                self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Draw nothing any more, and leave the terminal as it was; from any thread."""
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                with suppress(OSError):
                    live.stop()

    def watch(self, notice: Notice) -> None:
        """Take in what a session does now; it is drawn now or in a moment."""
        with self._lock:
            self._lines[notice.path] = notice.text
            if self._live is None or self._is_due:
                return
            wait = self._next - self._clock()
            if wait <= 0:
                self._draw()
            else:
                self._is_due = True
                self._later(wait, self._draw)

    def _draw(self) -> None:
        with self._lock:
            self._is_due, self._next = False, self._clock() + PAUSE
            if self._live is not None:
                with suppress(OSError):
                    self._live.refresh()

    def _drawn(self) -> str:
        return "\n".join(
            f"{label:<{LABEL_WIDTH}} {cut(self._lines[path])}"
            for path, label in drawn_labels(self._lines).items()
        )
