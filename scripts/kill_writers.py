"""Kills writers of a store at any moment, and wants all that they were told is durable.

Usage: ``python scripts/kill_writers.py --store jsonl|sqlite [--count N] [--seed S]``.

A process writes to a store of several sessions: it creates some, resumes others, which
repairs them, and appends random batches to one or to many at once. Of each it tells
before it begins and once the store has said that it is durable. It is killed (SIGKILL)
at a random moment: after so many bytes or notices, or by a timer. Now and then a process
that only repairs follows, and is killed, too. Then the store is read and loaded here,
and writing goes on in it by the next process, which takes the leases over.

What is stored of a session must be what was said to be durable, and behind it at most a
beginning of what was under way. Prints one line of counts; exit code 1 if an event was
lost or invented, or a session could not be loaded, or was another the second time.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from nestling.session.errors import StoreError
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject, dumps, loads
from nestling.session.reading import events_from_row
from nestling.session.repair import closers
from nestling.session.store_io import Batch, SessionStore, open_store
from support.random_logs import RandomLog
from support.stores import exact, header

SESSIONS: Final = 5
"""So many sessions a store has, at most."""

LIVES: Final = 20
"""So many writers die over one store, on average."""

LONGEST: Final = 300
"""So many operations a writer does that nobody kills."""

BAD: Final = ("lost", "invented", "failed loads", "second loads", "leases", "errors")


# --- the process that is killed ------------------------------------------------------


class Teller:
    """Says over a pipe what is begun and what is done."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def begins(self, session_id: str, events: Sequence[Event]) -> None:
        """Tell that these are about to be appended; none of them is stored yet."""
        rows = [event.row() for event in events]
        self._tell({"begins": session_id, "rows": rows})

    def done(self, session_id: str) -> None:
        """Tell that what was begun last in that session is durable."""
        self._tell({"done": session_id})

    def repairs(self, session_id: str) -> None:
        """Tell that a session is about to be repaired."""
        self._tell({"repairs": session_id})

    def error(self, text: str) -> None:
        """Tell what should not have happened."""
        self._tell({"error": text})

    def _tell(self, value: JsonObject) -> None:
        data = dumps(value) + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]


class Writer:
    """Works on the sessions of a store, by chance."""

    def __init__(
        self, store: SessionStore, tell: Teller, chance: random.Random
    ) -> None:
        self._store = store
        self._tell = tell
        self._chance = chance
        self._logs: dict[str, RandomLog] = {}

    def work(self) -> None:
        """Do one operation after another."""
        for _ in range(LONGEST):
            name = f"s{self._chance.randrange(SESSIONS)}"
            if name not in self._logs:
                self._take_up(name)
            elif self._chance.random() < 0.1:
                self._store.release(name)
                del self._logs[name]
            elif self._chance.random() < 0.3:
                self._append_many()
            else:
                batch = self._batch(self._logs[name])
                self._tell.begins(name, batch)
                self._store.append(name, batch)
                self._tell.done(name)

    def _take_up(self, name: str) -> None:
        log = RandomLog(self._chance)
        if any(listed.id == name for listed in self._store.sessions()):
            self._tell.repairs(name)
            log.extend(self._store.resume(name).events)
            self._tell.done(name)
        else:
            self._store.create(header(name, cwd="/w"))
        self._logs[name] = log

    def _append_many(self) -> None:
        chosen = [name for name in self._logs if self._chance.random() < 0.6]
        batches = [Batch(name, self._batch(self._logs[name])) for name in chosen]
        for batch in batches:
            self._tell.begins(batch.session_id, batch.events)
        for batch, problem in zip(
            batches, self._store.append_logged(batches), strict=True
        ):
            if problem is not None:
                raise problem
            self._tell.done(batch.session_id)

    def _batch(self, log: RandomLog) -> list[Event]:
        moves = self._chance.choice((1, 1, 2, 4, 12, 30))
        while not (events := log.grow(moves)):
            pass
        return events


def _repair(store: SessionStore, tell: Teller) -> None:
    for listed in store.sessions():
        tell.repairs(listed.id)
        store.load(listed.id)
        tell.done(listed.id)


