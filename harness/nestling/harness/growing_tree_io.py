"""The tree of a replay while it grows, on a terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from nestling.driver.instructions import Notice
from nestling.harness.drawn_tree import drawn_labels
from nestling.harness.replay_report import LABEL_WIDTH, cut


class GrowingTree:
    """Draws what each session does, one line a session, where there is a terminal.

    ``watch`` may be called from any thread. A terminal that goes away ends the
    drawing and nothing else.
    """

    def __init__(self, *, is_wanted: bool) -> None:
        self._live: Live | None = None
        self._lines: dict[str, str] = {}
        # Not what rich takes for a terminal: variables can talk it into a pipe.
        if is_wanted and sys.stderr is not None and sys.stderr.isatty():
            self._live = Live(
                console=Console(stderr=True),
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
        if self._live is not None:
            with suppress(OSError):
                self._live.__exit__(kind, error, trace)

    def watch(self, notice: Notice) -> None:
        """Take in what a session does now."""
        self._lines[notice.path] = notice.text
        if self._live is not None:
            with suppress(OSError):
                self._live.update(Text(self._drawn()), refresh=True)

    def _drawn(self) -> str:
        return "\n".join(
            f"{label:<{LABEL_WIDTH}} {cut(self._lines[path])}"
            for path, label in drawn_labels(self._lines).items()
        )
