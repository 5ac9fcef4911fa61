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

from nestling.session import jsonl_backend_io
from nestling.session.errors import (
    CorruptError,
    SessionExistsError,
    StoreError,
    UnsupportedError,
)
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsonl_backend_io import OPEN_FILES, JsonlBackend
from nestling.session.store_backend import Backend, Held, Write
from nestling.session.writing import encode_header, encode_rows, encode_scalar_rows
from support.session_logs import LogWriter, chunk_event, delta, rows

HEADER = b'{"type":"session","version":0,"id":"s","createdAt":5}\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(root: Path) -> Iterator[JsonlBackend]:
    opened = JsonlBackend(root)
    yield opened
    opened.close()


def header(session_id: str = "s", **fields: Any) -> Header:
    return Header(session_id, 5, fields)


def turns(count: int, text: str = "hello") -> list[Event]:
    """Whole turns of three events each."""
    log = LogWriter()
    for _ in range(count):
        log.start_turn()
        log.user(text)
        log.end_turn()
    return log.events


def create(backend: Backend, events: list[Event], session_id: str = "s") -> None:
    assert backend.write([Write(header(session_id), events, True)]) == [None]


def append(backend: Backend, events: list[Event], session_id: str = "s") -> None:
    assert backend.write([Write(header(session_id), events, False)]) == [None]


def refused(
    backend: Backend, events: list[Event], is_new: bool = False, session_id: str = "s"
) -> StoreError:
    (outcome,) = backend.write([Write(header(session_id), events, is_new)])
    assert outcome is not None
    return outcome


def held(backend: Backend, session_id: str = "s") -> Held:
    found = backend.read(session_id)
    assert found is not None
    return found


def put(root: Path, data: bytes, name: str = "s") -> Path:
    """Make a session's file by hand."""
    path = root / name / "session.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


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


# --- headers ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the file is empty"),
        (HEADER[:-1], "without a newline"),
        (HEADER[:20], "without a newline"),
        (b"\n" + HEADER, "not JSON"),
        (b"{\n", "not JSON"),
        (b'[{"version":1}]\n', "expected a JSON object, found an array"),
        (b'{"type":"turn/end","seq":0}\n', 'found type "turn/end"'),
        (HEADER.replace(b'"s"', b"7"), "id must be a string"),
        (HEADER.replace(b'"s"', b'"S"'), "found the header of session 'S'"),
        (HEADER.replace(b',"id":"s"', b""), "found the header of session ''"),
        (HEADER.replace(b"5", b"1.5"), "createdAt must be an integer"),
        (HEADER.replace(b"5", b"-1"), "createdAt must be an integer"),
        (HEADER.replace(b"5", b"9007199254740993"), "beyond"),
        (HEADER.replace(b"5", b"-0.0"), "negative zero"),
        (HEADER.replace(b"5", b'5,"delegationDepth":-0.0'), "negative zero"),
        (HEADER.replace(b"5", b'5,"delegationDepth":"1"'), "delegationDepth must be"),
        (HEADER.replace(b"5", b'5,"agentPreset":1'), "agentPreset must be a string"),
        (HEADER.replace(b"5", b'5,"sandboxMode":1'), "sandboxMode is a retired field"),
    ],
)
def test_a_damaged_header_is_damage(
    backend: JsonlBackend, root: Path, data: bytes, problem: str
) -> None:
    """J7, J9, J13, J33, J37, J41-J47, J49, J71, J73, J74, B14: named, never touched."""
    path = put(root, data + encode_rows(turns(1)) if data.endswith(b"\n") else data)
    before = path.read_bytes()
    for ask in (lambda: backend.read("s"), lambda: backend.read_from("s", 1)):
        with pytest.raises(CorruptError) as caught:
            ask()
        assert str(caught.value).startswith(f"{path}: line 1 (byte 0): ")
        assert problem in str(caught.value)
    assert isinstance(refused(backend, turns(2)[3:]), CorruptError)
    (listed,) = backend.sessions()
    assert (listed.id, listed.header) == ("s", None)
    assert listed.revision == backend.revision("s")
    assert problem in listed.problem
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "data",
    [
        HEADER.replace(b":0,", b":1,"),
        b'{"type":"session","version":2,"id":{"a":[]},"createdAt":null,"x":{}}\n',
        b'{"type":"session","version":"next"}\n',
        b'{"type":"session","version":7,"id":8,"sandboxMode":1}\n',
    ],
)
def test_a_header_of_another_version_is_no_damage(
    backend: JsonlBackend, root: Path, data: bytes
) -> None:
    """J6, J8, J9."""
    path = put(root, data + b"\xff whatever\n")
    with pytest.raises(UnsupportedError, match="session format version") as caught:
        backend.read("s")
    assert str(path) in str(caught.value)
    (listed,) = backend.sessions()
    assert listed.id == "s"
    assert "session format version" in listed.problem
    assert path.read_bytes() == data + b"\xff whatever\n"


