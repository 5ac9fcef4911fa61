"""The backend of files of lines: headers it cannot read, and its lists.

J-numbers: the behaviours that the format's own store is tested for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nestling.session import jsonl_backend_io
from nestling.session.errors import (
    CorruptError,
    StoreError,
    UnsupportedError,
)
from nestling.session.jsonl_backend_io import JsonlBackend
from nestling.session.store_backend import Write
from nestling.session.writing import encode_rows
from support.jsonl_stores import (
    HEADER,
    create,
    header,
    held,
    put,
    refused,
    turns,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(root: Path) -> Iterator[JsonlBackend]:
    opened = JsonlBackend(root)
    yield opened
    opened.close()


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
        with pytest.raises(StoreError, match=f"^{root}: is no directory$"):
            ask()
    assert str(refused(backend, turns(1), True)) == f"{root}: is no directory"
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
