"""Leases: one writer of a session, also across processes, also after a crash."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from nestling.session import lease_io
from nestling.session.errors import LeaseError, StoreError
from nestling.session.lease_io import FlockLocks, Leases, OfdLocks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store" / ".leases"


@pytest.fixture(params=[OfdLocks, FlockLocks], autouse=True)
def _locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of lock are held to the same."""
    monkeypatch.setattr(lease_io, "_HAS_OFD", request.param is OfdLocks)


@contextmanager
def leases(folder: Path | None) -> Iterator[Leases]:
    opened = Leases(None if folder is None else str(folder))
    try:
        yield opened
    finally:
        opened.close()


_HOLDER = """
import sys
from nestling.session import lease_io
from nestling.session.errors import LeaseError

lease_io._HAS_OFD = sys.argv[3] == "True"
leases = lease_io.Leases(sys.argv[1])
try:
    leases.take(sys.argv[2])
    print("taken", flush=True)
except LeaseError as error:
    print(error, flush=True)
sys.stdin.read()
leases.close()
"""


@contextmanager
def holder(folder: Path, session_id: str = "s") -> Iterator[tuple[Any, str]]:
    """Another process that takes a lease, and what it says then."""
    arguments = [str(folder), session_id, str(lease_io._HAS_OFD)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, *arguments], text=True, **pipes
    ) as child:
        assert child.stdout is not None
        yield child, child.stdout.readline().strip()


def test_nothing_is_written_before_the_first_take(folder: Path) -> None:
    with leases(folder) as ours:
        assert not ours.is_elsewhere("s")
        ours.release("s")
        assert not folder.parent.exists()
        ours.take("s")
        for path, mode in [(folder.parent, 0o700), (folder, 0o700)]:
            assert stat.S_IMODE(path.stat().st_mode) == mode
        (file,) = folder.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        told = json.loads(file.read_text())
        assert (told["id"], told["pid"], sorted(told)) == (
            "s", os.getpid(), ["id", "pid", "started"]
        )  # fmt: skip
    assert list(folder.iterdir()) == []


def test_two_objects_of_one_process_exclude_each_other(folder: Path) -> None:
    """J81."""
    with leases(folder) as ours, leases(folder) as theirs:
        ours.take("s")
        expected = rf"session 's' is being written by another .*\({os.getpid()}\)"
        with pytest.raises(LeaseError, match=expected):
            theirs.take("s")
        assert (ours.is_elsewhere("s"), theirs.is_elsewhere("s")) == (False, True)
        assert theirs.is_elsewhere("s")  # asking took nothing, and freed nothing
        theirs.take("t")
        ours.release("s")
        assert not theirs.is_elsewhere("s")
        theirs.take("s")
        with pytest.raises(LeaseError):
            ours.take("s")


def test_an_object_holds_a_lease_once(folder: Path) -> None:
    for where in (folder, None):
        with leases(where) as ours:
            ours.take("s")
            with pytest.raises(LeaseError, match="'s' is being written here already"):
                ours.take("s")
            ours.release("s")
            ours.release("s")
            ours.take("s")
            ours.close()
            ours.take("s")
            assert not ours.is_elsewhere("s")


def test_without_a_folder_objects_do_not_meet() -> None:
    with leases(None) as ours, leases(None) as theirs:
        ours.take("s")
        theirs.take("s")
        assert not theirs.is_elsewhere("s")


def test_another_process_is_named(folder: Path) -> None:
    """B12."""
    with leases(folder) as ours:
        with holder(folder) as (child, said):
            assert said == "taken"
            assert ours.is_elsewhere("s")
            with pytest.raises(LeaseError, match=f"'s' .* by process {child.pid}$"):
                ours.take("s")
        assert list(folder.iterdir()) == []
        ours.take("s")
        with holder(folder) as (_, said):
            assert said == f"session 's' is being written by process {os.getpid()}"
        with holder(folder, "t") as (_, said):
            assert said == "taken"


