"""What every launcher promises: one suite, each test once for each of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nestling.driver.exec_process_io import ExecProcess
from nestling.driver.exits import Exit
from nestling.driver.launcher_io import WorkerProcess
from nestling.session.errors import LaunchError
from nestling.wire.launch import decode_launch
from support.launchers import (
    LAUNCHERS,
    SECONDS,
    a_launcher,
    at_work,
    ended,
    request_for,
    stand_in,
)
from support.processes import (
    Lines,
    fifo,
    have_ended,
    needs_linux,
    pidfds,
    wait_stopped,
)

pytestmark = [
    needs_linux,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.parametrize("launcher", LAUNCHERS),
]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """What stand-ins tell."""
    with fifo(tmp_path / "pipe") as lines:
        monkeypatch.setenv("LC_NESTLING_FIFO", str(tmp_path / "pipe"))
        yield lines


async def _next(lines: Lines) -> str:
    """Wait for a line and let the loop turn meanwhile."""
    loop, is_there = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(lines.fd, is_there.set)
    try:
        async with asyncio.timeout(SECONDS):
            await is_there.wait()
    finally:
        loop.remove_reader(lines.fd)
    return lines.next()


def _without_usage(exit: Exit) -> Exit:
    assert exit.usage is not None
    return exit._replace(usage=None)


# --- how workers end ---------------------------------------------------------------


async def test_an_exit_code(launcher: str, tmp_path: Path) -> None:
    async with at_work(a_launcher(launcher, stand_in("quits")), tmp_path) as bench:
        process = await bench.start()
        assert (process.launcher, process.reason) == (launcher, None)
        await ended(process)
        assert process.has_ended()
        assert process.has_failed()
        exit = await bench.exit_of(process)
        assert _without_usage(exit) == Exit(7, None)
    printed = (tmp_path / "w0.log").read_bytes()
    assert printed.startswith(b"first line on stdout\n")
    assert printed.endswith(b"last line on stderr")


async def test_a_good_end(launcher: str, tmp_path: Path) -> None:
    async with at_work(a_launcher(launcher, stand_in("busy")), tmp_path) as bench:
        process = await bench.start()
        await ended(process)
        assert not process.has_failed()
        exit = await bench.exit_of(process)
    assert _without_usage(exit) == Exit(0, None)
    assert exit.usage is not None
    assert exit.usage.user_ms + exit.usage.system_ms >= 90
    assert exit.usage.max_rss_kb > 64_000_000 // 1024


async def test_a_signal_without_a_name(launcher: str, tmp_path: Path) -> None:
    async with at_work(a_launcher(launcher, stand_in("realtime")), tmp_path) as bench:
        exit = await bench.run()
    assert _without_usage(exit) == Exit(None, f"signal {signal.SIGRTMIN + 6}")


async def test_a_program_that_raises(launcher: str, tmp_path: Path) -> None:
    async with at_work(a_launcher(launcher, stand_in("broken")), tmp_path) as bench:
        assert _without_usage(await bench.run()) == Exit(1, None)
    printed = (tmp_path / "w0.log").read_text()
    assert "RuntimeError: the agent cannot be imported" in printed


async def test_a_program_that_is_not_there(launcher: str, tmp_path: Path) -> None:
    async with at_work(a_launcher(launcher, stand_in("nobody")), tmp_path) as bench:
        assert _without_usage(await bench.run()) == Exit(1, None)
    assert (
        "No module named support.stand_ins.nobody" in (tmp_path / "w0.log").read_text()
    )


async def test_an_end_is_told_once_whenever_one_asks(
    launcher: str, tmp_path: Path
) -> None:
    async with at_work(a_launcher(launcher, stand_in("quits")), tmp_path) as bench:
        process = await bench.start()
        await ended(process)
        assert process.has_ended()
        assert _without_usage(await bench.exit_of(process)) == Exit(7, None)


# --- ending workers ----------------------------------------------------------------


async def test_one_that_runs_is_killed(launcher: str, tmp_path: Path) -> None:
    async with at_work(a_launcher(launcher, stand_in("mute")), tmp_path) as bench:
        process = await bench.start()
        assert not process.has_ended()
        assert not process.has_failed()
        process.kill()
        process.kill()
        assert _without_usage(await bench.exit_of(process)) == Exit(None, "SIGKILL")
        process.kill()  # it is gone: nobody else is hit


async def test_one_that_ignores_signals_and_its_child(
    launcher: str, tmp_path: Path, told: Lines
) -> None:
    async with at_work(a_launcher(launcher, stand_in("stubborn")), tmp_path) as bench:
        process = await bench.start()
        child = int((await _next(told)).removeprefix("up "))
        with pidfds(process.pid, child) as fds:
            os.killpg(process.pid, signal.SIGTERM)
            assert not have_ended(fds[:1], 0.0)
            process.kill()
            await bench.exit_of(process)
            # Its child was sent its end, and is gone when the kernel has come to it.
            assert have_ended(fds, 5.0)


@pytest.mark.parametrize("end", ["well", "badly", "never"])
async def test_what_it_leaves_behind_is_gone(
    launcher: str,
    tmp_path: Path,
    told: Lines,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    """A process that forked twice and leads a session is in nobody's group."""
    monkeypatch.setenv("LC_NESTLING_END", end)
    async with at_work(a_launcher(launcher, stand_in("daemon")), tmp_path) as bench:
        process = await bench.start()
        left = int((await _next(told)).removeprefix("left "))
        with pidfds(left) as fds:
            assert not have_ended(fds, 0.0)
            wait_stopped(process.pid)
            os.kill(process.pid, signal.SIGCONT)
            if end == "never":
                process.kill()
            exit = await bench.exit_of(process)
            assert exit.code == {"well": 0, "badly": 1, "never": None}[end]
            assert exit.swept == (end == "badly") or end == "never"
            assert have_ended(fds, SECONDS)  # it was killed: that takes a moment


