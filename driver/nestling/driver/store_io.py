"""The writer: one thread that makes events durable, so that the hub never waits.

Everything that is waiting is written together, one sync a file; each session's file
is written in the order in which its batches were handed over. A few files are open at
a time, however many sessions there are.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nestling.driver.instructions import Durable, NotDurable, Persist
from nestling.session.errors import LaunchError, StoreError
from nestling.session.jsonl_io import JsonlAppender
from nestling.session.writing import encode_header, encode_rows

Tell = Callable[[Durable | NotDurable], None]

OPEN_FILES: Final = 4
"""So many files are kept open between two writes: those written last."""


class Writer:
    """Writes the logs of one run into a directory."""

    def __init__(self, directory: Path, tell: Tell) -> None:
        """Start the thread.

        Args:
            directory: where the files go.
            tell: called in the writer's thread with each outcome.

        Raises:
            LaunchError: if there is no room for the thread.
        """
        self._directory = directory
        self._tell = tell
        self._files: dict[int, JsonlAppender] = {}  # the one written last is the last
        self._failed: set[int] = set()
        self._queue: queue.SimpleQueue[Persist | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="nestling-writer")
        try:
            self._thread.start()
        except RuntimeError as error:
            raise LaunchError(f"no room for the writer's thread: {error}") from None

    def write(self, batch: Persist) -> None:
        """Hand over a batch; what became of it is told later."""
        self._queue.put(batch)

    def close(self) -> None:
        """Write what is waiting, then end the thread and close the files."""
        self._queue.put(None)
        self._thread.join()
        for file in self._files.values():
            file.close()

    def _run(self) -> None:
        is_open = True
        while is_open:
            waiting, is_open = self._take_all()
            for sid, batches in waiting.items():
                self._tell(self._write_session(sid, batches))

    def _take_all(self) -> tuple[dict[int, list[Persist]], bool]:
        """Wait for a batch, and take whatever else has come meanwhile."""
        waiting: dict[int, list[Persist]] = {}
        batch = self._queue.get()
        while batch is not None:
            waiting.setdefault(batch.sid, []).append(batch)
            try:
                batch = self._queue.get_nowait()
            except queue.Empty:
                return waiting, True
        return waiting, False

    def _write_session(self, sid: int, batches: list[Persist]) -> Durable | NotDurable:
        if sid in self._failed:
            return NotDurable(sid, "an earlier write of this session failed")
        try:
            rows = b"".join(_rows(batch) for batch in batches)
            self._file_of(sid).append(rows)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not on disk
            self._failed.add(sid)
            is_expected = isinstance(error, StoreError)
            return NotDurable(sid, str(error) if is_expected else repr(error))
        return Durable(sid, batches[-1].length)

    def _file_of(self, sid: int) -> JsonlAppender:
        file = self._files.pop(sid, None)
        for other in list(self._files.values())[: 1 - OPEN_FILES]:
            other.close()
        if file is None:
            file = JsonlAppender(self._directory / f"{sid:04}.jsonl")
        self._files[sid] = file
        return file


def _rows(batch: Persist) -> bytes:
    header = b"" if batch.header is None else encode_header(batch.header)
    return header + encode_rows(batch.events)
