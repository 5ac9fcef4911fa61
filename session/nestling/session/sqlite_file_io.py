"""The file of an SQLite store: whose it is, and whether it is one of ours.

Nothing here writes into a file that exists. A foreign file is refused as it was found,
with no ``-wal``, ``-shm`` or ``-journal`` put beside it.

A file is looked into through SQLite connections that cannot write, not by opening it:
when a process closes *any* descriptor of a file, it loses all its POSIX locks on that
file, and another connection of this process may hold some. SQLite knows and waits with
the closing (source: "How To Corrupt An SQLite Database File", section 2.2).
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from nestling.session.errors import CorruptError, StoreError, UnsupportedError

APPLICATION_ID: Final = 0x4E45_5354
"""``NEST``, in the header of every store."""

LAYOUT_VERSION: Final = 4
"""The ``user_version`` of a store: exactly the tables of ``sqlite_store.sql``."""

OLDEST_LIBRARY: Final = (3, 37, 0)
"""The first SQLite that knows STRICT tables."""

_CREATES: Final = ("create_sessions", "create_sessions_by_parent", "create_events")
_HEAD_BYTES: Final = 100
_UNSAFE: Final = stat.S_IWGRP | stat.S_IWOTH


class Head(NamedTuple):
    """What the header of a database file says of its owner.

    Attributes:
        application_id: 0 where nobody has said anything.
        user_version: likewise.
    """

    application_id: int
    user_version: int

    @property
    def is_blank(self) -> bool:
        """Whether nobody has said whose the file is."""
        return self == (0, 0)

    @property
    def is_ours(self) -> bool:
        """Whether the file is a store of this layout."""
        return self == (APPLICATION_ID, LAYOUT_VERSION)


@cache
def statements() -> dict[str, str]:
    """Return the SQL of ``sqlite_store.sql`` by name."""
    text = Path(__file__).with_name("sqlite_store.sql").read_text("utf-8")
    _, *sections = text.split("-- name: ")
    named = (section.split("\n", 1) for section in sections)
    return {name.strip(): body.strip() for name, body in named}


def run(connection: sqlite3.Connection, name: str, values: Any = ()) -> sqlite3.Cursor:
    """Execute the statement of that name."""
    return connection.execute(statements()[name], values)


def value_of(connection: sqlite3.Connection, name: str) -> Any:
    """Return the one value that the statement of that name comes to."""
    found = run(connection, name).fetchone()
    return None if found is None else found[0]


def create_tables(connection: sqlite3.Connection) -> None:
    """Execute what makes a store of an empty database, in the open transaction."""
    for name in (*_CREATES, "stamp_application_id", "stamp_user_version"):
        run(connection, name)


@contextmanager
def translated(store: str, operation: str) -> Iterator[None]:
    """Raise SQLite's errors as ours.

    Raises:
        CorruptError: if SQLite calls the file damaged.
        StoreError: for every other of its errors.
    """
    try:
        yield
    except sqlite3.Error as error:
        kind = CorruptError if code_of(error) in _DAMAGED else StoreError
        raise kind(f"{store}: cannot {operation}: {error}") from None


_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def code_of(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; 0 for an error of the driver's own."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


# --- the file's name ------------------------------------------------------------


def look_at(path: str, store: str) -> os.stat_result | None:
    """Return what the file system says of a store's file, or None if there is none.

    Raises:
        StoreError: if its directory is missing or anybody may rename things in it, or
            if it is no regular file of ours that only we can write.
    """
    folder = os.path.dirname(path)
    try:
        _check_folder(os.stat(folder), folder, store)
        found = os.lstat(path)
    except FileNotFoundError:
        if not os.path.isdir(folder):
            raise StoreError(f"{store}: there is no directory {folder}") from None
        return None
    except OSError as error:
        raise StoreError(f"{store}: cannot look at it: {error.strerror}") from None
    _check_file(found, store)
    return found


def _check_folder(found: os.stat_result, folder: str, store: str) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"{store}: {folder} is not a directory")
    is_open = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    if os.name == "posix" and is_open:
        raise StoreError(
            f"{store}: everybody may replace files in {folder} (mode "
            f"{stat.S_IMODE(found.st_mode):04o}), expected a directory of its users"
        )


def _check_file(found: os.stat_result, store: str) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(f"{store}: found a symbolic link, expected the file itself")
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{store}: not a regular file")
    if os.name != "posix":
        return
    if found.st_uid != os.geteuid():
        raise StoreError(
            f"{store}: belongs to user {found.st_uid}, expected {os.geteuid()}"
        )
    if found.st_mode & _UNSAFE:
        mode = stat.S_IMODE(found.st_mode)
        raise StoreError(
            f"{store}: others may write it (mode {mode:04o}), expected 0600"
        )


def create_file(path: str, store: str) -> None:
    """Create the empty file of a store, which nobody else can read.

    What SQLite puts beside it gets the same mode. If somebody was faster, theirs is
    left as it is.

    Raises:
        StoreError: if it cannot be created.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        os.close(os.open(path, flags, 0o600))
        _sync_directory(os.path.dirname(path))
    except FileExistsError:
        return
    except OSError as error:
        raise StoreError(f"{store}: cannot create: {error.strerror}") from None


