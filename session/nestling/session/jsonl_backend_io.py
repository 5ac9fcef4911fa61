"""A backend that keeps each session as a file of lines, which anybody can read.

``<root>/<id>/session.jsonl``: the header line, then a row a line (source: the format's
rules for its logs). The directories above the file spell the id (``nestling.session
.ids``). Names in the root that begin with a dot are the store's own: ``.leases``, and
``.deleted-…`` for what is being removed. Nothing is written, not even the root, before
the first session is.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from nestling.session.errors import CorruptError, StoreError
from nestling.session.event import Event
from nestling.session.files_io import Stamp, cause, stamp_of, sync_directory
from nestling.session.header import Header
from nestling.session.ids import CONTINUED, id_of_parts, id_parts
from nestling.session.jsonl_log import check_owner, read_header_line, read_log
from nestling.session.log_file_io import LogFile, publish
from nestling.session.store_backend import Held, Listed, Tail, Write
from nestling.session.strict import LONGEST_ID
from nestling.session.writing import encode_header, encode_rows, encode_scalar_rows

LOG: Final = "session.jsonl"
LONGEST_HEADER: Final = 64 * 1024 * 1024
"""So many bytes has a header's line at most, its newline included."""

OPEN_FILES: Final = 4
"""So many files are kept open between two writes: those written last."""

_DELETED: Final = ".deleted-"
_LEASES: Final = ".leases"
_READS: Final = 16
"""So often a file is read again because it changed meanwhile."""

# A character outside the first plane needs most: two units of five characters.
_DEEPEST: Final = len(id_parts("\U0001f600" * LONGEST_ID))
"""So many directories, one in the other, lead to a session at most."""

_BUFFER: Final = 8192
# O_NONBLOCK: a pipe of that name must not hold the reader.
_READING: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class _Stored(NamedTuple):
    """One directory of the store that may hold a session."""

    parts: tuple[str, ...]
    path: str  # of its log
    problem: str = ""  # why it cannot be looked at


