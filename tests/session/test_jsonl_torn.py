"""Files of lines that were cut short: torn tails, faults of the disk, crashes.

F-numbers: faults that people met with such logs. J-numbers: the behaviours that the
format's own store is tested for.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nestling.session.errors import CorruptError, StoreError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsonl_backend_io import JsonlBackend
from nestling.session.store_backend import Held, Write
from nestling.session.writing import encode_header, encode_rows
from support.session_logs import LogWriter, chunk_event, delta, rows
from support.steps import Cut, crashes, fail_with

HEADER = Header("s", 5, {})


def turns(count: int, text: str = "hello \U0001f600") -> list[Event]:
    """Whole turns of three events each."""
    log = LogWriter()
    for _ in range(count):
        log.start_turn()
        log.user(text)
        log.end_turn()
    return log.events


LOG = turns(4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s" / "session.jsonl"


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[JsonlBackend]:
    opened = JsonlBackend(tmp_path)
    yield opened
    opened.close()


def data(events: list[Event]) -> bytes:
    return encode_header(HEADER) + encode_rows(events)


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def held(backend: JsonlBackend) -> Held:
    found = backend.read("s")
    assert found is not None
    return found


def write(
    backend: JsonlBackend, events: list[Event], is_new: bool = False
) -> StoreError | None:
    (outcome,) = backend.write([Write(HEADER, events, is_new)])
    return outcome


# --- torn tails --------------------------------------------------------------------


def test_every_cut_of_the_last_row_is_a_torn_tail(
    backend: JsonlBackend, path: Path
) -> None:
    """F1, F3, J29, J38, J50: with a newline behind it and without, also in an emoji."""
    kept, whole = data(LOG[:4]), data(LOG[:5])
    for size in range(len(kept) + 1, len(whole)):
        for end in (b"", b"\n"):
            if (whole[:size] + end) == whole:
                continue
            torn = whole[:size] + end
            put(path, torn)
            found = held(backend)
            assert rows(found.events) == rows(LOG[:4])
            assert found.tail is not None
            assert found.tail.mark == len(kept)
            assert found.tail.problem.startswith(f"line 6 (byte {len(kept)}): ")
            assert path.read_bytes() == torn
    put(path, kept)
    assert held(backend).tail is None


def test_a_last_row_without_its_newline_does_not_count(
    backend: JsonlBackend, path: Path
) -> None:
    """F1: also if it can be parsed, and ends a turn."""
    put(path, data(LOG[:3])[:-1])
    found = held(backend)
    assert len(found.events) == 2
    assert found.tail is not None
    assert found.tail.problem.endswith("ends without a newline")


def test_a_log_may_end_with_its_header(backend: JsonlBackend, path: Path) -> None:
    """J53."""
    put(path, encode_header(HEADER) + b"{")
    found = held(backend)
    assert found.tail is not None
    assert (found.events, found.tail.mark) == ([], len(encode_header(HEADER)))


_LINES = [row + b"\n" for row in encode_rows(LOG).splitlines()]
_PACKED = encode_rows([chunk_event(n, delta("x")) for n in range(6, 10)])

_BAD = {
    "glued": b'{"type":"turn/sta' + _LINES[6],
    "no JSON": b"\xff\n",
    "blank": b"\n",
    "no object": b"7\n",
    "gap": _LINES[7],
    "duplicate": _LINES[5].replace(b"turn/end", b"x"),
    "no seq": _LINES[6].replace(b'"seq":6,', b""),
    "extra key": _LINES[6].replace(b'"seq":6,', b'"seq":6,"y":1,'),
    "packed gap": _PACKED.replace(b'"seq0":6', b'"seq0":7'),
    "packed arity": _PACKED.replace(b'"dt":[0,0,0]', b'"dt":[0,0]'),
    "packed, no place": _PACKED.replace(b'"seq0":6,', b""),
}


@pytest.mark.parametrize("bad", _BAD.values(), ids=_BAD.keys())
def test_a_bad_row_bounds_what_is_kept_unless_a_turn_ends_behind_it(
    backend: JsonlBackend, path: Path, bad: bytes
) -> None:
    """F2, F5, J39, J50-J52, J54, J55, J60, J61, B14."""
    kept = data(LOG[:6])
    for behind in (b"", _LINES[6], b"\xff" + _LINES[8], _LINES[8][:-1]):
        put(path, kept + bad + behind)
        found = held(backend)
        assert rows(found.events) == rows(LOG[:6])
        assert found.tail is not None
        assert found.tail.mark == len(kept)
        assert f"line 8 (byte {len(kept)})" in found.tail.problem
    for behind in (_LINES[8], _LINES[7] + _LINES[8], b"\xff\n" + _LINES[8] + b"{"):
        put(path, kept + bad + behind)
        for ask in (lambda: backend.read("s"), lambda: backend.read_from("s", 6)):
            with pytest.raises(CorruptError, match="this is no torn tail") as caught:
                ask()
            assert str(caught.value).startswith(f"{path}: line 8 (byte {len(kept)})")
        assert isinstance(write(backend, LOG[6:]), CorruptError)
        assert path.read_bytes() == kept + bad + behind


def test_the_next_append_removes_a_torn_tail(backend: JsonlBackend, path: Path) -> None:
    """F2: nothing is glued to it."""
    put(path, data(LOG[:6]) + b'{"type":"turn/start","seq":6,"ti')
    assert write(backend, LOG[6:]) is None
    assert path.read_bytes() == data(LOG)


# --- repair ------------------------------------------------------------------------


def test_a_repair_removes_the_tail_and_appends(
    backend: JsonlBackend, path: Path
) -> None:
    """J28, J29, J88: what was committed keeps its bytes."""
    put(path, data(LOG[:5]) + b"torn")
    found = held(backend)
    backend.repair(found, LOG[5:6])
    assert path.read_bytes() == data(LOG[:6])
    assert backend.revision("s") != found.revision
    assert write(backend, LOG[6:]) is None
    assert path.read_bytes() == data(LOG)


def test_a_repair_may_be_one_half_only_or_nothing(
    backend: JsonlBackend, path: Path
) -> None:
    put(path, data(LOG[:6]) + b"torn")
    backend.repair(held(backend), [])
    assert path.read_bytes() == data(LOG[:6])
    backend.repair(held(backend), LOG[6:])
    assert path.read_bytes() == data(LOG)
    before = backend.revision("s")
    backend.repair(held(backend), [])
    assert backend.revision("s") == before


def test_what_has_changed_is_not_repaired(backend: JsonlBackend, path: Path) -> None:
    put(path, data(LOG[:5]) + b"torn")
    found = held(backend)
    put(path, data(LOG))
    with pytest.raises(StoreError, match="has changed since it was read"):
        backend.repair(found, LOG[5:6])
    assert path.read_bytes() == data(LOG)
    path.unlink()
    with pytest.raises(StoreError, match="has changed since it was read"):
        backend.repair(found, LOG[5:6])


# --- faults ------------------------------------------------------------------------


def test_a_fault_at_any_step_of_an_append_leaves_no_gap(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F6, J30, J90: the append can be done again, by the same backend."""
    seen = set()
    for at in range(10):
        backend = JsonlBackend(tmp_path)
        put(path, data(LOG[:3]))
        assert write(backend, LOG[3:6]) is None
        cut = Cut(at, fail_with(errno.ENOSPC))
        with monkeypatch.context() as patch:
            cut.patch(patch)
            error = write(backend, LOG[6:9])
        if not cut.name:
            assert error is None
            backend.close()
            break
        seen.add(cut.name)
        assert f"{path}: cannot append: No space left" in str(error)
        assert path.read_bytes() == data(LOG[:6])
        assert len(held(backend).events) == 6
        assert write(backend, LOG[6:]) is None
        assert path.read_bytes() == data(LOG)
        backend.close()
    assert seen == {"write", "fsync"}


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_failed_rollback_is_told_and_made_good_later(
    backend: JsonlBackend,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    is_read: bool,
) -> None:
    """J31: what was not durable never counts, also if all of it is on disk."""
    put(path, data(LOG[:3]))
    assert write(backend, LOG[3:6]) is None
    with monkeypatch.context() as patch:
        cut = Cut(at, fail_with(errno.EIO), 2)
        cut.patch(patch)
        error = write(backend, LOG[6:9])
        for part in (
            str(path),
            "cannot append (Input/output error)",
            "nor restore its",
        ):
            assert part in str(error)
        assert path.stat().st_size > len(data(LOG[:6]))
    if is_read:
        found = held(backend)
        assert rows(found.events) == rows(LOG[:6])
        assert found.tail is not None
        assert found.tail.mark == len(data(LOG[:6]))
        assert "could not be taken back" in found.tail.problem
    with monkeypatch.context() as patch:
        cut = Cut(0, fail_with(errno.EROFS))
        cut.patch(patch)
        assert "Read-only file system" in str(write(backend, LOG[6:9]))
        assert cut.name == "ftruncate"
    assert write(backend, LOG[6:]) is None
    assert path.read_bytes() == data(LOG)


