"""The backend of files of lines: directories that somebody else has made, and forks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nestling.session import jsonl_backend_io
from nestling.session.errors import CorruptError, LeaseError, StoreError
from nestling.session.header import Header
from nestling.session.ids import id_parts
from nestling.session.jsonl_backend_io import LONGEST_HEADER, JsonlBackend
from nestling.session.store_backend import Write
from nestling.session.store_io import open_store
from support.jsonl_stores import (
    HEADER,
    append,
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


# --- directories -----------------------------------------------------------------


def test_links_that_lead_in_circles_are_not_followed(
    backend: JsonlBackend, root: Path
) -> None:
    """Two of them make more paths than anybody can walk."""
    create(backend, turns(1))
    for name in ("l~", "m~"):
        (root / name).symlink_to(".")
    (root / "n").symlink_to("n")
    assert [(one.id, one.problem) for one in backend.sessions()] == [("s", "")]


def test_a_session_may_be_kept_elsewhere_by_a_link(
    backend: JsonlBackend, root: Path, tmp_path: Path
) -> None:
    create(backend, turns(1))
    (root / "s").rename(tmp_path / "elsewhere")
    (root / "s").symlink_to(tmp_path / "elsewhere")
    (root / "t").symlink_to("s")
    listed = backend.sessions()
    assert [one.id for one in listed] == ["s", "t"]
    assert listed[0].problem == ""
    assert "expected that of 't'" in listed[1].problem
    assert backend.delete("s")
    assert (tmp_path / "elsewhere" / "session.jsonl").exists()


def test_directories_deeper_than_an_id_can_lead_are_not_walked(
    backend: JsonlBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(backend, turns(1))
    monkeypatch.chdir(root)
    for _ in range(100):
        os.mkdir("~")
        os.chdir("~")
    monkeypatch.chdir(root)
    walked: list[str] = []
    real = os.listdir

    def walking(path: str) -> list[str]:
        walked.append(path)
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", walking)
        assert [(one.id, one.problem) for one in backend.sessions()] == [("s", "")]
    assert len(walked) == len(id_parts("\U0001f600" * 512)) == 28


def test_the_deepest_session_is_listed(tmp_path: Path) -> None:
    """As deep as a path may be here."""
    longest = "\U0001f600" * 370
    backend = JsonlBackend(tmp_path)
    assert backend.write([Write(header(longest), turns(1), True)]) == [None]
    assert [one.id for one in backend.sessions()] == [longest]
    backend.close()


def test_a_directory_that_cannot_be_walked_is_one_bad_entry(
    backend: JsonlBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(backend, turns(1))
    (root / "a~").mkdir()
    (root / "b").mkdir()
    real_list, real_look = os.listdir, os.lstat

    def listing(path: str) -> list[str]:
        return _denied() if path.endswith("a~") else real_list(path)

    def looking(path: str) -> os.stat_result:
        return _denied() if path.endswith("b") else real_look(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listing)
        patch.setattr(os, "lstat", looking)
        one, other = backend.sessions()
    assert (one.id, one.header, one.revision) == ("a~", None, "")
    assert one.problem == f"{root}/a~: cannot list: Permission denied"
    assert (other.id, other.problem) == ("s", "")


def test_paths_that_are_too_long_are_bad_entries(
    backend: JsonlBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(backend, turns(1))
    monkeypatch.chdir(root)
    for _ in range(25):
        os.mkdir("x" * 199 + "~")
        os.chdir("x" * 199 + "~")
    monkeypatch.chdir(root)
    one, other = backend.sessions()
    assert (one.id, one.problem) == ("s", "")
    assert other.problem.endswith("File name too long")


def _denied(*_: Any) -> Any:
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))


# --- headers without an end ------------------------------------------------------


def test_a_header_without_an_end_is_damage(backend: JsonlBackend, root: Path) -> None:
    """Three gigabytes of it: they are not even read."""
    create(backend, turns(1))
    path = put(root, b"", "t")
    os.truncate(path, 3 << 30)
    one, other = backend.sessions()
    assert (one.id, one.problem, other.id, other.header) == ("s", "", "t", None)
    assert f"{path}: line 1 (byte 0): " in other.problem
    assert f"at most {LONGEST_HEADER} bytes" in other.problem
    for ask in (lambda: backend.read("t"), lambda: backend.read_from("t", 0)):
        with pytest.raises(CorruptError, match=f"at most {LONGEST_HEADER} bytes"):
            ask()
    assert isinstance(refused(backend, turns(1)[1:], session_id="t"), CorruptError)
    assert path.stat().st_size == 3 << 30
    assert backend.delete("t")


@pytest.mark.parametrize("buffer", [1, 7, 8192])
def test_the_bound_of_a_header_is_exact(
    backend: JsonlBackend, root: Path, monkeypatch: pytest.MonkeyPatch, buffer: int
) -> None:
    """Whatever is written can be read again; what is longer is not written."""
    monkeypatch.setattr(jsonl_backend_io, "_BUFFER", buffer)
    monkeypatch.setattr(jsonl_backend_io, "LONGEST_HEADER", len(HEADER))
    create(backend, turns(1))
    append(backend, turns(2)[3:])
    assert [one.problem for one in backend.sessions()] == [""]
    monkeypatch.setattr(jsonl_backend_io, "LONGEST_HEADER", len(HEADER) - 1)
    (listed,) = backend.sessions()
    assert f"at most {len(HEADER) - 1} bytes" in listed.problem
    with pytest.raises(CorruptError, match="found no newline in so many"):
        backend.read("s")
    told = refused(backend, turns(1), True, "t")
    assert f"has {len(HEADER)} bytes, expected at most" in str(told)
    assert not (root / "t").exists()


# --- addresses -------------------------------------------------------------------


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "\0"])
def test_a_path_that_no_directory_can_have_is_refused(path: str) -> None:
    for ask in (lambda: JsonlBackend(path), lambda: open_store(f"jsonl:{path}")):
        with pytest.raises(StoreError) as caught:
            ask()
        expected = f"jsonl:{path!r}: expected the path of a directory"
        assert str(caught.value) == expected


def test_a_path_of_bytes_that_are_no_text_is_a_path(tmp_path: Path) -> None:
    backend = JsonlBackend(tmp_path / os.fsdecode(b"\xff"))
    create(backend, turns(1))
    assert [one.id for one in backend.sessions()] == ["s"]
    backend.close()


def test_a_root_that_is_a_file_is_named(root: Path) -> None:
    root.write_text("text")
    with open_store(f"jsonl:{root}") as store:
        for ask in (
            store.sessions,
            lambda: store.load("s"),
            lambda: store.resume("s"),
            lambda: store.create(Header("s", 1, {})),
            lambda: store.delete("s"),
        ):
            with pytest.raises(StoreError, match=f"^{root}: is no directory$"):
                ask()
    assert root.read_text() == "text"


# --- forks -----------------------------------------------------------------------


def test_a_forked_child_may_read_but_not_write(root: Path) -> None:
    with open_store(f"jsonl:{root}") as store:
        store.create(header("new"))
        store.create(header())
        store.append("s", turns(1))
        told = _in_a_child(lambda: _child(root, store))
        assert told == "done"
        store.append("s", turns(2)[3:])
        store.append("new", turns(1))
        with open_store(f"jsonl:{root}") as other:
            assert other.is_live("s")
            assert len(other.inspect("s").events) == 6


def _child(root: Path, store: Any) -> None:
    was = f"^jsonl:{root}: it was opened in the process that this one was forked from"
    for name, events in (("s", turns(2)[3:]), ("new", turns(1))):
        with pytest.raises(StoreError, match=was):
            store.append(name, events)
    assert len(store.inspect("s").events) == 3
    assert [one.id for one in store.sessions()] == ["s"]
    backend = JsonlBackend(root)
    found = held(backend)
    backend._pid = os.getppid()
    with pytest.raises(StoreError, match=was):
        backend.repair(found, [])
    with pytest.raises(StoreError, match=was):
        backend.delete("s")
    store.close()
    with open_store(f"jsonl:{root}") as own:
        with pytest.raises(LeaseError, match=f"by process {os.getppid()}"):
            own.resume("s")
        own.create(header("own"))
        own.append("own", turns(1))


def _in_a_child(work: Any) -> str:
    """Run something in a forked child; return "done", or "" if it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            os.write(writing, b"done")
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading, encoding="utf-8") as told:
        return told.read()