async def test_one_that_is_given_up(launcher: str, tmp_path: Path) -> None:
    """It ends at its lifeline, which is closed with everything else."""
    async with at_work(a_launcher(launcher), tmp_path) as bench:
        process = await bench.start()
        with pidfds(process.pid) as fds:
            bench.processes.remove(process)
            process.abandon()
            assert have_ended(fds, SECONDS)
        if isinstance(process, ExecProcess):
            process._process.wait()


# --- what workers find ---------------------------------------------------------------

PLANTED = {
    "FAKE_API_KEY": "k",
    "LD_PRELOAD_": "x",
    "PYTHONSTARTUP": "x",
    "PYTHONINSPECT": "1",
    "PYTHONHASHSEED": "77",
    "CLAUDE_CODE_CHILD_SESSION": "1",
    "XLC_ALL": "x",
}
ALLOWED = {
    "PATH", "HOME", "LANG", "TZ", "TMPDIR", "SYSTEMROOT", "VIRTUAL_ENV",
    "COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START",
    "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX",
}  # fmt: skip
OWN = {"PYTHONPATH", "PYTHONHASHSEED", "NESTLING_MARK"}


async def _found(
    launcher: str, folder: Path, told: Lines
) -> tuple[WorkerProcess, dict[str, Any]]:
    entry = stand_in("reporter")
    async with at_work(a_launcher(launcher, entry), folder) as bench:
        process = await bench.start()
        found: dict[str, Any] = json.loads(await _next(told))
        await bench.exit_of(process)
    return process, found