def _sync_directory(path: str) -> None:
    """Make a new file's name durable; not every platform can open a directory."""
    if os.name != "posix":
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# --- whose it is ----------------------------------------------------------------


def connect(path: str, options: str, busy_seconds: float) -> sqlite3.Connection:
    """Open a connection whose texts are bytes and whose transactions are explicit."""
    connection = sqlite3.connect(
        f"{Path(path).as_uri()}?{options}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = bytes
    return connection


def is_blank_file(path: str, store: str, busy_seconds: float) -> bool:
    """Tell whether a file is still to be made a store; otherwise it is one of ours.

    Raises:
        UnsupportedError: if it is neither.
        CorruptError, StoreError: if SQLite cannot tell.
    """
    deadline = time.monotonic() + busy_seconds
    while True:
        before = _stamp(path)
        head = _head_of_file(path, store)
        try:
            return _is_blank(head, path, store, busy_seconds)
        except StoreError as error:
            # Somebody may have made it a store while it was looked into, or started to
            # take a log into a store that had none: then it seems to be damaged.
            is_sure = not head.is_ours or isinstance(error, UnsupportedError)
            is_sure = is_sure or _stamp(path) == before or time.monotonic() >= deadline
            if _head_of_file(path, store) == head and is_sure:
                raise


def _stamp(path: str) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what differs when somebody has written a file, or has a log beside it."""
    return tuple(_stamp_of(path + suffix) for suffix in ("", "-wal"))


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


@contextmanager
def _unlocked(path: str, store: str) -> Iterator[sqlite3.Connection]:
    """Open the main file as it lies there: no locks, no log, nothing beside it."""
    try:
        with closing(connect(path, "mode=ro&immutable=1", 0)) as connection:
            run(connection, "set_trusted_schema")
            yield connection
    except sqlite3.Error as error:
        if code_of(error) == sqlite3.SQLITE_NOTADB:
            raise _no_database(store) from None
        kind = CorruptError if code_of(error) in _DAMAGED else StoreError
        raise kind(f"{store}: cannot look into it: {error}") from None


def _no_database(store: str) -> UnsupportedError:
    return UnsupportedError(
        f"{store}: found no SQLite database, expected a store of Nestling"
    )


def _head_of_file(path: str, store: str) -> Head:
    with _unlocked(path, store) as connection:
        # Or else SQLite says no more of a file with fewer pages than its head counts,
        # as one has whose maker died. This connection cannot write anything.
        run(connection, "set_writable_schema")
        return head_of(connection)


def _is_blank(head: Head, path: str, store: str, busy_seconds: float) -> bool:
    if head.is_blank:
        # SQLite takes a file of one byte for an empty one.
        if 0 < os.stat(path).st_size < _HEAD_BYTES:
            raise _no_database(store)
        with _unlocked(path, store) as connection:
            check_empty(connection, store)
        # A store's head is never in its log only: it is written before there is one.
        if has(path + "-wal"):
            raise UnsupportedError(
                f"{store}: found an unfinished log of something else beside an empty "
                "database, expected a store of Nestling"
            )
        return True
    check_head(head, store)
    # Where there is a log, the file alone says nothing: pages may be missing, or be of
    # different states, as long as not all of the log has been taken into it.
    if has(path + "-wal"):
        _check_with_log(path, store, busy_seconds)
    # Likewise while it is being made a store, or where that was cut short. Opening it
    # settles that, and it is checked then.
    elif not has(path + "-journal"):
        with _unlocked(path, store) as connection:
            check_layout(connection, store)
    return False


def _check_with_log(path: str, store: str, busy_seconds: float) -> None:
    """Check what the log changes, before a connection that can write takes it over."""
    options = "mode=ro"
    if os.path.exists(path + "-shm"):
        options += "&readonly_shm=1"
    try:
        with closing(connect(path, options, busy_seconds)) as connection:
            run(connection, "set_trusted_schema")
            run(connection, "begin_reading")
            check_head(head_of(connection), store)
            check_layout(connection, store)
            run(connection, "roll_back")
    except sqlite3.OperationalError:
        # The log is being recovered or removed by somebody: the connection that can
        # write waits for that, and checks again.
        return
    except sqlite3.DatabaseError as error:
        raise CorruptError(f"{store}: cannot look into it: {error}") from None


def has(path: str) -> bool:
    """Tell whether there is a file with something in it."""
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def head_of(connection: sqlite3.Connection) -> Head:
    """Return what the header says; this needs no page but the first."""
    return Head(
        value_of(connection, "application_id"), value_of(connection, "user_version")
    )


def check_head(head: Head, store: str) -> None:
    """Refuse what is not version 4 of our application.

    Raises:
        UnsupportedError: saying what was found and expected.
    """
    if head.application_id != APPLICATION_ID:
        raise UnsupportedError(
            f"{store}: found the application id {head.application_id:#010x}, "
            f"expected {APPLICATION_ID:#010x}, a store of Nestling"
        )
    if head.user_version != LAYOUT_VERSION:
        newer = head.user_version > LAYOUT_VERSION
        advice = "a newer Nestling may read it" if newer else "there is no upgrade"
        raise UnsupportedError(
            f"{store}: found layout version {head.user_version}, "
            f"expected {LAYOUT_VERSION} ({advice})"
        )


def check_layout(connection: sqlite3.Connection, store: str) -> None:
    """Refuse tables that are not, to the letter, those of ``sqlite_store.sql``.

    Raises:
        UnsupportedError: naming an object that differs; or if texts are not UTF-8.
    """
    _check_encoding(connection, store)
    found = set(run(connection, "layout").fetchall())
    differing = found ^ _expected_layout()
    if differing:
        name = min(row[1] for row in differing).decode("utf-8", "replace")
        raise UnsupportedError(
            f"{store}: {name!r} is not as layout version {LAYOUT_VERSION} has it"
        )


def check_empty(connection: sqlite3.Connection, store: str) -> None:
    """Refuse a database that holds something, and nobody says whose it is.

    Raises:
        UnsupportedError: naming an object; or if texts are not UTF-8.
    """
    _check_encoding(connection, store)
    found = run(connection, "layout").fetchone()
    if found is not None:
        name = found[1].decode("utf-8", "replace")
        raise UnsupportedError(
            f"{store}: found {name!r} in a database without an application id, "
            "expected a store of Nestling"
        )


def _check_encoding(connection: sqlite3.Connection, store: str) -> None:
    encoding = value_of(connection, "encoding")
    if encoding != b"UTF-8":
        raise UnsupportedError(
            f"{store}: texts are stored as {encoding.decode()}, expected UTF-8"
        )


@cache
def _expected_layout() -> frozenset[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.text_factory = bytes
        create_tables(connection)
        return frozenset(run(connection, "layout").fetchall())
