"""Recordings on disk: what is read, and what a bad one is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from nestling.session.errors import UnreadableError
from nestling.session.recording_io import read_file

_LOG = b'{"type":"session","id":"s"}\n{"type":"x","data":1}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session.jsonl"


def test_a_file_is_read_under_its_name(path: Path) -> None:
    path.write_bytes(_LOG)
    read = read_file(path)
    assert (read.name, read.header.id, len(read.events)) == ("session.jsonl", "s", 1)
    assert read_file(path, "root").place(0) == "root line 2 (event 0)"
    assert path.read_bytes() == _LOG


def test_a_bad_file_is_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"^session\.jsonl: No such file"):
        read_file(path)
    with pytest.raises(UnreadableError, match=r"^root: No such file"):
        read_file(path, "root")
    with pytest.raises(UnreadableError, match="Is a directory"):
        read_file(tmp_path)
    path.write_bytes(_LOG + b"torn")
    with pytest.raises(UnreadableError, match=r"^session\.jsonl line 3: not JSON"):
        read_file(path)