def test_a_repair_takes_back_a_failed_append(
    backend: JsonlBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, data(LOG[:6]))
    held(backend)
    with monkeypatch.context() as patch:
        Cut(1, fail_with(errno.EIO), 2).patch(patch)
        write(backend, LOG[6:9])
    assert path.read_bytes() == data(LOG[:9])
    backend.repair(held(backend), [])
    assert path.read_bytes() == data(LOG[:6])
    assert write(backend, LOG[6:]) is None


@pytest.mark.parametrize("length", [2, 12])
def test_what_somebody_else_did_after_a_failed_append_stays(
    backend: JsonlBackend, path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """F5: be it longer than what failed, or shorter than what was there before."""
    put(path, data(LOG[:3]))
    held(backend)
    with monkeypatch.context() as patch:
        Cut(1, fail_with(errno.EIO), 2).patch(patch)
        write(backend, LOG[3:6])
    put(path, data(LOG[:length]))
    assert "somebody else" in str(write(backend, LOG[3:6]))
    assert path.read_bytes() == data(LOG[:length])
    assert len(held(backend).events) == length


def test_an_interrupted_append_is_taken_back_by_the_next(
    backend: JsonlBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, data(LOG[:3]))
    held(backend)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        Cut(1, interrupt).patch(patch)
        with pytest.raises(KeyboardInterrupt):
            write(backend, LOG[3:6])
    assert path.read_bytes() == data(LOG[:6])
    assert len(held(backend).events) == 3
    assert write(backend, LOG[3:]) is None
    assert path.read_bytes() == data(LOG)


def test_one_sessions_fault_is_not_anothers(
    backend: JsonlBackend, tmp_path: Path
) -> None:
    """J36."""
    headers = [Header(name, 5, {}) for name in "abc"]
    backend.write([Write(header, LOG[:3], True) for header in headers])
    (tmp_path / "b" / "session.jsonl").unlink()
    first, second, third = backend.write(
        [Write(header, LOG[3:6], False) for header in headers]
    )
    assert (first, third) == (None, None)
    assert str(tmp_path / "b" / "session.jsonl") in str(second)
    assert "No such file" in str(second)


def test_a_log_that_can_no_longer_be_opened_is_named(
    backend: JsonlBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7."""
    put(path, data(LOG[:3]))
    held(backend)
    real = os.open

    def denied(name: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_WRONLY:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return real(name, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", denied)
        assert (
            str(write(backend, LOG[3:])) == f"{path}: cannot append: Permission denied"
        )
    assert write(backend, LOG[3:]) is None


def test_a_fault_at_any_step_of_a_publication_leaves_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F6, J90: and it can be done again, by the same backend."""
    seen = []
    for at in range(20):
        root = tmp_path / str(at) / "store"
        backend = JsonlBackend(root)
        cut = Cut(at, fail_with(errno.ENOSPC))
        with monkeypatch.context() as patch:
            cut.patch(patch)
            error = write(backend, LOG[:3], True)
        if not cut.name:
            assert error is None
            break
        seen.append(cut.name)
        if error is not None:
            assert "No space left" in str(error)
            assert str(root.parent) in str(error)
            assert backend.read("s") is None
            assert backend.sessions() == []
            assert not list(root.glob("s/*"))
            assert write(backend, LOG[:3], True) is None
        else:  # what was left behind does not matter, and is removed
            assert cut.name == "unlink"
            assert len(list(root.glob("s/.new-*"))) == 1
        assert write(backend, LOG[3:]) is None
        assert (root / "s" / "session.jsonl").read_bytes() == data(LOG)
        assert [file.name for file in (root / "s").iterdir()] == ["session.jsonl"]
        backend.close()
    assert seen == [
        *["mkdir", "fsync"] * 3,
        "write",
        "fsync",
        "link",
        "fsync",
        "unlink",
    ]


def test_a_directory_that_a_dead_writer_made_is_made_durable_too(
    backend: JsonlBackend, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have died between making it and syncing its name."""
    path.parent.mkdir()
    (path.parent / ".new-1-0").write_bytes(b"left over")
    synced = []
    real = os.fsync

    def spy(fd: int) -> None:
        synced.append(os.readlink(f"/dev/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", spy)
    assert write(backend, LOG[:3], True) is None
    assert [synced[0], synced[2]] == [str(path.parent.parent), str(path.parent)]
    assert [file.name for file in path.parent.iterdir()] == ["session.jsonl"]


@pytest.mark.parametrize("times", [1, 100])
def test_a_directory_that_vanishes_while_it_is_used_is_made_again(
    backend: JsonlBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A deletion elsewhere removes the emptied directories of a long id."""
    long = Header("x" * 300, 5, {})
    real, left = os.mkdir, times

    def vanishing(name: str, mode: int) -> None:
        nonlocal left
        if not name.endswith("~") and left:
            left -= 1
            os.rmdir(os.path.dirname(name))
        real(name, mode)

    monkeypatch.setattr(os, "mkdir", vanishing)
    (error,) = backend.write([Write(long, LOG[:3], True)])
    if times == 1:
        assert error is None
    else:
        assert "cannot make this directory: No such file" in str(error)


def test_a_publication_that_cannot_be_taken_back_says_so(
    backend: JsonlBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        Cut(5, fail_with(errno.EIO), 2).patch(patch)
        error = str(write(backend, LOG[:3], True))
    for part in ("cannot create (Input/output error)", "nor remove", "may be stored"):
        assert part in error


def test_a_fault_at_any_step_of_a_deletion_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for at in range(10):
        backend = JsonlBackend(tmp_path / str(at))
        assert write(backend, LOG[:3], True) is None
        cut = Cut(at, fail_with(errno.EIO))
        with monkeypatch.context() as patch:
            cut.patch(patch)
            if at < 3:
                with pytest.raises(StoreError, match="cannot delete: Input/output"):
                    backend.delete("s")
                assert len(held(backend).events) == 3
            elif at == 3:
                with pytest.raises(StoreError, match="is deleted, but this cannot be"):
                    backend.delete("s")
                assert backend.read("s") is None
                assert backend.sessions() == []
                assert write(backend, LOG[:3], True) is None
            else:
                assert backend.delete("s")
        if not cut.name:
            break
        seen.append(cut.name)
        assert backend.delete("s")
        assert list((tmp_path / str(at)).iterdir()) == []
        backend.close()
    assert seen == ["rename", "fsync", "fsync", "unlink"]


_FULL = """
import resource, sys
from nestling.session.jsonl_backend_io import JsonlBackend
from nestling.session.store_backend import Write
from nestling.session.event import Event
from nestling.session.header import Header

def event(seq, size):
    return Event(seq, "x", 0, "t" * size, ignorable=True)

backend, header = JsonlBackend(sys.argv[1]), Header("s", 5, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
print(backend.write([Write(Header("big", 5, {}), [event(0, 20_000)], True)])[0])
print(backend.write([Write(header, [event(0, 100)], True)])[0])
print(backend.write([Write(header, [event(1, 100), event(2, 20_000)], False)])[0])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
print(backend.write([Write(header, [event(1, 20_000)], False)])[0])
print(len(backend.read("s").events), backend.read("s").tail, len(backend.sessions()))
"""


def test_a_real_limit_in_the_middle_of_a_batch(tmp_path: Path, path: Path) -> None:
    """F6: the kernel takes a part of the batch and refuses the rest."""
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    big = tmp_path / "big" / "session.jsonl"
    assert (done.stderr, done.stdout.splitlines()) == (
        "",
        [
            f"{big}: cannot create: File too large",
            "None",
            f"{path}: cannot append: File too large",
            "None",
            "2 None 1",
        ],
    )
    assert not list(big.parent.iterdir())


# --- crashes -----------------------------------------------------------------------


def test_a_crash_at_any_step_of_a_publication(tmp_path: Path) -> None:
    """The session is stored whole, or not at all; and then it can be created."""
    root = tmp_path / "store"
    stored = []

    def make() -> None:
        shutil.rmtree(root, ignore_errors=True)

    for _ in crashes(lambda: write(JsonlBackend(root), LOG[:3], True), make):
        backend = JsonlBackend(root)
        found = backend.read("s")
        stored.append(found is not None)
        assert len(backend.sessions()) == stored[-1]
        if found is None:
            assert write(backend, LOG[:3], True) is None
        assert rows(held(backend).events) == rows(LOG[:3])
        assert write(backend, LOG[3:]) is None
        assert [file.name for file in (root / "s").iterdir()] == ["session.jsonl"]
        backend.close()
    assert len(stored) >= 9
    assert stored == sorted(stored)
    assert stored[-2:] == [True, True]  # before the directory's sync, and behind it


def test_a_crash_at_any_step_of_an_append(path: Path, tmp_path: Path) -> None:
    """Before the write, in its middle, before the sync, and before the return."""
    lengths = []

    def append() -> None:
        backend = JsonlBackend(tmp_path)
        held(backend)
        assert write(backend, LOG[3:6]) is None
        os.mkdir(tmp_path / "returned")  # one more call to be killed at

    for _ in crashes(append, lambda: put(path, data(LOG[:3]))):
        backend = JsonlBackend(tmp_path)
        found = held(backend)
        lengths.append(len(found.events))
        assert rows(found.events) == rows(LOG[: lengths[-1]])
        backend.repair(found, LOG[lengths[-1] : 6])
        assert path.read_bytes() == data(LOG[:6])
        assert write(backend, LOG[6:]) is None
        backend.close()
    assert lengths[1:] == [6, 6]
    assert 3 <= lengths[0] < 6


def test_a_crash_at_any_step_of_a_repair(path: Path, tmp_path: Path) -> None:
    """A repair that is done again comes to the same; done twice, too."""
    states = set()

    def repair() -> None:
        backend = JsonlBackend(tmp_path)
        backend.repair(held(backend), LOG[4:6])

    for _ in crashes(repair, lambda: put(path, data(LOG[:4]) + b'{"to')):
        states.add(path.read_bytes())
        for _again in range(2):
            backend = JsonlBackend(tmp_path)
            found = held(backend)
            assert rows(found.events) == rows(LOG[: len(found.events)])
            backend.repair(found, LOG[len(found.events) : 6])
            assert path.read_bytes() == data(LOG[:6])
            backend.close()
    assert len(states) == 4  # the tail, none, half of the closers, all


def test_a_crash_at_any_step_of_a_deletion(tmp_path: Path) -> None:
    """It is stored or not; what a killed one left is removed by the next."""
    root = tmp_path / "store"
    stored = []

    def make() -> None:
        shutil.rmtree(root, ignore_errors=True)
        assert write(JsonlBackend(root), LOG[:3], True) is None

    for _ in crashes(lambda: JsonlBackend(root).delete("s"), make):
        backend = JsonlBackend(root)
        stored.append(backend.read("s") is not None)
        assert len(backend.sessions()) == stored[-1]
        if not stored[-1]:
            assert write(backend, LOG[:3], True) is None
        assert backend.delete("s")
        assert list(root.iterdir()) == []
    assert stored == [True, False, False, False]
