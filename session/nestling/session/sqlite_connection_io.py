"""One open connection to an SQLite store: opened safely, checked in each transaction."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from nestling.session.errors import StoreError
from nestling.session.sqlite_file_io import (
    OLDEST_LIBRARY,
    check_empty,
    check_head,
    check_layout,
    code_of,
    connect,
    create_file,
    create_tables,
    has,
    head_of,
    is_blank_file,
    look_at,
    run,
    statements,
    translated,
    value_of,
)

_SYNCHRONOUS_FULL: Final = 2

_SETTINGS: Final = (("trusted_schema", 0), ("mmap_size", 0), ("foreign_keys", 1))
"""What is set before anything of the file is believed, in this order."""

_LOST: Final = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CANTOPEN,
    # Where a file may not be written SQLite opens it to be read, and says nothing.
    sqlite3.SQLITE_READONLY,
)
"""After these a connection is opened anew, so that what it remembers is gone, too."""

_FileId: TypeAlias = tuple[int, int]


_NOT_READABLE: Final = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
"""What comes of opening a store to read it where not even that is possible."""


class _Mode(Enum):
    """How a file is opened; the values are SQLite's options.

    Attributes:
        WRITE: the last one that closes takes the log into the file.
        READ: the file cannot be written, so it and its log stay as they are.
        FROZEN: nothing can be put beside the file, and there is no log. What somebody
            else writes is not noticed, so this is for one transaction only.
    """

    WRITE = "mode=rw"
    READ = "mode=ro"
    FROZEN = "mode=ro&immutable=1"


class _Open(NamedTuple):
    pid: int
    file: _FileId
    connection: sqlite3.Connection
    mode: _Mode


# A forked child inherits this list with its parent's connections. It must not use them,
# nor close them, as happens to an object that nobody refers to; and the library believes
# in the child that locks are held which only the parent holds.
_open_connections: dict[int, _Open] = {}


class StoreConnection:
    """A connection to a store's file. Opened at the first transaction that needs it."""

    def __init__(self, path: str, store: str, busy_seconds: float) -> None:
        """Remember where the file is; nothing is opened.

        Args:
            path: the absolute path.
            store: what errors call it.
            busy_seconds: how long to wait for another process.
        """
        self._path = path
        self._store = store
        self._busy_seconds = busy_seconds
        self._open: _Open | None = None
        self._cookie = 0

    def run(self, name: str, values: Any = ()) -> sqlite3.Cursor:
        """Execute the statement of that name in the open transaction."""
        return run(self._connection, name, values)

    def run_many(self, name: str, rows: Iterator[tuple[Any, ...]]) -> None:
        """Execute the statement of that name for many rows."""
        self._connection.executemany(statements()[name], rows)

    @property
    def _connection(self) -> sqlite3.Connection:
        assert self._open is not None, "a transaction opens the connection"
        return self._open.connection

    @contextmanager
    def reading(self, operation: str) -> Iterator[bool]:
        """Hold one state of the store; yields False, holding nothing, if there is none.

        Raises:
            StoreError: if the store cannot be read (see ``is_blank_file``), or has
                changed its owner.
        """
        with self._transaction("begin_reading", operation) as is_there:
            yield is_there

    @contextmanager
    def writing(self, operation: str) -> Iterator[None]:
        """Hold the store for writing; what was done is durable at the end, or undone.

        Raises:
            StoreError: as ``reading``; or if nothing was done.
        """
        with self._transaction("begin_writing", operation):
            yield

    @contextmanager
    def _transaction(self, begin: str, operation: str) -> Iterator[bool]:
        with translated(self._store, operation):
            if not self._is_usable(is_writing=begin == "begin_writing"):
                yield False
                return
            try:
                self.run(begin)
                self._check_owner()
                yield True
                self.run("commit")
            except BaseException as error:
                self._roll_back(error)
                raise
            finally:
                if self._open is not None and self._open.mode is _Mode.FROZEN:
                    self.close()

    def _is_usable(self, is_writing: bool) -> bool:
        if self._open is None:
            self._open = _opened(
                self._path, self._store, self._busy_seconds, is_writing
            )
            if self._open is None:
                return False
            self._cookie = -1
        self._check_file(self._open)
        if is_writing and self._open.mode is not _Mode.WRITE:
            before = self._open
            self.close()
            self._open = _opened(self._path, self._store, self._busy_seconds, True)
            self._cookie = -1
            if self._open is None or self._open.file != before.file:
                self.close()
                raise self._replaced()
        return True

    def _check_file(self, opened: _Open) -> None:
        if opened.pid != os.getpid():
            raise _forked(self._store)
        found = look_at(self._path, self._store)
        if found is None or _file_id(found) != opened.file:
            raise self._replaced()

    def _replaced(self) -> StoreError:
        return StoreError(
            f"{self._store}: the file was removed or replaced while it was open"
        )

    def _check_owner(self) -> None:
        """Check that the store is still what it was when it was opened."""
        connection = self._connection
        check_head(head_of(connection), self._store)
        cookie = value_of(connection, "schema_version")
        if cookie != self._cookie:
            check_layout(connection, self._store)
            self._cookie = cookie

    def _roll_back(self, cause: BaseException) -> None:
        connection = self._connection
        is_lost = isinstance(cause, sqlite3.Error) and code_of(cause) in _LOST
        try:
            if connection.in_transaction:
                self.run("roll_back")
        except sqlite3.Error:
            is_lost = True
        if is_lost:
            self.close()

    def close(self) -> None:
        """Close the connection; another transaction opens it again.

        In a forked child the parent's is left alone.
        """
        opened, self._open = self._open, None
        if opened is None or opened.pid != os.getpid():
            return
        _open_connections.pop(id(opened.connection), None)
        # What was said to be durable is; the log is taken into the file another time.
        with suppress(sqlite3.Error):
            _close(opened.connection, opened.mode, self._path, opened.file)


