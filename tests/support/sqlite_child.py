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
from support.sqlite_stores import header, held, more, notes, opened, put, turns

BOUNDARIES = {
    "before begin": ("BEGIN IMMEDIATE", 1),
    "after begin": ("PRAGMA user_version", 1),
    "first insert": ("INSERT INTO events", 1),
    "mid inserts": ("INSERT INTO events", 3),
    "between sessions": ("SAVEPOINT", 2),
    "before commit": ("COMMIT", 1),
}
"""Killed when the nth statement that begins so is about to run."""


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
        held(backend)
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
        held(backend)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        limit_log(path, int(allowed))
        write_two(backend)
    tell("survived")


def fill(path: str, allowed: str) -> None:
    """Write where the kernel has no room for it, and again when it has."""
    with opened(Path(path)) as backend:
        held(backend)
        limit_log(path, int(allowed))
        for result in write_two(backend):
            tell(f"{type(result).__name__}: {result}")
        tell(f"{len(held(backend).events)} {backend.revision('t')}")
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
        tell(str(write_two(backend)))


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
    "fill": fill,
    "leave_log": leave_log,
    "fork": fork,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