async def test_the_environment_is_an_allow_list(
    launcher: str, tmp_path: Path, told: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    _, found = await _found(launcher, tmp_path, told)
    environment = found["environment"]
    assert not PLANTED.keys() & (environment.keys() - {"PYTHONHASHSEED"})
    assert environment["PYTHONHASHSEED"] == "0"
    others = environment.keys() - ALLOWED - OWN
    assert all(name.startswith("LC_") for name in others)
    assert set(filter(None, map(os.path.abspath, sys.path))) <= set(found["path"])


async def test_descriptors_place_and_group(
    launcher: str, tmp_path: Path, told: Lines
) -> None:
    """Neither the driver's stdin nor what it lets everybody inherit gets there."""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    stdin = os.dup(0)
    os.dup2(reading, 0)
    try:
        process, found = await _found(launcher, tmp_path, told)
    finally:
        os.dup2(stdin, 0)
        for fd in (stdin, reading, writing):
            os.close(fd)
    lifeline = str(found["lifeline"])
    descriptors = found["descriptors"]
    assert descriptors.keys() == {"0", "1", "2", lifeline}
    assert descriptors["0"] == os.devnull
    assert descriptors["1"] == descriptors["2"] == str(tmp_path / "w0.log")
    assert descriptors[lifeline].startswith("pipe:")
    assert found["directory"] == str(tmp_path)
    assert found["group"][:2] == [process.pid, process.pid]
    assert os.getsid(0) != found["group"][2]


async def test_secrets_cannot_be_seen_from_outside(
    launcher: str, tmp_path: Path, told: Lines
) -> None:
    _, found = await _found(launcher, tmp_path, told)
    spec = decode_launch(found["spec"].encode())
    assert spec.token == "s3cret"
    assert spec.parent_pid == found["parent"]
    shown = found["command"], found["environment"], found["outside"]
    assert spec.token not in str(shown)


async def test_the_order_of_sets_is_the_same_in_every_worker(
    launcher: str, tmp_path: Path, told: Lines
) -> None:
    hashes = {(await _found(launcher, tmp_path, told))[1]["hash"] for _ in range(2)}
    assert len(hashes) == 1


async def test_chance_is_not(launcher: str, tmp_path: Path, told: Lines) -> None:
    drawn = {(await _found(launcher, tmp_path, told))[1]["random"] for _ in range(2)}
    assert len(drawn) == 2


async def test_signals_are_as_a_fresh_interpreter_has_them(
    launcher: str, tmp_path: Path, told: Lines
) -> None:
    _, found = await _found(launcher, tmp_path, told)
    assert found["signals"] == {
        "SIGINT": "default_int_handler",
        "SIGTERM": "SIG_DFL",
        "SIGCHLD": "SIG_DFL",
        "SIGPIPE": "SIG_IGN",
        "blocked": [],
    }
    assert found["collects"] is True
    assert found["threads"] == 1


async def test_the_time_zone_and_the_temporary_folder_are_the_drivers(
    launcher: str, tmp_path: Path, told: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may have changed since a template was started."""
    entry = stand_in("reporter")
    async with at_work(a_launcher(launcher, entry), tmp_path) as bench:
        for zone in ("UTC", "Asia/Tokyo"):
            monkeypatch.setenv("TZ", zone)
            folder = tmp_path / zone.replace("/", "-")
            folder.mkdir()
            monkeypatch.setenv("TMPDIR", str(folder))
            process = await bench.start()
            found = json.loads(await _next(told))
            assert found["offset"] == (0 if zone == "UTC" else -9 * 3600)
            assert found["temporary"] == str(folder)
            assert process.launcher == launcher
            await bench.exit_of(process)
    monkeypatch.undo()


# --- many, and none ------------------------------------------------------------------


async def test_many_at_once(launcher: str, tmp_path: Path) -> None:
    """More than one template is asked for at once; an interpreter takes its time."""
    many = 200 if launcher == "template" else 60
    async with at_work(a_launcher(launcher, stand_in("brief")), tmp_path) as bench:
        asked = [bench.asked() for _ in range(many)]
        async with asyncio.timeout(60):
            processes = await asyncio.gather(*asked)
        assert len({process.pid for process in processes}) == many
        assert {process.launcher for process in processes} == {launcher}
        exits = [_without_usage(await bench.exit_of(p)) for p in processes]
        assert set(exits) == {Exit(1, None)}


async def test_a_log_that_cannot_be_written(launcher: str, tmp_path: Path) -> None:
    async with at_work(a_launcher(launcher), tmp_path) as bench:
        (tmp_path / "w0.log").mkdir()
        with pytest.raises(LaunchError, match=r"cannot start a worker: .*directory"):
            await bench.start()
        process = await bench.start()  # the next one is none the worse for it
        assert process.launcher == launcher


async def test_what_has_not_started_is_given_up_at_the_end(
    launcher: str, tmp_path: Path
) -> None:
    starter = a_launcher(launcher, stand_in("mute")).connect()
    started: list[WorkerProcess] = []
    failed: list[LaunchError] = []
    for number in range(40):
        request = request_for(tmp_path, f"w{number}")
        starter.start(request, started.append, failed.append)
    for process in started:
        process.kill()
        process.reap()
    starter.close()
    assert failed == []
