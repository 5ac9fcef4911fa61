"""Stores whose log is being taken into the file, was so in part, or is left as it is."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.processes import needs_linux
from support.session_logs import rows
from support.sqlite_child import MANY
from support.sqlite_processes import child, path
from support.sqlite_stores import held, more, notes, opened, raw

__all__ = ["path"]

WRITTEN = notes(range(MANY), "x" * 1000)


def is_cut(path: Path) -> bool:
    """Tell whether the head counts pages that the file does not have."""
    data = path.read_bytes()
    return int.from_bytes(data[28:32]) * 4096 > len(data)


@needs_linux
@pytest.mark.parametrize("how", ["killed", "full"])
def test_a_checkpoint_that_was_cut_short_is_no_damage(path: Path, how: str) -> None:
    """What the file lacks is in the log still; so SQLite reads it, and so do we."""
    with child("cut_checkpoint", path, how) as writer:
        assert writer.end() == (-signal.SIGXFSZ if how == "killed" else 0)
    assert is_cut(path)
    with opened(path) as backend:
        assert rows(held(backend).events) == rows(WRITTEN)
    with opened(path) as backend:
        more(backend, "s", notes([MANY]))
        assert len(held(backend).events) == MANY + 1
    with raw(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@needs_linux
def test_a_checkpoint_under_way_is_no_damage(path: Path) -> None:
    """Another process has taken a part of the log into the file, and goes on."""
    with child("cut_checkpoint", path, "under way") as writer:
        assert writer.lines.next() == "under way"
        assert is_cut(path)
        with opened(path) as backend:
            assert rows(held(backend).events) == rows(WRITTEN)
            writer.tell()
            assert writer.end() == 0
            assert len(held(backend).events) == MANY + 1


def test_a_store_is_opened_while_another_process_writes_much(path: Path) -> None:
    """At any moment of its checkpoints, over and over until it has ended."""
    with child("write_much", path, "12") as writer:
        assert writer.lines.next() == "ready"
        while writer.process.poll() is None:
            with opened(path, 30) as backend:
                assert [one.id for one in backend.sessions()] == ["s"]
        assert writer.end() == 0
    with opened(path) as backend:
        assert len(held(backend).events) == 1 + 12 * 300
