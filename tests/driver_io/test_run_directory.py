"""The run directory: where it is made, what is in it, and that it goes away."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from nestling.driver.run_directory_io import RunDirectory
from nestling.session.errors import LaunchError
from nestling.wire.endpoint_io import PATH_CAP, ipc_path
from support.processes import needs_linux


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is set, and the directory for temporary files is a short one."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


def _use_temporary(monkeypatch: pytest.MonkeyPatch, path: str | Path) -> None:
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def _made() -> Path:
    """Make a run directory, look at it, remove it; return where it was."""
    made = RunDirectory()
    try:
        assert stat.S_IMODE(made.path.stat().st_mode) == 0o700
        assert len(os.fsencode(ipc_path(made.endpoint))) <= PATH_CAP
        return made.path.parent
    finally:
        made.remove()
        assert not made.path.exists()


def test_two_are_never_the_same() -> None:
    first, second = RunDirectory(), RunDirectory()
    assert first.path != second.path
    assert sorted(p.name for p in first.path.iterdir()) == ["logs", "owner", "work"]
    for made in (first, second):
        made.remove()
        made.remove()


def test_the_runtime_directory_comes_first(
    box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = box / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert _made() == runtime
    assert list(runtime.iterdir()) == []


@pytest.mark.parametrize("value", ["", "missing", "file"])
def test_a_runtime_directory_that_cannot_be_used(
    box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    (tmp_path / "file").write_bytes(b"")
    runtime = str(tmp_path / value) if value else ""
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert _made() == box


def test_a_directory_whose_path_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    _use_temporary(monkeypatch, long)
    assert _made() != long
    assert list(long.iterdir()) == []


@needs_linux
def test_a_directory_whose_path_is_not_utf_8(
    box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Path(os.fsdecode(os.fsencode(box) + b"/\xff"))
    odd.mkdir()
    _use_temporary(monkeypatch, odd)
    assert _made() != odd
    assert list(odd.iterdir()) == []


def test_a_directory_behind_a_link(
    box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(box)
    _use_temporary(monkeypatch, tmp_path / "link")
    assert _made() == box


def test_no_place_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "gettempdir", fail)
    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    with pytest.raises(LaunchError, match=r"no place .*No space left on device"):
        RunDirectory()


def test_a_place_that_fills_up(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(LaunchError, match="No space left on device"):
        RunDirectory()
    assert not list(box.glob("nestling-*"))


# --- what workers print --------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "tail"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"one\n\n  two  \nthree", "one | two | three"),
        (b"\xff\x00\n" + "é".encode()[:1], "\\xff\x00 | \\xc3"),
        (b"x" * 5000 + b"\nend", "x" * 1996 + " | end"),
    ],
)
def test_the_tail_of_what_a_worker_printed(printed: bytes, tail: str) -> None:
    made = RunDirectory()
    try:
        assert made.tail_of("w0") == ""
        made.log_of("w0").write_bytes(printed)
        assert made.tail_of("w0") == tail
    finally:
        made.remove()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "device"])
def test_what_a_tool_puts_in_the_place_of_its_log(kind: str, tmp_path: Path) -> None:
    """Nobody waits for a pipe that has no writer, or shows what a link leads to."""
    (tmp_path / "secret").write_text("secret")
    made = RunDirectory()
    log = made.log_of("w0")
    try:
        match kind:
            case "pipe":
                os.mkfifo(log)
            case "link":
                log.symlink_to(tmp_path / "secret")
            case "device":
                log.symlink_to("/dev/zero")
            case _:
                log.mkdir()
        assert (made.tail_of("w0"), made.printed_by("w0")) == ("", "")
    finally:
        made.remove()
    assert not made.path.exists()
