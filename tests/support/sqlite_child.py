"""Processes that use, hold or lose a store; see ``support.sqlite_processes``."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from nestling.session.errors import StoreError
from nestling.session.sqlite_backend_io import SqliteBackend
from nestling.session.store_backend import Write
from support.sqlite_stores import (
    header,
    held,
    more,
    notes,
    opened,
    put,
    ready_to_write,
    turns,
)

BOUNDARIES = {
    "before begin": ("BEGIN IMMEDIATE", 1),
    "after begin": ("PRAGMA user_version", 1),
    "first insert": ("INSERT INTO events", 1),
    "mid inserts": ("INSERT INTO events", 3),
    "between sessions": ("SAVEPOINT", 2),
    "before commit": ("COMMIT", 1),
}
"""Killed when the nth statement that begins so is about to run."""

MANY = 150
"""Events that ``cut_checkpoint`` writes."""


def tell(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def wait() -> None:
    sys.stdin.readline()


def hold(path: str, *statements: str) -> None:
    """Run statements, hold what they lock until told, then commit."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement).fetchall()
        tell("held")
        wait()
        connection.execute("COMMIT")
    tell("let go")


def append(path: str, session_id: str, count: str) -> None:
    """Once told, make a session and append to it again and again."""
    tell("ready")
    wait()
    with opened(Path(path), 30) as backend:
        put(backend, session_id, notes([0]))
        for seq in range(1, int(count)):
            more(backend, session_id, notes([seq]))
    tell("done")


def die(path: str, boundary: str) -> None:
    """Write two sessions in one commit, and die at a boundary of it."""
    with opened(Path(path)) as backend:
        ready_to_write(backend)
        if boundary == "after commit":
            backend._remember = kill  # type: ignore[method-assign, assignment]
        else:
            start, nth = BOUNDARIES[boundary]
            on_statement(backend, start, nth, kill)
        write_two(backend)
    tell("survived")


def die_in_commit(path: str, allowed: str) -> None:
    """Write two sessions, and die when the log has grown so many bytes."""
    with opened(Path(path)) as backend:
        ready_to_write(backend)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        limit_log(path, int(allowed))
        write_two(backend)
    tell("survived")


def die_making(path: str, allowed: str) -> None:
    """Make a store, and die when a file would become larger than so many bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(allowed), resource.RLIM_INFINITY))
    with opened(Path(path)) as backend:
        put(backend, "s", turns(1))
    tell("survived")


def fill(path: str, allowed: str) -> None:
    """Write where the kernel has no room for it, and again when it has."""
    with opened(Path(path)) as backend:
        ready_to_write(backend)
        first = backend._store._connection
        limit_log(path, int(allowed))
        for result in write_two(backend):
            tell(f"{type(result).__name__}: {result}")
        tell(f"{len(held(backend).events)} {backend.revision('t')}")
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
        tell(str(write_two(backend)))
        is_new = backend._store._connection is not first
        tell("opened anew" if is_new else "opened once")


def cut_checkpoint(path: str, how: str) -> None:
    """Write much, and have no room for it when the log is taken into the file."""
    backend = SqliteBackend(path)
    put(backend, "s", notes(range(MANY), "x" * 1000))
    if how == "killed":
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    limit = (os.stat(path).st_size + 50_000, resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    if how != "under way":
        backend.close()
        return
    try:
        backend._store._connection.execute("PRAGMA wal_checkpoint").fetchall()
    except sqlite3.OperationalError:
        tell("under way")
    wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    more(backend, "s", notes([MANY]))
    backend.close()


def write_much(path: str, count: str) -> None:
    """Write so much at a time that each time the log is taken into the file."""
    with opened(Path(path), 30) as backend:
        put(backend, "s", notes([0]))
        tell("ready")
        for number in range(int(count)):
            start = 1 + 300 * number
            more(backend, "s", notes(range(start, start + 300), "x" * 4000))


def leave_log(path: str, *statements: str) -> None:
    """Run statements and die with all of it in the log."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement).fetchall()
    kill()


def fork(path: str) -> None:
    """Use a store before and after a fork, on both sides."""
    backend = SqliteBackend(path)
    put(backend, "s", turns(1))
    pid = os.fork()
    if pid == 0:
        for used in (backend, SqliteBackend(path)):
            try:
                used.read("s")
                tell("child: read")
            except StoreError as error:
                tell(f"child: {error}")
            used.close()
        os._exit(0)
    os.waitpid(pid, 0)
    more(backend, "s", notes([len(turns(1))]))
    backend.close()
    tell("parent: written")


def write_two(backend: SqliteBackend) -> list[StoreError | None]:
    length = len(turns(1))
    events = notes(range(length, length + 4), "x" * 3000)
    writes = [Write(header("s"), events, False)]
    writes.append(Write(header("t"), turns(1), True))
    return backend.write(writes)


def limit_log(path: str, allowed: int) -> None:
    size = os.stat(path + "-wal").st_size + allowed
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def on_statement(
    backend: SqliteBackend, start: str, nth: int, do: Callable[[], None]
) -> None:
    """Do something when the nth statement that begins so is about to run."""
    count = 0

    def traced(sql: str) -> None:
        nonlocal count
        if sql.startswith(start):
            count += 1
            if count == nth:
                do()

    backend._store._connection.set_trace_callback(traced)


def kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


COMMANDS: dict[str, Callable[..., None]] = {
    "hold": hold,
    "append": append,
    "die": die,
    "die_in_commit": die_in_commit,
    "die_making": die_making,
    "fill": fill,
    "cut_checkpoint": cut_checkpoint,
    "write_much": write_much,
    "leave_log": leave_log,
    "fork": fork,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