def _opened(
    path: str, store: str, busy_seconds: float, is_writing: bool
) -> _Open | None:
    """Open a store; None if there is none yet and it is only to be read."""
    if sqlite3.sqlite_version_info < OLDEST_LIBRARY:
        oldest = ".".join(map(str, OLDEST_LIBRARY))
        raise StoreError(
            f"{store}: found SQLite {sqlite3.sqlite_version}, expected {oldest} or "
            "newer, which has strict tables"
        )
    found = look_at(path, store)
    if found is None:
        if not is_writing:
            return None
        create_file(path, store)
        found = look_at(path, store)
        if found is None:
            raise StoreError(f"{store}: the file was removed while it was created")
    file = _file_id(found)
    for other in list(_open_connections.values()):
        if other.file == file and other.pid != os.getpid():
            raise _forked(store)
    if is_blank_file(path, store, busy_seconds) and not is_writing:
        return None
    if is_writing:
        return _opened_as(_Mode.WRITE, path, store, busy_seconds, file)
    try:
        return _opened_as(_Mode.READ, path, store, busy_seconds, file)
    except sqlite3.OperationalError as error:
        if code_of(error) not in _NOT_READABLE:
            raise
        # A maker was cut short, and SQLite must undo what it did.
        if has(path + "-journal"):
            return _opened_as(_Mode.WRITE, path, store, busy_seconds, file, False)
        if has(path + "-wal"):
            raise StoreError(
                f"{store}: it has an unfinished log, which can only be read where a "
                f"file can be put beside it: {error}"
            ) from None
        return _opened_as(_Mode.FROZEN, path, store, busy_seconds, file)


def _opened_as(
    mode: _Mode,
    path: str,
    store: str,
    busy_seconds: float,
    file: _FileId,
    is_writing: bool | None = None,
) -> _Open | None:
    if is_writing is None:
        is_writing = mode is _Mode.WRITE
    connection = connect(path, mode.value, busy_seconds)
    is_there = False
    try:
        is_there = _prepare(connection, store, busy_seconds, mode, is_writing)
        again = look_at(path, store)
        if again is None or _file_id(again) != file:
            is_there = False
            raise StoreError(f"{store}: the file was replaced while it was opened")
    finally:
        if not is_there:
            _close(connection, mode, path, file)
    if not is_there:
        return None
    opened = _Open(os.getpid(), file, connection, mode)
    _open_connections[id(connection)] = opened
    return opened


