"""The tree that grows on a terminal, and is gone when the report is printed."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from nestling.driver.instructions import Notice
from nestling.harness.growing_tree_io import GrowingTree
from support.processes import NESTLING, needs_linux
from support.scenarios import MIXED, saying

pytestmark = needs_linux

HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"


@contextmanager
def _terminal(rows: int = 24, columns: int = 80) -> Iterator[tuple[int, list[bytes]]]:
    """Open a terminal; what is written to it can be read once it is closed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    written: list[bytes] = []

    def read() -> None:
        while True:
            try:
                written.append(os.read(master, 4096))
            except OSError:
                return  # nobody holds the other end any more

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield slave, written
    finally:
        os.close(slave)
        reader.join()
        os.close(master)


def _replayed(
    slave: int, *arguments: object, **more: Any
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*NESTLING, "replay", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=slave,
        timeout=30,
        check=False,
        **more,
    )


@pytest.mark.parametrize(("rows", "columns"), [(24, 80), (2, 10)])
def test_it_grows_on_the_terminal_and_is_wiped(rows: int, columns: int) -> None:
    with _terminal(rows, columns) as (slave, written):
        result = _replayed(slave, MIXED)
        before = termios.tcgetattr(slave)
    shown = b"".join(written)
    assert result.returncode == 0
    assert result.stdout.endswith(b"ok: mixed, 3 sessions as recorded (template)\n")
    assert b"\x1b" not in result.stdout
    assert shown.count(HIDE) == shown.count(SHOW) == 1
    assert shown.index(HIDE) < shown.index(SHOW)
    assert before[3] & termios.ECHO
    if columns != 10:
        text = shown.decode()
        for part in ("t2s1b1", "t2s2b1", "completed: GULL"):
            assert part in text
        # After the last drawing every line of it is erased.
        assert shown.rpartition(b"LANTERN")[2].count(b"\x1b[2K") >= 3


def test_nothing_is_drawn_for_a_program(tmp_path: Path) -> None:
    with _terminal() as (slave, written):
        assert _replayed(slave, saying(tmp_path, "yes"), "--json").returncode == 0
    assert written == []


@pytest.mark.parametrize(
    "variables", [{"TERM": "dumb"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}]
)
def test_terminals_that_can_do_little(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    scenario = saying(tmp_path / "one", "naïve")
    with _terminal(0, 0) as (slave, _):
        result = _replayed(slave, scenario, env={**os.environ, **variables})
    assert result.returncode == 0
    assert result.stdout.endswith(b"ok: one, 1 session as recorded (template)\n")


# --- by itself -----------------------------------------------------------------


def _fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_terminal_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with _terminal() as (slave, _), os.fdopen(os.dup(slave), "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with GrowingTree(is_wanted=True) as tree, monkeypatch.context() as patch:
            patch.setattr(Console, "_write_buffer", _fail)
            tree.watch(Notice("/", "starting"))
            tree.watch(Notice("/", "call 1"))


@pytest.mark.parametrize("method", ["__enter__", "__exit__"])
def test_a_terminal_that_was_gone(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    with _terminal() as (slave, _), os.fdopen(os.dup(slave), "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(Live, method, _fail)
        with GrowingTree(is_wanted=True) as tree:
            live = tree._live
            tree.watch(Notice("/", "starting"))
        if live is not None:
            live.stop()


def test_it_is_drawn_so_often_and_not_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes in between is drawn with the next one; time is the test's."""
    now, waiting, drawn = [100.0], list[tuple[float, Callable[[], None]]](), list[str]()
    monkeypatch.setattr(Live, "refresh", lambda self: drawn.append(tree._drawn()))
    with _terminal() as (slave, _), os.fdopen(os.dup(slave), "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        tree: GrowingTree = GrowingTree(
            is_wanted=True,
            clock=lambda: now[0],
            later=lambda *what: waiting.append(what),
        )
        with tree:
            drawn.clear()
            for number in range(100):
                tree.watch(Notice("/", f"call {number}"))
            assert [line.split()[-1] for line in drawn] == ["0"]
            (seconds, action), *others = waiting
            assert (round(seconds, 3), others) == (0.05, [])
            now[0] += seconds
            action()
            assert [line.split()[-1] for line in drawn] == ["0", "99"]
            now[0] += 1
            tree.watch(Notice("/", "call 100"))
            assert drawn[2].endswith("call 100")
            tree.watch(Notice("/", "call 101"))
        count = len(drawn)
        waiting[1][1]()  # it comes when all is over
        assert len(drawn) == count


def test_no_stderr_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with GrowingTree(is_wanted=True) as tree:
        tree.watch(Notice("/", "starting"))


def test_what_agents_say_cannot_move_the_cursor() -> None:
    with GrowingTree(is_wanted=False) as tree:
        tree.watch(Notice("/t1s1b0", "call 1"))
        tree.watch(Notice("/", "completed: a\x1b[2J\nb\ud83d"))
        drawn = tree._drawn().splitlines()
    assert [line.split()[0] for line in drawn] == ["/", "└─"]
    assert drawn[0].endswith("completed: a\\x1b[2J\\nb\\ud83d")


def test_paths_are_ordered_as_the_report_orders_them() -> None:
    tree = GrowingTree(is_wanted=False)
    for path in ("/t10s1b0", "/t2s1b0", "/t2s1b0/t1s1b1", "/"):
        tree.watch(Notice(path, path))
    drawn = [line.split()[-1] for line in tree._drawn().splitlines()]
    assert drawn == ["/", "/t2s1b0", "/t2s1b0/t1s1b1", "/t10s1b0"]
    assert Path(drawn[2]).parent == Path(drawn[1])