def test_a_session_that_cannot_be_read_can_be_deleted_but_not_anothers(
    backend: JsonlBackend, root: Path
) -> None:
    """J33: as where a file system ignores case."""
    put(root, b"{")
    assert backend.delete("s")
    path = put(root, HEADER.replace(b'"s"', b'"S"'))
    with pytest.raises(CorruptError, match="found the header of session 'S'"):
        backend.delete("s")
    assert path.exists()


# --- lists -----------------------------------------------------------------------


def test_a_list_is_ordered_and_reads_only_headers(
    backend: JsonlBackend, root: Path
) -> None:
    """J72, J18: a header longer than a buffer; events are not even looked at."""
    long = "x" * 20_000
    for name in ("b", "a.b", "é", "a" * 300):
        assert backend.write([Write(header(name, cwd=long), turns(1), True)]) == [None]
    with open(root / "b" / "session.jsonl", "ab") as file:
        file.write(b"\xff" + encode_rows(turns(1)))
    listed = backend.sessions()
    assert [one.id for one in listed] == ["a.b", "a" * 300, "b", "é"]
    for one in listed:
        assert one.header is not None
        assert one.header.fields == {"cwd": long}
        assert one.revision == backend.revision(one.id)
    assert held(backend, "é").revision == listed[3].revision


@pytest.mark.parametrize("shift", range(-3, 3))
def test_a_header_may_end_anywhere_in_a_buffer(
    backend: JsonlBackend, root: Path, shift: int
) -> None:
    text = "x" * (jsonl_backend_io._BUFFER - len(HEADER) - len(',"cwd":""') + shift)
    assert backend.write([Write(header(cwd=text), turns(1), True)]) == [None]
    assert [one.problem for one in backend.sessions()] == [""]


def test_what_is_no_session_is_not_listed(backend: JsonlBackend, root: Path) -> None:
    """J68, J76: but a log in a directory that no id has is told of."""
    create(backend, turns(1))
    (root / "empty").mkdir()
    (root / "README").write_text("text")
    (root / "long~").write_text("text")
    (root / ".leases").mkdir()
    (root / "s" / "artifact").mkdir()
    put(root, HEADER, ".deleted-1")
    put(root, HEADER, "lost+found")
    one, other = backend.sessions()
    assert (one.id, one.header, one.problem[-40:]) == (
        "lost+found", None, "'lost+found' is not the path of a session id"[-40:]
    )  # fmt: skip
    assert other.id == "s"


def test_children_are_found_by_their_headers(backend: JsonlBackend, root: Path) -> None:
    for name, parent in [("c", "p"), ("b", "p"), ("d", "x")]:
        told = header(name, parentSession=parent)
        assert backend.write([Write(told, turns(1), True)]) == [None]
    put(root, b"{", "e")
    assert [child.id for child in backend.children("p")] == ["b", "c"]


def test_a_root_that_cannot_be_listed_is_an_error(
    backend: JsonlBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J83, J84, J85, J86."""
    root.write_text("a file")
    for ask in (backend.sessions, lambda: backend.children("p"), lambda: backend.read("s"),
                lambda: backend.revision("s"), lambda: backend.delete("s")):  # fmt: skip
        with pytest.raises(StoreError, match="Not a directory"):
            ask()
    assert "cannot" in str(refused(backend, turns(1), True))
    assert root.read_text() == "a file"
    root.unlink()
    create(backend, turns(1))
    monkeypatch.setattr(os, "listdir", _denied)
    with pytest.raises(StoreError, match="cannot list: Permission denied"):
        backend.sessions()


def _denied(*_: Any) -> Any:
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_session_that_cannot_be_opened_is_listed_with_its_problem(
    backend: JsonlBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J20, J22, J85."""
    create(backend, turns(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", _denied)
        (listed,) = backend.sessions()
        assert listed.problem.endswith("cannot read: Permission denied")
        with pytest.raises(StoreError, match="cannot read: Permission denied"):
            backend.read("s")
    real = os.stat

    def some(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        return (
            _denied() if str(path).endswith("jsonl") else real(path, *arguments, **more)
        )

    monkeypatch.setattr(os, "stat", some)
    (listed,) = backend.sessions()
    assert listed.problem.endswith("Permission denied")
    with pytest.raises(StoreError, match="Permission denied"):
        backend.revision("s")


def test_a_session_deleted_since_it_was_found_is_left_out(
    backend: JsonlBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J21, J23."""
    create(backend, turns(1))
    real = os.open

    def vanish(path: Any, *arguments: Any) -> int:
        (root / "s" / "session.jsonl").unlink(missing_ok=True)
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", vanish)
    assert backend.sessions() == []


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_what_is_no_file_is_refused(
    backend: JsonlBackend, root: Path, kind: str
) -> None:
    path = root / "s" / "session.jsonl"
    path.parent.mkdir(parents=True)
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    with pytest.raises(StoreError, match="no regular file"):
        backend.read("s")
    (listed,) = backend.sessions()
    assert "no regular file" in listed.problem


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