class JsonlBackend:
    """Keeps sessions as files of lines (a ``Backend``).

    After a fork only the parent may write; the child may read.

    Attributes:
        name: ``jsonl:`` and the absolute path of the root.
    """

    shares_commits = False

    def __init__(self, root: str | Path, *, packs: bool = True) -> None:
        """Open a store; nothing is read or written.

        Args:
            root: its directory, which need not exist. A relative one is resolved now:
                changing the working directory later changes nothing.
            packs: write runs of deltas as one row, as readers of the format know them.

        Raises:
            StoreError: if there can be no directory of that name.
        """
        text = os.fspath(root)
        if not _is_path(text):
            raise StoreError(f"jsonl:{text!r}: expected the path of a directory")
        self._root = os.path.abspath(text)
        self._pid = os.getpid()
        self.name = f"jsonl:{self._root}"
        self._encode = encode_rows if packs else encode_scalar_rows
        self._logs: dict[str, LogFile] = {}
        self._open: dict[str, LogFile] = {}  # the one written last is the last

    # --- reading -----------------------------------------------------------------

    def read(self, session_id: str) -> Held | None:
        """Return what is stored of a session (see ``Backend.read``).

        Raises:
            CorruptError, UnsupportedError: naming the file, the line and the byte.
            StoreError: if the file cannot be read, or does not stop changing.
        """
        path = self._path(session_id)
        log = self._logs.get(session_id)
        found = _read_whole(path)
        if found is None:
            self._forget(session_id)
            return None
        data, stamp = found
        if log is not None and log.is_as_left(stamp):
            if log.is_cut_short:
                return self._read_cut_short(session_id, log, data, stamp)
        else:
            self._forget(session_id)
        try:
            header, events, tail = read_log(data, path, session_id)
        except StoreError:
            self._forget(session_id)
            raise
        if session_id not in self._logs:
            sound = stamp.size if tail is None else tail.mark
            self._logs[session_id] = LogFile(path, stamp, sound, len(events))
        return Held(header, events, stamp.revision, tail)

    def _read_cut_short(
        self, session_id: str, log: LogFile, data: bytes, stamp: Stamp
    ) -> Held:
        """Read what stands before the rows of an append that failed.

        These may be whole. But it was said that they are not durable.
        """
        header, events, _ = read_log(data[: log.sound], log.path, session_id)
        problem = f"byte {log.sound}: an append that failed could not be taken back"
        tail = Tail(log.sound, problem) if stamp.size > log.sound else None
        return Held(header, events, stamp.revision, tail)

    def read_from(self, session_id: str, seq: int) -> list[Event] | None:
        """Return the sound events from `seq` on (see ``Backend.read_from``).

        Raises:
            StoreError, CorruptError, UnsupportedError: as ``read``.
        """
        if self._is_known_to_end(session_id, seq):
            return []
        held = self.read(session_id)
        return None if held is None else held.events[seq:]

    def _is_known_to_end(self, session_id: str, seq: int) -> bool:
        """Tell without reading that nothing stands at `seq` or behind it.

        Whoever follows a session asks again and again, mostly for nothing.
        """
        log = self._logs.get(session_id)
        if log is None or seq < log.length:
            return False
        found = _stamp(log.path)
        return found is not None and log.is_as_left(found)

    def revision(self, session_id: str) -> str | None:
        """Return a session's revision, or None if it is not stored.

        Raises:
            StoreError: if its file cannot be asked about.
        """
        found = _stamp(self._path(session_id))
        return None if found is None else found.revision

    # --- writing -----------------------------------------------------------------

    def write(self, writes: Sequence[Write]) -> list[StoreError | None]:
        """Make events durable, one session after the other (see ``Backend.write``)."""
        outcomes: list[StoreError | None] = []
        for write in writes:
            try:
                self._write(write)
                outcomes.append(None)
            except StoreError as error:
                outcomes.append(error)
        return outcomes

    def _require_owner(self) -> None:
        """Check that this process opened the store: a fork holds none of its leases.

        Raises:
            StoreError: if it was forked from the one that did.
        """
        if self._pid != os.getpid():
            raise StoreError(
                f"{self.name}: it was opened in the process that this one was forked "
                "from; only that one, or a store opened here, may write"
            )

    def _write(self, write: Write) -> None:
        self._require_owner()
        session_id, seq = write.header.id, write.events[0].seq
        path = self._path(session_id)
        if write.is_new:
            if seq != 0:
                raise StoreError(f"{path}: a new session cannot begin at event {seq}")
            head = encode_header(write.header)
            if len(head) > LONGEST_HEADER:
                raise StoreError(
                    f"{path}: cannot create: its header has {len(head)} bytes, "
                    f"expected at most {LONGEST_HEADER}"
                )
            data = head + self._encode(write.events)
            log = publish(path, self._root, data, len(write.events))
            self._forget(session_id)
            self._logs[session_id] = log
            return
        if session_id not in self._logs and self.read(session_id) is None:
            raise StoreError(f"{path}: this session is not stored")
        log = self._logs[session_id]
        if seq != log.length:
            raise StoreError(
                f"{path}: this session has {log.length} events, "
                f"it cannot continue at event {seq}"
            )
        self._append(session_id, log, write.events)

    def _append(self, session_id: str, log: LogFile, events: Sequence[Event]) -> None:
        self._open.pop(session_id, None)
        for other in list(self._open)[: 1 - OPEN_FILES]:
            self._open.pop(other).close()
        self._open[session_id] = log
        log.append(self._encode(events), len(events))

    def repair(self, held: Held, closers: Sequence[Event]) -> None:
        """Remove a tail and append closers (see ``Backend.repair``).

        Raises:
            StoreError: if the session has changed since it was read, or the file
                cannot be changed.
        """
        self._require_owner()
        session_id = held.header.id
        path = self._path(session_id)
        found = _stamp(path)
        if found is None or found.revision != held.revision:
            raise StoreError(
                f"{path}: this session has changed since it was read; "
                "nothing was repaired"
            )
        sound = found.size if held.tail is None else held.tail.mark
        self._forget(session_id)
        log = self._logs[session_id] = LogFile(path, found, sound, len(held.events))
        self._append(session_id, log, closers)

    def delete(self, session_id: str) -> bool:
        """Remove a session's directory; return whether there was a session.

        It is no longer stored at once, or still as it was; its files are removed then.

        Raises:
            CorruptError: if another session is stored under that name.
            StoreError: if it cannot be removed, or not what was left of its files.
        """
        self._require_owner()
        path = self._path(session_id)
        if _stamp(path) is None:
            return False
        try:
            header = _read_header(path)
        except StoreError:
            header = None  # whose it is, nobody can say: it may be deleted
        if header is not None:
            check_owner(header, path, session_id)
        self._forget(session_id)
        directory = os.path.dirname(path)
        hidden = os.path.join(
            self._root, f"{_DELETED}{os.getpid()}-{os.urandom(8).hex()}"
        )
        try:
            os.rename(directory, hidden)
            sync_directory(os.path.dirname(directory))
            sync_directory(self._root)
        except OSError as error:
            with suppress(OSError):
                os.rename(hidden, directory)
            raise StoreError(f"{path}: cannot delete: {cause(error)}") from None
        self._remove_emptied(os.path.dirname(directory))
        self._remove_hidden()
        return True

    def _remove_emptied(self, directory: str) -> None:
        """Remove the directories that led only to what was deleted."""
        while directory != self._root:
            try:
                os.rmdir(directory)
            except OSError:  # another session's way leads through it
                return
            directory = os.path.dirname(directory)

    def _remove_hidden(self) -> None:
        """Remove what is deleted, also what others that died have left of it."""
        try:
            for name in os.listdir(self._root):
                if name.startswith(_DELETED):
                    _remove_tree(os.path.join(self._root, name))
        except OSError as error:
            raise StoreError(
                f"{error.filename}: the session is deleted, "
                f"but this cannot be removed: {cause(error)}"
            ) from None

    # --- listing -----------------------------------------------------------------

    def sessions(self) -> list[Listed]:
        """Return every stored session, ordered by id; only headers are read.

        Raises:
            StoreError: if the store's directory cannot be read. What is wrong with one
                of its entries is told by that entry.
        """
        self._require_directory()
        listed = [_listed(stored) for stored in self._stored()]
        found = [session for session in listed if session is not None]
        return sorted(found, key=lambda session: session.id)

    def children(self, session_id: str) -> list[Header]:
        """Return the readable headers that name a session as their parent, by id.

        Raises:
            StoreError: as ``sessions``.
        """
        headers = [listed.header for listed in self.sessions()]
        return [h for h in headers if h is not None and h.parent_session == session_id]

    def _stored(self) -> Iterator[_Stored]:
        """Walk the directories that may hold sessions, as deep as an id can lead."""
        waiting: list[tuple[str, ...]] = [()]
        while waiting:
            above = waiting.pop()
            directory = os.path.join(self._root, *above)
            try:
                names = sorted(os.listdir(directory))
            except FileNotFoundError:  # no store yet, or it was just deleted
                continue
            except OSError as error:
                problem = f"{directory}: cannot list: {cause(error)}"
                if not above:
                    raise StoreError(problem) from None
                yield _Stored(above, directory, problem)
                continue
            for name in names:
                parts, path = (*above, name), os.path.join(directory, name)
                if name.startswith(".") or not _is_directory(path):
                    continue
                if not name.endswith(CONTINUED):
                    yield _Stored(parts, os.path.join(path, LOG))
                elif len(parts) < _DEEPEST:
                    waiting.append(parts)

    # --- the rest ------------------------------------------------------------------

    def lease_folder(self) -> str | None:
        """Return the directory of the store's leases; it need not exist."""
        return os.path.join(self._root, _LEASES)

    def close(self) -> None:
        """Close the files, and forget what they were like; may be called again."""
        for log in self._open.values():
            log.close()
        self._open.clear()
        self._logs.clear()

    def _path(self, session_id: str) -> str:
        if not session_id:
            raise StoreError(f"{self.name}: a session's id must not be empty")
        self._require_directory()
        return os.path.join(self._root, *id_parts(session_id), LOG)

    def _require_directory(self) -> None:
        """Check that the root is no file; it may be missing.

        Raises:
            StoreError: if it is one.
        """
        # What else is wrong with it is told by what is done there.
        with suppress(OSError):
            if not stat.S_ISDIR(os.stat(self._root).st_mode):
                raise StoreError(f"{self._root}: is no directory")

    def _forget(self, session_id: str) -> None:
        """Drop what is known of a session: it is gone, or somebody else changed it."""
        self._logs.pop(session_id, None)
        log = self._open.pop(session_id, None)
        if log is not None:
            log.close()