Work = Callable[[SessionStore, Teller], None]


def _forked(address: str, work: Work) -> tuple[int, int]:
    """Start a process that works on a store; return its id and what it tells through."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        os.close(reading)
        tell = Teller(writing)
        try:
            with open_store(address) as store:
                work(store, tell)
            code = 0
        except Exception:  # noqa: BLE001 - whatever it is, the parent is told
            tell.error(traceback.format_exc())
    finally:
        os._exit(code)


# --- the one that kills it -------------------------------------------------------------


class Moment(NamedTuple):
    """When a process is killed; what is None does not count.

    Attributes:
        size: so many bytes were read from it.
        notices: it has said so often that something is durable.
        seconds: so long after it was started.
    """

    size: int | None = None
    notices: int | None = None
    seconds: float | None = None


def _moment(chance: random.Random) -> Moment:
    kind = chance.randrange(3)
    if kind == 0:
        return Moment(size=int(10 ** chance.uniform(0, 5)))
    if kind == 1:
        return Moment(notices=chance.randrange(25))
    return Moment(seconds=10 ** chance.uniform(-4, -1))


def _killed(pid: int, fd: int, moment: Moment) -> bytes:
    """Kill a process at its moment, reap it, and return all that it has told."""
    told = bytearray()
    deadline = None if moment.seconds is None else time.monotonic() + moment.seconds
    is_over = False
    while not is_over:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([fd], [], [], left)[0]:
            break
        # A few bytes at a time, so that the pipe is not empty when it is killed.
        piece = os.read(fd, 4096)
        told += piece
        is_over = not piece or _has_come(moment, told)
    os.kill(pid, signal.SIGKILL)  # it is our child, and nobody has reaped it yet
    while piece := os.read(fd, 65536):
        told += piece
    os.close(fd)
    os.waitpid(pid, 0)
    return bytes(told)


def _has_come(moment: Moment, told: bytearray) -> bool:
    if moment.size is not None:
        return len(told) >= moment.size
    return moment.notices is not None and told.count(b'{"done"') >= moment.notices


class Known:
    """What is known of one session: what is durable, and what was under way."""

    def __init__(self) -> None:
        self.durable: list[Event] = []
        self.under_way: list[Event] = []
        self.is_repaired = False

    def begins(self, rows: Sequence[JsonObject]) -> None:
        """Events were about to be appended."""
        self.under_way = [_event(row) for row in rows]

    def repairs(self) -> None:
        """What is stored was about to be closed."""
        self.under_way = closers(self.durable)

    def done(self) -> None:
        """What was under way is durable."""
        self.durable += self.under_way
        self.under_way = []


def _event(row: JsonObject) -> Event:
    (event,) = events_from_row(row, row["seq"])
    return event


class Checks:
    """What is known of a store, and what was found in it."""

    def __init__(self, address: str, is_atomic: bool) -> None:
        self.address = address
        self.counts: Counter[str] = Counter()
        self._is_atomic = is_atomic
        self._known: dict[str, Known] = {}

    def hear(self, told: bytes) -> None:
        """Take in what a process has told; its last line may be cut."""
        for line in told.split(b"\n")[:-1]:
            notice = loads(line, 3)
            kind, name = next(iter(notice.items()))
            if kind == "error":
                self._bad("errors", name)
            else:
                known = self._known.setdefault(name, Known())
                self._hear(known, kind, notice.get("rows", ()))

    def _hear(self, known: Known, kind: str, rows: Sequence[JsonObject]) -> None:
        if kind == "begins":
            known.begins(rows)
        elif kind == "repairs":
            known.repairs()
        else:
            self.counts["durable batches"] += 1
            known.done()

    def look(self, *, repairs: bool) -> None:
        """Read every session; know from now on what was found.

        Args:
            repairs: load each of them, too, twice.
        """
        with open_store(self.address) as store:
            listed = {found.id for found in store.sessions() if not found.problem}
            if len(listed) != len(store.sessions()):
                self.counts["failed loads"] += 1
            for name in sorted(listed - self._known.keys()):
                self._bad("invented", f"the whole session {name}")
            for name, known in self._known.items():
                if name in listed:
                    self._check(store, name, known, repairs)
                elif known.durable:
                    self._bad("lost", f"the whole session {name}")

    def _check(
        self, store: SessionStore, name: str, known: Known, repairs: bool
    ) -> None:
        if store.is_live(name):
            self._bad("leases", f"{name} is live, and its writer is dead")
        try:
            found = store.read_from(name, 0)
            self._compare(name, known, found)
            known.durable, known.under_way = found, []
            if repairs:
                self._load(store, name, known)
        except StoreError as error:
            self._bad("failed loads", f"{name}: {error}")

    def _load(self, store: SessionStore, name: str, known: Known) -> None:
        expected = [*known.durable, *closers(known.durable)]
        first, second = store.load(name), store.load(name)
        self.counts["loads"] += 1
        self.counts["tails cut"] += bool(first.tail)
        self.counts["turns closed"] += bool(first.closers)
        if exact(first.events) != exact(expected):
            self._bad("invented", f"{name} was not closed as its events say")
        is_same = exact(second.events) == exact(first.events)
        if not is_same or second.revision != first.revision or second.closers:
            self._bad("second loads", f"{name} was another the second time")
        known.durable = first.events

    def _compare(self, name: str, known: Known, found: list[Event]) -> None:
        durable, stored = exact(known.durable), exact(found)
        if stored[: len(durable)] != durable:
            self._bad("lost", f"{name} has {len(stored)} events of {len(durable)}")
            return
        more = stored[len(durable) :]
        self.counts["under way"] += bool(known.under_way)
        self.counts["under way and stored"] += bool(more)
        begun = exact(known.under_way)
        is_atomic = self._is_atomic or not durable  # a session appears with its batch
        if begun[: len(more)] != more:
            self._bad("invented", f"{name} has {len(more)} events that nobody appended")
        elif is_atomic and len(more) not in (0, len(begun)):
            self._bad("invented", f"{name} has {len(more)} of {len(begun)} of a batch")

    def _bad(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        print(f"{self.address}: {kind}: {text}", file=sys.stderr)


def _lives(seed: int, count: int) -> Iterator[tuple[random.Random, bool]]:
    """Yield the chance of each life, and whether it begins in a new store."""
    chance = random.Random(seed)
    for number in range(count):
        yield random.Random(f"{seed} {number}"), chance.random() < 1 / LIVES


def run(scheme: str, count: int, seed: int, folder: Path) -> Counter[str]:
    """Kill so many writers, and return the counts."""
    counts: Counter[str] = Counter()
    checks: Checks | None = None
    path = folder
    for number, (chance, is_new) in enumerate(_lives(seed, count)):
        if checks is None or is_new:
            path = folder / f"store-{number}"
            checks = Checks(f"{scheme}:{path}", scheme == "sqlite")
        _life(checks, chance)
        counts += checks.counts
        checks.counts.clear()
        counts["kills"] += 1
    return counts


def _life(checks: Checks, chance: random.Random) -> None:
    def write(store: SessionStore, tell: Teller) -> None:
        Writer(store, tell, chance).work()

    moment = _moment(chance)
    checks.hear(_killed(*_forked(checks.address, write), moment))
    if chance.random() < 0.3:
        checks.look(repairs=False)
        seconds = 10 ** chance.uniform(-4, -1.5)
        repairer = _forked(checks.address, _repair)
        checks.hear(_killed(*repairer, Moment(seconds=seconds)))
        checks.counts["kills of repairs"] += 1
    checks.look(repairs=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", choices=("jsonl", "sqlite"), required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args(arguments)
    gc.freeze()
    with tempfile.TemporaryDirectory(prefix="nestling-kill-") as folder:
        counts = run(options.store, options.count, options.seed, Path(folder))
    told: dict[str, Any] = {kind: counts[kind] for kind in BAD} | counts
    print(
        f"store={options.store} seed={options.seed} "
        + " ".join(f"{kind.replace(' ', '-')}={n}" for kind, n in told.items())
    )
    return 1 if any(counts[kind] for kind in BAD) else 0


if __name__ == "__main__":
    sys.exit(main())