def test_a_dead_holders_lease_is_taken_over(folder: Path) -> None:
    """B12: the file stayed, the lock did not."""
    with leases(folder) as ours:
        with holder(folder) as (child, said):
            assert said == "taken"
            child.send_signal(signal.SIGKILL)
            child.wait()
        (file,) = folder.iterdir()
        assert str(child.pid) in file.read_text()
        file.write_text(file.read_text() + "longer than ours")
        assert not ours.is_elsewhere("s")
        ours.take("s")
        assert json.loads(file.read_text())["pid"] == os.getpid()


def test_a_fork_does_not_keep_a_lease_that_was_released(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the lease's file could not be removed."""
    reading, writing = os.pipe()
    with leases(folder) as ours, leases(folder) as theirs:
        ours.take("s")
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent has seen what it wanted to
            os._exit(0)
        assert theirs.is_elsewhere("s")
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", _fails)
            ours.release("s")
        assert len(list(folder.iterdir())) == 1
        assert not theirs.is_elsewhere("s")
        theirs.take("s")
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_a_programs_children_do_not_inherit_it(folder: Path) -> None:
    with leases(folder) as ours:
        ours.take("s")
        assert not any(os.get_inheritable(one.files[0]) for one in ours._held.values())


def test_names_are_bounded_and_harmless(folder: Path) -> None:
    with leases(folder) as ours:
        for session_id in ("..", "x" * 512, "\U0001f600" * 512, "a/b", "\0"):
            ours.take(session_id)
            with (
                leases(folder) as theirs,
                pytest.raises(LeaseError, match="by another"),
            ):
                theirs.take(session_id)
        assert len({file.name for file in folder.iterdir()}) == 5
        assert {len(file.name) for file in folder.iterdir()} == {69}


def test_a_file_that_was_removed_meanwhile_is_opened_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last holder removed it between our opening and our locking it."""
    real, removals = OfdLocks.lock if lease_io._HAS_OFD else FlockLocks.lock, 2

    def racing(fd: int) -> None:
        nonlocal removals
        if removals:
            removals -= 1
            next(folder.iterdir()).unlink()
        real(fd)

    with leases(folder) as ours, leases(folder) as theirs:
        with monkeypatch.context() as patch:
            patch.setattr(ours._locks, "lock", racing)
            ours.take("s")
        assert theirs.is_elsewhere("s")
        with pytest.raises(LeaseError):
            theirs.take("s")
        removals = 1_000_000
        with monkeypatch.context() as patch:
            patch.setattr(ours._locks, "lock", racing)
            with pytest.raises(StoreError, match="its file was removed 64 times"):
                ours.take("t")
        ours.take("t")


def test_a_file_of_somebody_else_is_not_removed(folder: Path) -> None:
    """Where a user removed ours, the one that is there now is another's."""
    with leases(folder) as ours, leases(folder) as theirs, leases(folder) as third:
        ours.take("s")
        next(folder.iterdir()).unlink()
        theirs.take("s")
        ours.release("s")
        assert third.is_elsewhere("s")


def test_a_folder_that_was_removed_is_made_again(folder: Path) -> None:
    with leases(folder) as ours:
        ours.take("s")
        ours.close()
        folder.rmdir()
        ours.take("s")
        next(folder.iterdir()).unlink()
        folder.rmdir()
        ours.release("s")
        ours.take("s")


def test_a_holder_that_has_not_written_yet_is_no_error(folder: Path) -> None:
    with leases(folder) as ours, leases(folder) as theirs:
        ours.take("s")
        for content in ("", '{"pid', "[]", '{"pid": "x"}'):
            next(folder.iterdir()).write_text(content)
            with pytest.raises(
                LeaseError, match="by another process, or another store"
            ):
                theirs.take("s")


@pytest.mark.parametrize("name", ["open", "write", "mkdir", "ftruncate"])
def test_what_fails_is_told_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with leases(folder) as ours:
        with monkeypatch.context() as patch:
            patch.setattr(os, name, _fails)
            with pytest.raises(StoreError, match=r"store.*: Read-only file") as caught:
                ours.take("s")
            assert not isinstance(caught.value, LeaseError)
        assert not folder.exists() or list(folder.iterdir()) == []
        ours.take("s")
        assert len(list(folder.iterdir())) == 1
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", _fails)
            with pytest.raises(
                StoreError, match="cannot look at this lease: Read-only"
            ):
                ours.is_elsewhere("t")
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", _fails)
            ours.release("s")
        with leases(folder) as theirs:
            theirs.take("s")  # the file stayed, the lock did not


def test_a_file_system_without_locks_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with leases(folder) as ours:
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "fcntl", fail)
            patch.setattr(fcntl, "flock", fail)
            with pytest.raises(StoreError, match="cannot take this lease: No locks"):
                ours.take("s")
        ours.take("s")


