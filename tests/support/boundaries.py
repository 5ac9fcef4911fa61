"""Kills a writer at each boundary of what it does, and looks at what is stored.

``python -m support.boundaries SCHEME FOLDER``: a boundary is a call of the system that
changes something (in a store of files) or a statement (in a database). Each is one
death: right before it, or after half of a write. One process is warm; it forks a
writer for each death, and has no store open meanwhile. Writes one line for each kind of
work, ``WORK ALL LESS``: how many deaths left all of it stored, and how many left less.
Raises at what must not be.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from nestling.session.event import Event
from nestling.session.repair import closers
from nestling.session.store_io import Batch, SessionStore
from support.damage import tear
from support.session_logs import LogWriter, delta
from support.stores import Place, exact, header

CALLS: Final = (
    "write", "fsync", "fdatasync", "open", "close", "link", "rename", "replace",
    "unlink", "mkdir", "ftruncate", "truncate",
)  # fmt: skip

LOOKING: Final = ("PRAGMA", "SELECT", "ROLLBACK", "BEGIN DEFERRED", "CREATE")

_write: Final = os.write


class Work(NamedTuple):
    """What a writer does, and what is stored of each session before and after."""

    do: Callable[[SessionStore], None]
    before: dict[str, list[Event]]
    after: dict[str, list[Event]]
    torn: Event | None = None


def works() -> dict[str, Work]:
    """Everything that writes, through the store's own face."""
    log = LogWriter()
    log.answered_turn("q", "a")
    done = list(log.events)
    log.start_turn()
    log.start_step()
    log.user("x" * 5000)
    log.chunks(*[delta(str(number)) for number in range(3)])
    whole = list(log.events)
    closed = [*whole, *closers(whole)]
    both = {"s": done, "t": done}

    def create(store: SessionStore) -> None:
        store.create(header())
        store.append("s", whole)

    def append(store: SessionStore) -> None:
        store.append("s", whole[8:])

    def append_many(store: SessionStore) -> None:
        for name in both:
            store.resume(name)
        batches = [Batch(name, whole[8:]) for name in both]
        assert store.append_logged(batches) == [None, None]

    def load(store: SessionStore) -> None:
        store.load("s")

    return {
        "create": Work(create, {}, {"s": whole}),
        "append": Work(append, {"s": done}, {"s": whole}),
        "append-many": Work(append_many, both, {"s": whole, "t": whole}),
        "repair": Work(load, {"s": whole}, {"s": closed}),
        "cut": Work(load, {"s": whole[:-1]}, {"s": []}, whole[-1]),
    }


class Deaths:
    """Counts boundaries in this process, and ends it at one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0

    def statement(self, text: str) -> None:
        """Come to a statement; those that only look are no boundaries."""
        # CREATE is also what SQLite says to itself when it reads a schema.
        if not text.startswith(LOOKING):
            self.boundary()

    def boundary(self) -> None:
        """Come to a boundary."""
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, scheme: str) -> None:
        """See to it that every boundary from now on is one."""
        if scheme == "sqlite":
            connect = sqlite3.connect

            def watched(*args: Any, **more: Any) -> sqlite3.Connection:
                connection: sqlite3.Connection = connect(*args, **more)
                connection.set_trace_callback(self.statement)
                return connection

            sqlite3.connect = watched  # type: ignore[assignment]
            return
        for name in CALLS:
            setattr(os, name, self._watched(getattr(os, name)))
        os.write = self._half_written

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **more: Any) -> Any:
            self.boundary()
            return call(*args, **more)

        return watched

    def _half_written(self, fd: int, data: Any, /) -> int:
        self.boundary()
        half = len(data) // 2
        if half:
            _write(fd, memoryview(data)[:half])
        self.boundary()
        return half + _write(fd, memoryview(data)[half:])


def forked(place: Place, work: Work, at: int) -> tuple[int, bool]:
    """Do the work in a process that dies at a boundary.

    Returns:
        How many boundaries there were, 0 if it died; and whether it had been told that
        all is durable.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        deaths = Deaths(at)
        try:
            deaths.watch(place.scheme)
            with place.open() as store:
                work.do(store)
                deaths.boundary()  # all is durable, and nobody has been told
                _write(writing, b"durable\n")
            _write(writing, b"%d\n" % deaths.count)
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb") as told:
        lines = told.read().split()
    os.waitpid(pid, 0)
    return (int(lines[1]) if len(lines) > 1 else 0), bool(lines)


def prepared(scheme: str, folder: Path, work: Work) -> Place:
    """A store as it is before the work."""
    folder.mkdir()
    place = Place(scheme, folder)
    with place.open() as store:
        for name, events in work.before.items():
            store.create(header(name))
            store.append(name, events)
    if work.torn is not None:
        tear(place, work.torn)
    return place


def look(place: Place, work: Work, is_durable: bool) -> bool:
    """Check what is stored after a death; tell whether all of the work is."""
    found = {}
    with place.open() as store:
        for listed in store.sessions():
            name = listed.id
            stored = store.read_from(name, 0)
            found[name] = stored
            assert not store.is_live(name)
            loaded = store.load(name)
            assert exact(loaded.events) == exact([*stored, *closers(stored)])
            assert exact(store.load(name).events) == exact(loaded.events)
            more = Event(len(loaded.events), "session/title", 1, {})
            store.append(name, [more])
    wanted = work.after
    if work.torn is not None:
        wanted = {"s": [*work.before["s"], *closers(work.before["s"])]}
    for name, events in wanted.items():
        rows, whole = exact(found.get(name, [])), exact(events)
        before = exact(work.before.get(name, []))
        assert rows[: len(before)] == before, "what was durable is lost"
        assert rows == whole[: len(rows)], "what nobody wrote is stored"
        assert place.scheme == "jsonl" or len(rows) in (len(before), len(whole))
        assert not is_durable or rows == whole, "it said that it was durable"
    return all(len(found.get(name, ())) == len(e) for name, e in wanted.items())


def main(scheme: str, folder: str) -> None:
    """Die everywhere."""
    for name, work in works().items():
        whole = prepared(scheme, Path(folder) / name, work)
        count, is_durable = forked(whole, work, 0)
        assert is_durable
        assert look(whole, work, True)
        outcomes = Counter[str]()
        for at in range(1, count + 1):
            place = prepared(scheme, Path(folder) / f"{name}-{at}", work)
            survived, is_durable = forked(place, work, at)
            is_whole = look(place, work, is_durable)
            assert not survived, f"{name}: boundary {at} of {count} did not come"
            outcomes["all" if is_whole else "less"] += 1
        _write(1, f"{name} {outcomes['all']} {outcomes['less']}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
