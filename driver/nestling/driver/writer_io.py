"""The writer: one thread that makes events durable, so that no hub waits for a disk.

One for a driver, whatever runs at the same time: all that is due is handed to the store
together, which commits it with as few syncs as it can. Each session's events are
written in the order in which they were handed over.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeAlias

from nestling.driver.instructions import Durable, NotDurable, Persist
from nestling.driver.write_behind import WINDOW, WriteBehind
from nestling.session.errors import LaunchError, NestlingError, StoreError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.store_io import Batch, SessionStore

Tell = Callable[[Durable | NotDurable], None]

_Key: TypeAlias = "tuple[RunWriter, int]"


class _Flush(NamedTuple):
    """What waits for a session is due now."""

    sid: int


class _Release(NamedTuple):
    """Nothing more comes of a session."""

    sid: int


class _Leave(NamedTuple):
    """Nothing more comes of a run."""

    done: threading.Event


_Order: TypeAlias = Persist | _Flush | _Release | _Leave

_CLOSE: Final = None

_LONG_AGO: Final = -1.0
"""A time before every time of the clock: what was due then is due whatever the time."""


class RunWriter:
    """One run's way to the writer; its methods return at once, but for ``close``."""

    def __init__(
        self,
        orders: queue.SimpleQueue[_Told | None],
        tell: Tell,
        is_up: Callable[[], bool],
    ) -> None:
        self.tell = tell
        self.ids: dict[int, str] = {}  # the writer's: which sessions it writes
        self.failed: set[int] = set()  # the writer's: which of them it has told of
        self._orders = orders
        self._is_up = is_up

    def write(self, batch: Persist) -> None:
        """Hand over a batch; what became of it is told later."""
        self._order(batch)

    def flush(self, sid: int) -> None:
        """Have what was handed over of a session written now."""
        self._order(_Flush(sid))

    def release(self, sid: int) -> None:
        """Hand over that nothing more comes of a session: others may have it."""
        self._order(_Release(sid))

    def close(self) -> None:
        """Wait until all that was handed over is written, or has failed."""
        done = threading.Event()
        self._order(_Leave(done))
        while not done.wait(1.0) and self._is_up():
            pass

    def _order(self, order: _Order) -> None:
        self._orders.put(_Told(self, order, time.monotonic()))


class _Told(NamedTuple):
    """What the writer was told, by which run and when."""

    run: RunWriter
    order: _Order
    now: float


class StoreWriter:
    """Writes the sessions of any number of runs into one store; a context manager."""

    def __init__(self, store: SessionStore, window: float = WINDOW) -> None:
        """Prepare to write.

        Args:
            store: where sessions are kept; it stays the caller's to close.
            window: seconds that events may wait to be written together.
        """
        self.store = store
        self._orders: queue.SimpleQueue[_Told | None] = queue.SimpleQueue()
        self._waiting: WriteBehind[_Key, Persist] = WriteBehind(
            window, is_shared=store.shares_commits
        )
        # Whoever leaves a driver waits for it; a program that ends without that, after
        # a third Ctrl-C for instance, is not held up by it.
        self._thread = threading.Thread(
            target=self._work, name="nestling-writer", daemon=True
        )

    def __enter__(self) -> Self:
        """Start the thread.

        Raises:
            LaunchError: if there is no room for it.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            raise LaunchError(f"no room for the writer's thread: {error}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write what waits, and end the thread."""
        self._orders.put(_CLOSE)
        self._thread.join()

    def run(self, tell: Tell) -> RunWriter:
        """Return a run's way to this writer.

        Args:
            tell: called in the writer's thread with each outcome.
        """
        return RunWriter(self._orders, tell, self._thread.is_alive)

    # --- in the thread -----------------------------------------------------------

    def _work(self) -> None:
        while self._take_orders():
            self._write_due(time.monotonic())
        self._waiting.flush_all(_LONG_AGO)
        self._write_due(_LONG_AGO)

    def _take_orders(self) -> bool:
        """Wait until something is to be done, and take whatever else was told."""
        due = self._waiting.next_due()
        timeout = None if due is None else max(0.0, due - time.monotonic())
        try:
            told = self._orders.get(timeout=timeout)
            while told is not _CLOSE:
                self._obey(told)
                told = self._orders.get_nowait()
        except queue.Empty:
            return True
        return False

    def _obey(self, told: _Told) -> None:
        run, order, now = told
        match order:
            case Persist():
                self._persist(run, order, now)
            case _Flush():
                self._waiting.flush((run, order.sid), now)
            case _Release():
                self._release(run, order.sid)
            case _Leave():
                for sid in list(run.ids):
                    self._release(run, sid)
                order.done.set()

    def _persist(self, run: RunWriter, batch: Persist, now: float) -> None:
        if batch.header is not None and not self._create(run, batch, batch.header):
            return
        if batch.header is not None or not batch.events:
            run.ids[batch.sid] = batch.session_id
        if batch.sid not in run.ids:
            return  # it was refused, and that was told
        if batch.events:
            self._waiting.add((run, batch.sid), batch, now)
        else:
            run.tell(Durable(batch.sid, batch.length))

    def _create(self, run: RunWriter, batch: Persist, header: Header) -> bool:
        """Reserve a new session at once, and not when its first events are written.

        Somebody else may hold its id; no call is to be made before that is known.
        """
        try:
            self.store.create(header)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is not stored
            self._failed(run, batch.sid, error)
            return False
        return True

    def _release(self, run: RunWriter, sid: int) -> None:
        """Write what waits of a session, then let others have it."""
        key = run, sid
        self._waiting.flush(key, _LONG_AGO)
        self._write_due(_LONG_AGO)
        self._waiting.drop(key)
        session_id = run.ids.pop(sid, None)
        if session_id is not None:
            # What fails here costs nothing but the lease, which ends with this process;
            # and nothing may end the thread that all runs wait for.
            with suppress(BaseException):
                self.store.release(session_id)

    def _write_due(self, now: float) -> None:
        taken = self._waiting.take(now)
        if not taken:
            return
        batches = [_joined(items) for items in taken.values()]
        problems: list[BaseException | None]
        try:
            problems = [*self.store.append_logged(batches)]
            if len(problems) != len(batches):
                raise StoreError(f"{self.store.name} did not tell what it has stored")
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is not on disk
            problems = [error] * len(batches)
        for (key, items), problem in zip(taken.items(), problems, strict=True):
            run, sid = key
            if problem is None:
                run.failed.discard(sid)
                run.tell(Durable(sid, items[-1].length))
            else:
                self._waiting.put_back(key, items)
                self._failed(run, sid, problem)

    def _failed(self, run: RunWriter, sid: int, error: BaseException) -> None:
        """Tell that a session's events are not durable, once."""
        if sid in run.failed:
            return
        run.failed.add(sid)
        is_expected = isinstance(error, NestlingError)
        run.tell(NotDurable(sid, str(error) if is_expected else repr(error)))


def _joined(batches: list[Persist]) -> Batch:
    events: list[Event] = [event for batch in batches for event in batch.events]
    return Batch(batches[0].session_id, events)
