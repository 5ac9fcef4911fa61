"""How fast sessions are stored and read, and how much room they take.

Usage: ``python scripts/bench_store.py [--rounds N] [--quick] [--json] [--dir DIR]``.

One run, all contenders in turn, round by round, so that they meet the same machine and
the same disk. ``--dir`` says where: a store in memory (tmpfs) syncs nothing. What is
stored looks like a model's stream (``bench_store_events``). Compared with it:

- an append through the JSON-lines store: one ``write`` and one ``fdatasync`` of the same
  bytes, encoded before, to one open file a session;
- an append through the SQLite store: the same rows, made before, into the same table by
  one ``executemany`` in one transaction (WAL, synchronous FULL);
- a new session: a file in a new directory, all of it durable; or one row and the events;
- a load: ``orjson`` alone over the same lines; ``SELECT`` alone of the same rows;
- a list: ``orjson`` over each file's first line; ``SELECT`` of all sessions.

Ratios are medians of ours over medians of theirs, in seconds: 2 is twice as slow.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from bench_store_events import events
from bench_store_raw import (
    RawFiles,
    RawRows,
    decoded,
    first_lines,
    publish_raw,
    selected,
)

from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsonl_backend_io import JsonlBackend
from nestling.session.store_io import Batch, SessionStore, open_store
from nestling.session.writing import encode_header, encode_rows

NOW: Final = 1_700_000_000_000
STREAM_BATCH: Final = 64
"""What a fast model streams within the driver's window of write-behind, roughly."""

STORES: Final = ("jsonl", "sqlite")

Action = Callable[[int], object]
Times = dict[str, list[float]]
Row = dict[str, Any]


class Plan(NamedTuple):
    """How much is measured."""

    rounds: int
    sessions: tuple[int, ...]
    batches: tuple[int, ...]
    loaded: int
    listed: int


FULL: Final = Plan(15, (1, 64), (1, 64, 256), 100_000, 1_000)
QUICK: Final = Plan(1, (1, 3), (1, 8), 500, 5)


class Appender(Protocol):
    """Something that appends one slice after the other to all its sessions."""

    def append(self, number: int) -> None:
        """Append the slice of that number to every session."""
        ...

    def close(self) -> None:
        """Free what is open."""
        ...


class Logged:
    """A store as the driver uses it: what logs took, all sessions together."""

    def __init__(
        self, address: str, ids: Sequence[str], slices: Sequence[Sequence[Event]]
    ) -> None:
        """Create the sessions."""
        self._store = open_store(address)
        self._ids, self._slices = ids, slices
        for name in ids:
            self._store.create(Header(name, NOW, {}))

    def append(self, number: int) -> None:
        """Append the slice of that number to every session."""
        batches = [Batch(name, self._slices[number]) for name in self._ids]
        must_succeed(self._store, batches)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


class Checked(Logged):
    """A store as anybody may use it: everything is checked."""

    def append(self, number: int) -> None:
        """Append the slice of that number to every session."""
        for name in self._ids:
            self._store.append(name, self._slices[number])


def must_succeed(store: SessionStore, batches: Sequence[Batch]) -> None:
    """Append, and raise what went wrong."""
    for problem in store.append_logged(batches):
        if problem is not None:
            raise problem


# --- the race ------------------------------------------------------------------


def race(contenders: dict[str, Action], rounds: int) -> Times:
    """Let all contenders do the same in every round; return their seconds.

    The first round of each warms up. Who begins changes: what one leaves to the disk
    may hold up the next.
    """
    times: Times = {name: [] for name in contenders}
    # What the script itself holds is not for the collector to look through meanwhile,
    # and nobody pays for what another has left behind.
    gc.collect()
    gc.freeze()
    names = list(contenders)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            gc.collect()
            begun = time.perf_counter()
            kept = contenders[name](number)
            seconds = time.perf_counter() - begun
            del kept  # how long it takes to free what was read is not measured
            if number:
                times[name].append(seconds)
    gc.unfreeze()
    return times