def test_a_folder_that_is_a_file_is_told(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("text")
    with (
        leases(folder / "below") as ours,
        pytest.raises(StoreError, match=f"^{folder}: is no directory$"),
    ):
        ours.take("s")
    with leases(folder) as ours:
        with pytest.raises(StoreError, match=f"^{folder}: is no directory$"):
            ours.take("s")
        with pytest.raises(StoreError, match=f"^{folder}: is no directory$"):
            ours.is_elsewhere("s")


def test_a_folder_is_found_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7."""
    monkeypatch.chdir(tmp_path)
    with leases(Path("leases")) as ours:
        monkeypatch.chdir("/")
        ours.take("s")
        assert len(list((tmp_path / "leases").iterdir())) == 1


def _fails(*_: Any) -> Any:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


# --- forks, interrupts, what is no file ------------------------------------------


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[None]:
    """A child that does some work, and ends when the block does; it must not fail."""
    (waiting, going), (told, telling) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(going)
            os.close(told)
            work()
            os.write(telling, b"+")
            os.read(waiting, 1)
        finally:
            os._exit(0)
    os.close(waiting)
    os.close(telling)
    try:
        assert os.read(told, 1) == b"+"
        yield
    finally:
        os.close(going)
        os.close(told)
        os.waitpid(child, 0)


@pytest.mark.parametrize("how", ["release", "close"])
def test_a_forked_child_does_not_give_back_what_its_parent_holds(
    folder: Path, how: str
) -> None:
    with leases(folder) as ours, leases(folder) as theirs:
        ours.take("s")

        def work() -> None:
            ours.release("s") if how == "release" else ours.close()

        with forked(work):
            assert len(list(folder.iterdir())) == 1
            assert theirs.is_elsewhere("s")
            with pytest.raises(LeaseError, match=f"this process .{os.getpid()}"):
                theirs.take("s")
        ours.release("s")
        theirs.take("s")


def test_a_forked_child_holds_nothing_of_its_parents(folder: Path) -> None:
    with leases(folder) as ours, leases(folder) as theirs:
        ours.take("s")
        parent = os.getpid()

        def work() -> None:
            assert ours.is_elsewhere("s")
            with pytest.raises(LeaseError, match=f"written by process {parent}"):
                ours.take("s")
            ours.take("t")

        with forked(work):
            assert theirs.is_elsewhere("t")
            assert not ours._held.keys() & {"t"}
        theirs.take("t")  # its holder has ended


def test_a_forked_child_that_closed_its_own_does_not_keep_a_dead_parents(
    folder: Path,
) -> None:
    """The lock ends with the last descriptor."""
    kept: list[int] = []
    with leases(folder) as theirs:
        reading, writing = os.pipe()
        middle = os.fork()
        if middle == 0:  # it dies, and its child goes on
            ours = Leases(str(folder))
            ours.take("s")
            if os.fork() == 0:
                ours.close()
                os.write(writing, b"%d" % os.getpid())
                signal.pause()
            os._exit(0)
        os.waitpid(middle, 0)
        kept.append(int(os.read(reading, 20)))
        try:
            theirs.take("s")
        finally:
            os.kill(kept[0], signal.SIGKILL)
            os.close(reading)
            os.close(writing)


def _interrupted_at(
    patch: pytest.MonkeyPatch, ours: Leases, step: str, is_after: bool
) -> None:
    """Let an interrupt come just before or after a step, once."""
    where: Any = ours._locks if step in ("lock", "unlock") else os
    if step == "describe":
        where, step = lease_io, "_describe"
    real, left = getattr(where, step), 1

    def stepping(*arguments: Any, **more: Any) -> Any:
        nonlocal left
        if not left:
            return real(*arguments, **more)
        left -= 1
        if is_after:
            real(*arguments, **more)
        raise KeyboardInterrupt

    patch.setattr(where, step, stepping)


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("step", ["lock", "fstat", "ftruncate", "describe"])
def test_a_take_that_is_interrupted_leaves_nothing_locked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str, is_after: bool
) -> None:
    with leases(folder) as ours, leases(folder) as theirs:
        with monkeypatch.context() as patch:
            _interrupted_at(patch, ours, step, is_after)
            with pytest.raises(KeyboardInterrupt):
                ours.take("s")
        assert not theirs.is_elsewhere("s")
        theirs.take("s")
        theirs.release("s")
        ours.take("s")


@pytest.mark.parametrize("again", ["release", "close", "take", "is_elsewhere"])
@pytest.mark.parametrize("how", ["release", "close"])
@pytest.mark.parametrize(
    ("step", "is_after"),
    [
        *product(["lock", "stat", "unlink", "unlock"], [False, True]),
        ("close", True),  # forgetting the descriptor and closing it are one step
    ],
)
def test_a_release_that_is_interrupted_can_be_finished(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    is_after: bool,
    how: str,
    again: str,
) -> None:
    with leases(folder) as ours, leases(folder) as theirs:
        ours.take("s")
        with monkeypatch.context() as patch:
            _interrupted_at(patch, ours, step, is_after)
            with pytest.raises(KeyboardInterrupt):
                ours.release("s") if how == "release" else ours.close()
        _call(ours, again)
        if again == "take":
            assert theirs.is_elsewhere("s")
            ours.release("s")
        assert not theirs.is_elsewhere("s")
        theirs.take("s")
        ours.close()  # the descriptor's number may be another file's by now
        assert ours.is_elsewhere("s")
        assert len(list(folder.iterdir())) == 1


def _call(ours: Leases, name: str) -> None:
    ours.close() if name == "close" else getattr(ours, name)("s")


def test_an_interrupt_at_any_line_leaves_nothing_locked(folder: Path) -> None:
    """As a signal would: before each line of taking and of giving back."""
    line, is_due = 0, True
    with leases(folder) as theirs:
        while is_due:
            line += 1
            ours = Leases(str(folder))
            is_due = _traced(ours, line)
            ours.close()
            assert not theirs.is_elsewhere("s"), line
            theirs.take("s")
            theirs.release("s")
    assert line > 40


def _traced(ours: Leases, line: int) -> bool:
    """Take and release; tell whether there were so many lines to be interrupted at."""
    left = line

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != lease_io.__file__:
            return None
        left -= event == "line"
        if event == "line" and left == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ours.take("s")
        ours.release("s")
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "socket"])
def test_what_is_no_file_is_no_lease(folder: Path, kind: str) -> None:
    with leases(folder) as ours:
        ours.take("s")
        (path,) = folder.iterdir()
        ours.release("s")
        aim = folder / "aim"
        with socket.socket(socket.AF_UNIX) as listening:
            if kind == "pipe":
                os.mkfifo(path)
            elif kind == "link":
                path.symlink_to(aim)
            elif kind == "directory":
                path.mkdir()
            else:
                here = os.open(folder, os.O_RDONLY)  # such a path must be short
                listening.bind(f"/proc/self/fd/{here}/{path.name}")
                os.close(here)
            assert not ours.is_elsewhere("s")
            with pytest.raises(StoreError, match="cannot take this lease: ") as caught:
                ours.take("s")
            assert not isinstance(caught.value, LeaseError)
            assert path.name in str(caught.value)
        assert not aim.exists()
        path.rmdir() if kind == "directory" else path.unlink()
        ours.take("s")
