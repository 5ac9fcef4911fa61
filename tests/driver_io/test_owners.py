"""Run directories of drivers that are gone: swept; everybody else's: left alone."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from nestling.driver import owners_io
from nestling.driver.owners_io import Owner, abandoned, owner_of, sweep
from nestling.driver.processes_io import process_of
from nestling.driver.run_directory_io import RunDirectory
from nestling.driver.traces_io import MARK
from support.leaks import reap_quietly
from support.processes import have_ended, needs_linux, pidfds

pytestmark = needs_linux


def _gone() -> int:
    """Return the number of a process that is not there any more."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def _left(box: Path, owner: Owner | bytes, name: str = "nestling-left") -> Path:
    """Make what a driver leaves that is killed."""
    made = box / name
    (made / "work" / "w0").mkdir(parents=True)
    (made / "work" / "w0" / "file").write_text("what a tool wrote")
    (made / "hub.sock").touch()
    text = owner if isinstance(owner, bytes) else msgspec.json.encode(owner)
    (made / "owner").write_bytes(text)
    return made


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A place of its own: others use the box."""
    made = tmp_path / "places"
    made.mkdir()
    return made


@contextmanager
def _sleeper(mark: str | None, **more: object) -> Iterator[int]:
    environment = dict(os.environ) if mark is None else {**os.environ, MARK: mark}
    process = subprocess.Popen(["sleep", "600"], env=environment)
    try:
        yield process.pid
    finally:
        reap_quietly(process)


def test_one_of_a_driver_that_is_gone(places: Path) -> None:
    """With what bears its mark, whoever's number its pid is now."""
    with _sleeper("77-abc.def") as marked, _sleeper("77-abcd.def") as other:
        left = _left(places, Owner(_gone(), 5, "77-abc"))
        with pidfds(marked, other) as fds:
            assert sweep([str(places)]) == [left]
            assert have_ended(fds[:1], 2.0)
            assert not have_ended(fds[1:], 0.0)
    assert list(places.iterdir()) == []


def test_a_pid_that_was_given_away(places: Path) -> None:
    """Whoever has it now is no owner, and is not ended."""
    with _sleeper(None) as pid:
        process = process_of(pid)
        assert process is not None
        kept = _left(places, Owner(pid, process.start, "1-a"), "nestling-kept")
        left = _left(places, Owner(pid, process.start - 1, "1-b"))
        with pidfds(pid) as fds:
            assert sweep([str(places)]) == [left]
            assert not have_ended(fds, 0.0)
    assert list(places.iterdir()) == [kept]


def test_one_that_somebody_has_locked(places: Path) -> None:
    """As a driver does in another container, whose pids mean nothing here."""
    left = _left(places, Owner(_gone(), 5, "1-a"))
    with (left / "owner").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert sweep([str(places)]) == []
    assert sweep([str(places)]) == [left]


def test_what_names_no_owner(places: Path) -> None:
    _left(places, b"not JSON", "nestling-garbage")
    _left(places, b'{"pid": "no"}', "nestling-strange")
    (_left(places, b"", "nestling-bare") / "owner").unlink()
    (places / "nestling-file").touch()
    _left(places, Owner(_gone(), 5, "1-a"), "other-name")
    (places / "nestling-link").symlink_to(places / "other-name")
    before = sorted(places.iterdir())
    assert sweep([str(places), str(places / "nothing")]) == []
    assert sorted(places.iterdir()) == before


def test_one_of_another_user(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _left(places, Owner(_gone(), 5, "1-a"))
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    assert sweep([str(places)]) == []


def test_two_sweepers(places: Path) -> None:
    left = _left(places, Owner(_gone(), 5, "1-a"))
    first = abandoned([str(places)])
    one = next(first)
    assert list(abandoned([str(places)])) == []
    os.close(one.lock)
    assert sweep([str(places)]) == [left]


def test_one_that_was_removed_just_before(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another sweeper: between the opening and the lock."""
    left = _left(places, Owner(_gone(), 5, "1-a"))
    real = fcntl.flock

    def slow(fd: int, how: int) -> None:
        shutil.rmtree(left, ignore_errors=True)
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    assert list(abandoned([str(places)])) == []


def test_one_that_cannot_be_removed_is_found_again(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    left = _left(places, Owner(_gone(), 5, "1-a"))
    with monkeypatch.context() as patch:
        patch.setattr(owners_io, "remove_folder", fail)
        assert sweep([str(places)]) == []
    assert sweep([str(places)]) == [left]


def test_there_is_no_time(places: Path) -> None:
    _left(places, Owner(_gone(), 5, "1-a"))
    assert sweep([str(places)], seconds=-1.0) == []


def test_what_cannot_be_ended_does_not_keep_a_start(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = _left(places, Owner(_gone(), 5, "77-stuck"))
    monkeypatch.setattr(owners_io, "_GONE", 0.02)
    monkeypatch.setattr(owners_io, "end_bearers", lambda _: ["somebody"])
    assert sweep([str(places)]) == [left]


# --- the directory of a run ------------------------------------------------------


def test_a_run_directory_is_its_drivers(box: Path) -> None:
    made, other = RunDirectory(), RunDirectory()
    owner = owner_of(made.path)
    assert owner is not None
    assert owner == owner_of(other.path)
    assert owner.pid == os.getpid()
    assert owner.is_there()
    assert made.path.exists()
    assert list(abandoned([str(box)])) == []
    for each in (made, other):
        each.remove()


def test_the_next_run_sweeps(box: Path) -> None:
    left = _left(box, Owner(_gone(), 5, "1-a"))
    made = RunDirectory()
    assert not left.exists()
    made.remove()