def row(what: str, store: str, ours: list[float], theirs: list[float]) -> Row:
    """Return one line of the table."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {
        "what": what,
        "store": store,
        "ms": round(mine * 1000, 3),
        "raw_ms": round(other * 1000, 3),
        "ratio": round(mine / other, 2),
    }


# --- appending -----------------------------------------------------------------


def appending(plan: Plan, folder: Path) -> Iterator[Row]:
    """Append in every combination; the checked way in one of them."""
    for sessions in plan.sessions:
        for batch in plan.batches:
            is_checked = (sessions, batch) == (plan.sessions[0], plan.batches[1])
            place = folder / f"append-{sessions}-{batch}"
            place.mkdir()
            yield from _appending(plan.rounds, place, sessions, batch, is_checked)


def _appending(
    rounds: int, place: Path, sessions: int, batch: int, is_checked: bool
) -> Iterator[Row]:
    # One sync alone is soon done and varies much.
    repeats = 8 if sessions == 1 else 1
    ids = [f"session-{number}" for number in range(sessions)]
    stored = events(batch * (rounds + 1) * repeats + 1)
    # The first slice is what creates the sessions, which is measured elsewhere.
    begins = range(1, len(stored), batch)
    slices = [stored[:1], *(stored[begin : begin + batch] for begin in begins)]
    with ExitStack() as stack:
        appenders: dict[str, Appender] = {
            "raw jsonl": RawFiles(place / "raw", ids, slices),
            "raw sqlite": RawRows(place / "raw.db", ids, slices),
        }
        for kind in STORES:
            appenders[kind] = Logged(f"{kind}:{place / kind}", ids, slices)
            if is_checked:
                address = f"{kind}:{place / kind}-checked"
                appenders[f"checked {kind}"] = Checked(address, ids, slices)
        for appender in appenders.values():
            stack.enter_context(closing(appender))
            appender.append(0)
        actions: dict[str, Action] = {
            name: partial(_append_some, appender, repeats)
            for name, appender in appenders.items()
        }
        times = race(actions, rounds)
    what = f"append {sessions} x {batch}"
    count = sessions * batch * repeats
    for kind in STORES:
        yield _rated(row(what, kind, times[kind], times[f"raw {kind}"]), count)
    for kind in STORES if is_checked else ():
        checked = row(
            f"{what}, checked", kind, times[f"checked {kind}"], times[f"raw {kind}"]
        )
        yield _rated(checked, count)


def _append_some(appender: Appender, repeats: int, number: int) -> None:
    for offset in range(repeats):
        appender.append(1 + number * repeats + offset)


def _rated(found: Row, count: int) -> Row:
    return found | {
        "events_per_s": round(count / found["ms"] * 1000),
        "raw_events_per_s": round(count / found["raw_ms"] * 1000),
    }


def creating(plan: Plan, folder: Path) -> Iterator[Row]:
    """Make new sessions, each with a first batch."""
    first = events(STREAM_BATCH)
    raw = folder / "created"
    raw.mkdir()
    payload = encode_header(Header("session", NOW, {})) + encode_rows(first)
    ids = [f"session-{number}" for number in range(plan.rounds + 1)]
    with ExitStack() as stack:
        rows = RawRows(folder / "created.db", ["session"], _shifted(first, plan.rounds))
        stack.enter_context(closing(rows))
        contenders: dict[str, Action] = {
            "raw jsonl": lambda number: publish_raw(raw / ids[number], payload),
            "raw sqlite": rows.append,
        }
        for kind in STORES:
            store = stack.enter_context(open_store(f"{kind}:{folder / 'new'}-{kind}"))
            contenders[kind] = partial(_create, store, ids, first)
        times = race(contenders, plan.rounds)
    for kind in STORES:
        yield row(f"create with {len(first)}", kind, times[kind], times[f"raw {kind}"])


def _shifted(first: Sequence[Event], rounds: int) -> list[list[Event]]:
    """Return the events once for each round, each time with the seqs that follow."""
    return [
        [
            Event(e.seq + number * len(first), e.type, e.time, e.data, e.surface_op)
            for e in first
        ]
        for number in range(rounds + 1)
    ]


def _create(
    store: SessionStore, ids: Sequence[str], first: Sequence[Event], number: int
) -> None:
    store.create(Header(ids[number], NOW, {}))
    must_succeed(store, [Batch(ids[number], first)])
    store.release(ids[number])


# --- reading -------------------------------------------------------------------


def loading(plan: Plan, folder: Path) -> tuple[list[Row], dict[str, Any]]:
    """Store one long session in every way; return how it loads and its sizes."""
    stored = events(plan.loaded)
    unpacked = JsonlBackend(folder / "long-unpacked", packs=False)
    stores = {
        "jsonl": open_store(f"jsonl:{folder / 'long'}"),
        "jsonl unpacked": SessionStore(unpacked),
        "sqlite": open_store(f"sqlite:{folder / 'long.db'}"),
    }
    for store in stores.values():
        with store:
            store.create(Header("long", NOW, {}))
            for begin in range(0, len(stored), STREAM_BATCH):
                batch = Batch("long", stored[begin : begin + STREAM_BATCH])
                must_succeed(store, [batch])
    files = {
        "jsonl": folder / "long/long/session.jsonl",
        "jsonl unpacked": folder / "long-unpacked/long/session.jsonl",
        "sqlite": folder / "long.db",
    }
    contenders: dict[str, Action] = {
        "raw jsonl": lambda _: decoded(files["jsonl"]),
        "raw jsonl unpacked": lambda _: decoded(files["jsonl unpacked"]),
        "raw sqlite": lambda _: selected(files["sqlite"], "all_events", "long"),
        "jsonl": lambda _: _loaded(open_store(f"jsonl:{folder / 'long'}")),
        "jsonl unpacked": lambda _: _loaded(
            SessionStore(JsonlBackend(folder / "long-unpacked", packs=False))
        ),
        "sqlite": lambda _: _loaded(open_store(f"sqlite:{folder / 'long.db'}")),
    }
    # A load takes seconds and reads no disk: fewer rounds will do.
    times = race(contenders, max(1, plan.rounds // 3))
    what = f"load {len(stored)}"
    rows = [
        _rated(row(what, kind, times[kind], times[f"raw {kind}"]), len(stored))
        for kind in stores
    ]
    sizes = {kind: path.stat().st_size for kind, path in files.items()}
    return rows, {"events": len(stored), "bytes": sizes}


def _loaded(store: SessionStore) -> list[Event]:
    with store:
        return store.load("long").events


def listing(plan: Plan, folder: Path) -> Iterator[Row]:
    """List many sessions, and resume one of them."""
    stored = events(STREAM_BATCH)
    ids = [f"session-{number:05}" for number in range(plan.listed)]
    with ExitStack() as stack:
        stores = {}
        for kind in STORES:
            store = open_store(f"{kind}:{folder / 'many'}-{kind}")
            stores[kind] = stack.enter_context(store)
            for name in ids:
                store.create(Header(name, NOW, {}))
            must_succeed(store, [Batch(name, stored) for name in ids])
            for name in ids:
                store.release(name)
        files, rows = folder / "many-jsonl", folder / "many-sqlite"
        path = files / ids[0] / "session.jsonl"
        lists = race(
            {
                "raw jsonl": lambda _: first_lines(files),
                "raw sqlite": lambda _: selected(rows, "sessions"),
                "jsonl": lambda _: stores["jsonl"].sessions(),
                "sqlite": lambda _: stores["sqlite"].sessions(),
            },
            plan.rounds,
        )
        # Its turn is open at first, so the round that warms up repairs it.
        resumed = race(
            {
                "raw jsonl": lambda _: decoded(path),
                "raw sqlite": lambda _: selected(rows, "all_events", ids[0]),
                "jsonl": lambda _: _resumed(stores["jsonl"], ids[0]),
                "sqlite": lambda _: _resumed(stores["sqlite"], ids[0]),
            },
            plan.rounds,
        )
    for what, times in ((f"list {len(ids)}", lists), ("resume one", resumed)):
        for kind in STORES:
            yield row(what, kind, times[kind], times[f"raw {kind}"])


def _resumed(store: SessionStore, session_id: str) -> None:
    store.resume(session_id)
    store.release(session_id)


# --- the run -------------------------------------------------------------------


def measured(plan: Plan, folder: Path) -> dict[str, Any]:
    """Measure everything in a directory of its own."""
    rows = [*appending(plan, folder), *creating(plan, folder)]
    loads, sizes = loading(plan, folder)
    rows += [*loads, *listing(plan, folder)]
    return {"rounds": plan.rounds, "rows": rows, "sizes": sizes}


def show(found: dict[str, Any]) -> None:
    """Print what was measured as a table."""
    title = f"medians of {found['rounds']} rounds"
    print(f"{title:<25}{'':<15}  ms/round   raw ms  ratio   events/s   raw ev./s")
    for each in found["rows"]:
        line = f"{each['what']:<25}{each['store']:<15}"
        line += f"{each['ms']:>10.2f} {each['raw_ms']:>8.2f} {each['ratio']:>6.2f}"
        if "events_per_s" in each:
            line += f" {each['events_per_s']:>10,} {each['raw_events_per_s']:>11,}"
        print(line)
    count = found["sizes"]["events"]
    print(
        f"\n{'size of ' + format(count, ',') + ' events':<25}{'':<15}     bytes  each"
    )
    for kind, size in found["sizes"]["bytes"].items():
        print(f"{'':<25}{kind:<15}{size:>10,} {size / count:>5.0f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast sessions are stored.")
    parser.add_argument("--rounds", type=int, help=f"default: {FULL.rounds}")
    parser.add_argument("--quick", action="store_true", help="little of everything")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--dir", type=Path, default=Path(), help="whose disk to use; default: here"
    )
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    if arguments.rounds is not None:
        plan = plan._replace(rounds=max(1, arguments.rounds))
    with tempfile.TemporaryDirectory(
        prefix=".bench-store-", dir=arguments.dir
    ) as folder:
        found = measured(plan, Path(folder).resolve())
    if arguments.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