def _close(
    connection: sqlite3.Connection, mode: _Mode, path: str, file: _FileId
) -> None:
    """Close a connection, leaving nothing beside the file that was not there before.

    What can only read cannot remove the empty log that it made, as nobody may who does
    not have the file alone. One that can write does so when it is closed, and with an
    empty log it writes nothing.
    """
    connection.close()
    is_empty = os.path.exists(path + "-wal") and not has(path + "-wal")
    if mode is not _Mode.READ or not is_empty or has(path + "-journal"):
        return
    with suppress(sqlite3.Error, OSError):
        if _file_id(os.lstat(path)) != file:
            return
        with closing(connect(path, _Mode.WRITE.value, 0)) as other:
            run(other, "set_trusted_schema")
            head_of(other)


def _file_id(found: os.stat_result) -> _FileId:
    return found.st_dev, found.st_ino


def _forked(store: str) -> StoreError:
    return StoreError(
        f"{store}: it was open in the process that this one was forked from; only that "
        "one, or a newly started one, may use it"
    )


def _prepare(
    connection: sqlite3.Connection,
    store: str,
    busy_seconds: float,
    mode: _Mode,
    is_writing: bool,
) -> bool:
    """Make a connection fit for use; False if there is no store, and none is made."""
    deadline = time.monotonic() + busy_seconds
    for setting, expected in _SETTINGS:
        run(connection, f"set_{setting}")
        _verify(connection, store, setting, expected)
    _verify(connection, store, "busy_timeout", int(busy_seconds * 1000))
    # Asked here, too: what looked like a store may have been one cut short while it was
    # made, and SQLite has just undone it.
    if head_of(connection).is_blank:
        if not is_writing:
            return False
        _initialise(connection, store)
    _check(connection, store)
    if mode is _Mode.WRITE:
        _use_log(connection, store, deadline)
    run(connection, "set_synchronous")
    _verify(connection, store, "synchronous", _SYNCHRONOUS_FULL)
    return True


def _verify(
    connection: sqlite3.Connection, store: str, setting: str, expected: Any
) -> None:
    found = value_of(connection, setting)
    if found != expected:
        raise StoreError(
            f"{store}: SQLite keeps {setting} at {found!r}, expected {expected!r}"
        )


def _initialise(connection: sqlite3.Connection, store: str) -> None:
    """Make a store of an empty database, unless another process just has.

    In rollback-journal mode: all of it is then in the file itself, where a reader that
    knows nothing of a log finds it.
    """
    # In this order: whoever was faster wrote the head before the mode became WAL.
    mode = value_of(connection, "journal_mode")
    if mode == b"wal" and head_of(connection).is_blank:
        run(connection, "set_journal_delete")
        _verify(connection, store, "journal_mode", b"delete")
    run(connection, "begin_writing")
    try:
        if head_of(connection).is_blank:
            check_empty(connection, store)
            create_tables(connection)
        run(connection, "commit")
    except BaseException:
        if connection.in_transaction:
            run(connection, "roll_back")
        raise


def _check(connection: sqlite3.Connection, store: str) -> None:
    run(connection, "begin_reading")
    try:
        check_head(head_of(connection), store)
        check_layout(connection, store)
    finally:
        run(connection, "roll_back")


def _use_log(connection: sqlite3.Connection, store: str, deadline: float) -> None:
    """Switch to WAL, waiting for others until the deadline.

    The switch waits for readers by itself, but fails at once if another connection is
    writing. To begin a transaction alone waits for that one, too, at SQLite's own pace.
    """
    while value_of(connection, "journal_mode") != b"wal":
        try:
            run(connection, "set_journal_wal")
        except sqlite3.OperationalError as error:
            is_busy = code_of(error) == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() >= deadline:
                raise
            run(connection, "begin_alone")
            run(connection, "roll_back")
        else:
            _verify(connection, store, "journal_mode", b"wal")