def _is_path(text: str) -> bool:
    """Tell whether a file can have that name."""
    try:
        return bool(text) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _is_directory(path: str) -> bool:
    """Tell whether a path leads to a directory that may be walked into.

    One that a link stands for is taken for a session's, but not for the way to others:
    links can lead in circles.
    """
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            return not path.endswith(CONTINUED) and os.path.isdir(path)
        return stat.S_ISDIR(found.st_mode)
    except FileNotFoundError:  # just deleted
        return False
    except OSError:  # whoever looks into it is told why
        return True


def _stamp(path: str) -> Stamp | None:
    """Return a file's stamp, or None if there is none."""
    try:
        return stamp_of(os.stat(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot look at it: {cause(error)}") from None


def _read_whole(path: str) -> tuple[bytes, Stamp] | None:
    """Read a file that does not change meanwhile, or return None if there is none."""
    for _ in range(_READS):
        try:
            with open(_open_file(path), "rb", buffering=0) as file:
                before = stamp_of(os.fstat(file.fileno()))
                if before.size > LONGEST_HEADER:
                    # It may be too much to be kept in memory, and no session at all.
                    _read_line(file, path)
                    file.seek(0)
                data = file.readall()
            after = stamp_of(os.stat(path))
        except FileNotFoundError:
            if _stamp(path) is None:
                return None
            continue
        except OSError as error:
            raise StoreError(f"{path}: cannot read: {cause(error)}") from None
        if before == after and len(data) == after.size:
            return data, after
    raise StoreError(
        f"{path}: cannot read: somebody else is writing this session, "
        f"it changed during each of {_READS} reads"
    )


def _open_file(path: str) -> int:
    """Open a file to be read; what is no file has no content that could be."""
    fd = os.open(path, _READING)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError("this is no regular file")


def _read_header(path: str) -> Header | None:
    """Read a file's first line only, or return None if there is no such file."""
    try:
        with open(_open_file(path), "rb", buffering=0) as file:
            line = _read_line(file, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot read: {cause(error)}") from None
    return read_header_line(line, path)


def _read_line(file: io.FileIO, path: str) -> bytes:
    """Read a file's first line, which ends within a bound.

    Raises:
        CorruptError: if it does not.
    """
    line = bytearray()
    while b"\n" not in line[-_BUFFER:]:
        piece = file.read(_BUFFER)
        if not piece:
            break
        line += piece
        if len(line) > LONGEST_HEADER + _BUFFER:
            break
    end = line.find(b"\n") + 1 or len(line)
    if end > LONGEST_HEADER:
        raise CorruptError(
            f"{path}: line 1 (byte 0): a header has at most {LONGEST_HEADER} bytes, "
            "found no newline in so many"
        )
    return bytes(line[:end])


def _listed(stored: _Stored) -> Listed | None:
    """Return one entry of the list, or None if no session is stored there."""
    name, revision, header = "/".join(stored.parts), "", None
    problem = stored.problem
    if problem:
        return Listed(name, header, revision, problem)
    try:
        found = _stamp(stored.path)
        if found is None:
            return None
        revision = found.revision
        name = id_of_parts(stored.parts)
        header = _read_header(stored.path)
        if header is None:  # deleted since
            return None
        check_owner(header, stored.path, name)
    except StoreError as error:
        header, problem = None, str(error)
    except ValueError as error:
        problem = f"{stored.path}: {error}"
    return Listed(name, header, revision, problem)


def _remove_tree(path: str) -> None:
    with suppress(FileNotFoundError):  # somebody else removes it too
        if os.path.islink(path):
            os.unlink(path)
        else:
            shutil.rmtree(path)
