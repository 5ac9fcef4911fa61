"""The backend of files of lines: what it keeps, what it refuses, what it lists.

J-numbers: the behaviours that the format's own store is tested for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nestling.session.errors import (
    SessionExistsError,
    StoreError,
)
from nestling.session.jsonl_backend_io import OPEN_FILES, JsonlBackend
from nestling.session.store_backend import Backend, Write
from nestling.session.writing import encode_header, encode_rows, encode_scalar_rows
from support.jsonl_stores import (
    HEADER,
    append,
    create,
    header,
    held,
    refused,
    turns,
)
from support.session_logs import chunk_event, delta, rows


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(root: Path) -> Iterator[JsonlBackend]:
    opened = JsonlBackend(root)
    yield opened
    opened.close()


# --- keeping ---------------------------------------------------------------------


def test_it_is_a_backend(backend: JsonlBackend, root: Path) -> None:
    kept: Backend = backend
    assert kept.name == f"jsonl:{root}"
    assert kept.lease_folder() == f"{root}/.leases"
    assert not kept.shares_commits


def test_nothing_is_written_before_the_first_session(
    backend: JsonlBackend, root: Path
) -> None:
    """J10, J67, J82: a missing root lists nothing, and asking does not make it."""
    assert backend.sessions() == []
    assert backend.read("s") is None
    assert backend.read_from("s", 0) is None
    assert backend.revision("s") is None
    assert not backend.delete("s")
    assert not root.exists()
    root.mkdir()
    assert backend.sessions() == []


def test_a_session_comes_back_as_it_was(backend: JsonlBackend, root: Path) -> None:
    """J16, J48, J68: header, events and their bytes; the log has its own directory."""
    events = turns(3)
    told = header(agentPreset="p", parentSession="é")
    assert backend.write([Write(told, events[:4], True)]) == [None]
    append(backend, events[4:])
    found = held(backend)
    assert (found.header.row(), rows(found.events)) == (told.row(), rows(events))
    assert found.tail is None
    path = root / "s" / "session.jsonl"
    assert path.read_bytes() == encode_header(told) + encode_rows(events)
    assert [file.name for file in (root / "s").iterdir()] == ["session.jsonl"]


def test_only_its_owner_can_read_a_session(backend: JsonlBackend, root: Path) -> None:
    create(backend, turns(1))
    for path, mode in [(root, 0o700), (root / "s", 0o700)]:
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE((root / "s" / "session.jsonl").stat().st_mode) == 0o600


@pytest.mark.parametrize("packs", [True, False])
def test_runs_are_packed_if_they_may(root: Path, packs: bool) -> None:
    """J56, J57, J58, J59, J62: either way it loads alike, also mixed."""
    events = [chunk_event(seq, delta(f"t{seq}")) for seq in range(5)]
    first, second = JsonlBackend(root, packs=packs), JsonlBackend(root, packs=not packs)
    create(first, events)
    encode = encode_rows if packs else encode_scalar_rows
    data = (root / "s" / "session.jsonl").read_bytes()
    assert data == HEADER + encode(events)
    assert data.count(b"\n") == (2 if packs else 6)
    more = [chunk_event(seq, delta(f"t{seq}")) for seq in range(5, 10)]
    append(second, more)
    assert rows(held(first).events) == rows(events + more)
    assert rows(first.read_from("s", 7) or []) == rows(more[2:])
    first.close()
    second.close()


@pytest.mark.parametrize("text", ["\ud83d", "\0", "x" * 1_000_000, "\U0001f600\u2028"])
def test_texts_of_every_kind_survive(backend: JsonlBackend, text: str) -> None:
    """G1, G2, G4."""
    events = turns(2, text)
    create(backend, events[:3])
    append(backend, events[3:])
    assert rows(held(backend).events) == rows(events)


@pytest.mark.parametrize(
    "session_id",
    ["..", ".", "--help", "x" * 300, "é" * 300, "CON", "session.jsonl", "/etc", "a\\b",
     ".leases", "a" * 190 + "session.jsonl" + "b" * 100, "~"],
)  # fmt: skip
def test_any_id_is_one_directory_below_the_root(
    backend: JsonlBackend, root: Path, session_id: str
) -> None:
    """J1, J35: and whatever it is, it can be continued, listed and deleted."""
    for other in ("s", "session.jsonl", "a" * 190, "x" * 299):
        if other != session_id:
            create(backend, turns(1), other)
    create(backend, turns(2)[:3], session_id)
    append(backend, turns(2)[3:], session_id)
    assert len(held(JsonlBackend(root), session_id).events) == 6
    listed = [one.id for one in backend.sessions() if not one.problem]
    assert session_id in listed
    assert listed == sorted(listed)
    assert backend.delete(session_id)
    assert not backend.delete(session_id)
    assert [one.id for one in backend.sessions()] == [
        x for x in listed if x != session_id
    ]
    assert [path.name for path in root.parent.iterdir()] == ["store"]
    assert all(backend.delete(one.id) for one in backend.sessions())
    assert list(root.iterdir()) == []


def test_an_empty_id_or_one_that_is_too_long_is_refused(backend: JsonlBackend) -> None:
    """J3."""
    with pytest.raises(StoreError, match="must not be empty"):
        backend.read("")
    assert "File name too long" in str(refused(backend, turns(1), True, "é" * 9000))


def test_a_relative_root_is_resolved_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J5, B7: a tool that changes the working directory moves no log."""
    monkeypatch.chdir(tmp_path)
    backend = JsonlBackend("store")
    create(backend, turns(2)[:3])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    append(backend, turns(2)[3:])
    assert len(held(backend).events) == 6
    assert not list((tmp_path / "elsewhere").iterdir())
    backend.close()


