"""The tree of a replay while it grows, on a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from nestling.driver.instructions import Notice
from nestling.harness.replay_report import cut, tree_label
from nestling.session.spawn_path import sort_key


class GrowingTree:
    """Draws what each session does, one line a session, where there is a terminal.

    ``watch`` may be called from any thread.
    """

    def __init__(self, *, is_wanted: bool) -> None:
        console = Console(stderr=True)
        self._live: Live | None = None
        self._lines: dict[str, str] = {}
        if is_wanted and console.is_terminal:
            self._live = Live(console=console, transient=True, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def watch(self, notice: Notice) -> None:
        """Take in what a session does now."""
        self._lines[notice.path] = notice.text
        if self._live is not None:
            self._live.update(Text(self._drawn()), refresh=True)

    def _drawn(self) -> str:
        paths = sorted(self._lines, key=sort_key)
        return "\n".join(
            f"{tree_label(path):<24} {cut(self._lines[path])}" for path in paths
        )