def test_few_files_are_open_however_many_sessions_there_are(
    backend: JsonlBackend,
) -> None:
    """J36: and none gets another's events."""
    names = [f"s{number}" for number in range(20)]
    before = _descriptors()
    log = turns(3)
    for name in names:
        create(backend, log[:3], name)
    for batch in (log[3:5], log[5:]):
        writes = [Write(header(name), batch, False) for name in names]
        assert backend.write(writes) == [None] * 20
        assert _descriptors() == before + OPEN_FILES
    assert {len(held(backend, name).events) for name in names} == {9}
    backend.close()
    backend.close()
    assert _descriptors() == before
    append(backend, turns(4)[9:], "s3")


def _descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_nothing_opened_is_inherited(
    backend: JsonlBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    real = os.open

    def spy(*arguments: Any) -> int:
        fd = real(*arguments)
        opened.append(os.get_inheritable(fd))
        return fd

    monkeypatch.setattr(os, "open", spy)
    create(backend, turns(2)[:3])
    append(backend, turns(2)[3:])
    backend.sessions()
    held(backend)
    assert len(opened) > 4
    assert not any(opened)


# --- who may write ---------------------------------------------------------------


def test_a_stored_session_is_never_replaced(backend: JsonlBackend, root: Path) -> None:
    """J89."""
    create(backend, turns(1))
    path = root / "s" / "session.jsonl"
    before = path.read_bytes()
    for other in (backend, JsonlBackend(root)):
        error = refused(other, turns(2), True)
        assert isinstance(error, SessionExistsError)
        assert str(error) == f"{path}: this session is stored already"
    assert path.read_bytes() == before
    assert len(list(path.parent.iterdir())) == 1


def test_only_what_continues_the_log_is_written(
    backend: JsonlBackend, root: Path
) -> None:
    """J34: a seq that is stored, or one behind a gap, is refused."""
    log = turns(3)
    assert "not stored" in str(refused(backend, log))
    assert "cannot begin at event 3" in str(refused(backend, log[3:], True))
    assert not root.exists()
    create(backend, log[:3])
    for store in (backend, JsonlBackend(root)):
        for events in (log[2:], log[4:]):
            error = refused(store, events)
            assert "has 3 events, it cannot continue at event" in str(error)
    assert len(held(backend).events) == 3


def test_a_new_process_continues_what_is_stored(
    backend: JsonlBackend, root: Path
) -> None:
    """J87, without a read before; and there is no need for one."""
    log = turns(2)
    create(backend, log[:3])
    other = JsonlBackend(root)
    append(other, log[3:])
    assert rows(held(other).events) == rows(log)
    other.close()


def test_what_somebody_else_wrote_is_not_written_over(
    backend: JsonlBackend, root: Path
) -> None:
    """B12, F5."""
    log = turns(4)
    create(backend, log[:3])
    other = JsonlBackend(root)
    append(other, log[3:6])
    before = (root / "s" / "session.jsonl").read_bytes()
    error = refused(backend, log[3:9])
    assert "somebody else wrote this session" in str(error)
    assert str(root / "s" / "session.jsonl") in str(error)
    assert (root / "s" / "session.jsonl").read_bytes() == before
    held(backend)  # after a look it knows better
    append(backend, log[6:])
    assert "somebody else" in str(refused(other, log[6:]))
    other.close()


@pytest.mark.parametrize("change", ["rewritten", "replaced", "removed", "moved"])
def test_a_file_that_is_another_one_now_is_not_written(
    backend: JsonlBackend, root: Path, change: str
) -> None:
    """B7: also where it was open, and what is written would be nowhere."""
    log = turns(4)
    create(backend, log[:3])
    append(backend, log[3:6])
    path = root / "s" / "session.jsonl"
    data = path.read_bytes()
    if change == "rewritten":
        path.write_bytes(data)
        os.utime(path, ns=(1, 1))
    elif change == "replaced":
        times = path.stat()
        path.rename(path.with_name("old"))
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif change == "removed":
        path.unlink()
    else:
        path.parent.rename(root / "t")
    error = refused(backend, log[6:])
    assert str(path) in str(error)
    assert ("somebody else" in str(error)) == (change[0] == "r" and change != "removed")


def test_a_linked_directory_is_the_same_session(
    backend: JsonlBackend, root: Path, tmp_path: Path
) -> None:
    """J75."""
    create(backend, turns(2)[:3])
    (tmp_path / "alias").symlink_to(root)
    other = JsonlBackend(tmp_path / "alias")
    append(other, turns(2)[3:])
    assert other.revision("s") == backend.revision("s")
    assert len(held(backend).events) == 6
    other.close()


def test_only_a_link_is_deleted_where_one_was_put(
    backend: JsonlBackend, root: Path, tmp_path: Path
) -> None:
    create(backend, turns(1))
    (root / "s").rename(tmp_path / "kept")
    (root / "s").symlink_to(tmp_path / "kept")
    assert backend.delete("s")
    assert list(root.iterdir()) == []
    assert (tmp_path / "kept" / "session.jsonl").exists()


def test_a_deleted_id_can_be_used_afresh(backend: JsonlBackend, root: Path) -> None:
    """J78."""
    create(backend, turns(2)[:3])
    append(backend, turns(2)[3:])
    first = backend.revision("s")
    assert backend.delete("s")
    assert backend.read("s") is None
    assert list(root.iterdir()) == []
    create(backend, turns(1))
    append(backend, turns(2)[3:])
    assert backend.revision("s") != first
    assert len(held(backend).events) == 6


# --- reading a file that moves ---------------------------------------------------


def test_a_read_is_repeated_until_the_file_holds_still(
    backend: JsonlBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J14, J18, J19: events and revision are of one moment."""
    log = turns(4)
    create(backend, log[:3])
    moves = [encode_rows(log[3:6]), encode_rows(log[6:9]), encode_rows(log[9:])]
    real = os.fstat

    def moving(fd: int) -> os.stat_result:
        told = real(fd)
        if moves:
            with open(root / "s" / "session.jsonl", "ab") as file:
                file.write(moves.pop(0))
        return told

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", moving)
        found = held(backend)
    assert len(found.events) == 12
    assert found.revision == backend.revision("s")


def test_a_file_that_never_holds_still_is_an_error(
    backend: JsonlBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(backend, turns(1))
    path = root / "s" / "session.jsonl"
    real = os.fstat

    def growing(fd: int) -> os.stat_result:
        told = real(fd)
        with open(path, "ab") as file:
            file.write(b"x")
        return told

    monkeypatch.setattr(os, "fstat", growing)
    with pytest.raises(StoreError, match="changed during each of 16 reads"):
        backend.read("s")


def test_revisions_are_those_of_the_file(backend: JsonlBackend, root: Path) -> None:
    """J17: whoever asks; and they change with every write."""
    create(backend, turns(2)[:3])
    first = backend.revision("s")
    assert first == JsonlBackend(root).revision("s") == held(backend).revision
    append(backend, turns(2)[3:])
    assert backend.revision("s") != first


def test_a_suffix_is_exact(backend: JsonlBackend, root: Path) -> None:
    log = turns(3)
    create(backend, log[:6])
    other = JsonlBackend(root)
    for store in (backend, other, other):  # the last knows where the log ends
        for seq in range(8):
            assert rows(store.read_from("s", seq) or []) == rows(log[seq:6])
    append(backend, log[6:])
    assert rows(other.read_from("s", 6) or []) == rows(log[6:])
    backend.delete("s")
    assert other.read_from("s", 9) is None


def test_a_suffix_that_is_known_to_be_empty_is_not_read(
    backend: JsonlBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(backend, turns(1))
    monkeypatch.setattr(os, "open", _denied)
    assert backend.read_from("s", 3) == []
    with pytest.raises(StoreError):
        backend.read_from("s", 2)


def _denied(*_: Any) -> Any:
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))
