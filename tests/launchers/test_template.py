"""The template process by itself, and what decides whether there is one."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nestling.driver.launcher_io import ExecLauncher, worker_environment
from nestling.driver.launcher_name import LauncherName
from nestling.driver.template_io import ENTRY, receive, socket_pair
from nestling.driver.template_launcher_io import (
    TemplateLauncher,
    launcher_of,
    why_no_template,
)
from nestling.wire.fork import (
    Attach,
    Fork,
    ForkRefused,
    FromTemplate,
    TemplateReady,
    Warm,
    decode_from_template,
    encode_packet,
)
from nestling.worker import kernel_io, prologue_io, template_io
from support.launchers import at_work, stand_in
from support.leaks import reap_quietly
from support.processes import needs_linux

pytestmark = needs_linux


@contextmanager
def _template() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """Start a template; yields it and its control socket."""
    ours, theirs = socket_pair()
    ours.settimeout(20)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", ENTRY, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=worker_environment(os.environ),
            start_new_session=True,
        )
        theirs.close()
        try:
            yield process, ours
        finally:
            reap_quietly(process)


def _next(sock: socket.socket) -> FromTemplate:
    return decode_from_template(receive(sock)[0])


@pytest.mark.parametrize("arguments", [[], ["x"], ["3", "4"], ["-1"]])
def test_it_is_not_started_by_hand(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert template_io.main(["template", *arguments]) == 2
    assert "started by a driver" in capsys.readouterr().err


def test_it_ends_with_its_driver() -> None:
    with _template() as (process, control):
        control.close()
        assert process.wait(20) == 0


@pytest.mark.parametrize("packet", [b"\xff", encode_packet(Attach())])
def test_a_driver_that_talks_nonsense(packet: bytes) -> None:
    with _template() as (process, control):
        socket.send_fds(control, [packet], [control.fileno()])
        assert process.wait(20) == 1
        assert process.stdout is not None
        assert b"WireError" in process.stdout.read()


def test_a_fork_without_its_descriptors() -> None:
    """They did not fit into the template's table."""
    ours, theirs = socket_pair()
    ours.settimeout(20)
    with _template() as (_, control), ours, theirs:
        control.send(encode_packet(Warm([], 10)))
        socket.send_fds(control, [encode_packet(Attach())], [theirs.fileno()])
        assert isinstance(_next(ours), TemplateReady)
        environment = {
            os.fsencode(name): os.fsencode(value)
            for name, value in worker_environment(os.environ).items()
        }
        ours.send(encode_packet(Fork("w0", "x", "", b"/", environment)))
        refused = _next(ours)
    assert isinstance(refused, ForkRefused)
    assert refused.reason.startswith("the template cannot fork: ")
    assert not refused.is_spent


# --- whether there is one ----------------------------------------------------------


def test_by_name() -> None:
    assert isinstance(launcher_of(LauncherName.AUTO), TemplateLauncher)
    assert isinstance(launcher_of(LauncherName.TEMPLATE), TemplateLauncher)
    assert isinstance(launcher_of(LauncherName.EXEC), ExecLauncher)


def _no_pidfd(pid: int) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


MISSING: dict[str, tuple[Any, str, Any, str]] = {
    "Linux": (sys, "platform", "darwin", "a template needs Linux, this is darwin"),
    "pidfds": (
        os,
        "pidfd_open",
        _no_pidfd,
        "there are no pidfds here: Function not implemented",
    ),
}


@pytest.mark.parametrize("what", MISSING)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_system_that_has_not_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Asked for by its name, it is made up for; else nobody mentions it."""
    owner, name, value, reason = MISSING[what]
    launcher = TemplateLauncher(entry=stand_in("brief"))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value)
        assert why_no_template() == reason
        assert isinstance(launcher_of(LauncherName.AUTO), ExecLauncher)
        assert isinstance(launcher_of(LauncherName.TEMPLATE), TemplateLauncher)
        async with at_work(launcher, tmp_path) as bench:
            process = await bench.start()
            assert (process.launcher, process.reason) == ("exec", reason)
            await bench.exit_of(process)
    assert why_no_template() is None


def test_a_python_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert why_no_template() == "this Python knows no pidfds"


# --- small parts -------------------------------------------------------------------


def test_what_it_preloads_starts_no_thread() -> None:
    """The rule that every module of the worker's stack has to keep."""
    code = f"import {ENTRY}, os; print(len(os.listdir('/proc/self/task')))"
    command = [sys.executable, "-P", "-c", code]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"1\n"


@pytest.mark.parametrize(
    ("code", "expected"), [(None, 0), (0, 0), (7, 7), (-1, 255), (256, 0), ("text", 1)]
)
def test_exit_codes_are_an_interpreters(
    code: Any, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prologue_io._exit_code(SystemExit(code)) == expected
    assert capsys.readouterr().err == ("text\n" if code == "text" else "")


def test_children_are_found_and_ended() -> None:
    assert not kernel_io.children()
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    assert kernel_io.children() == {process.pid for process in processes}
    assert kernel_io.has_children()
    kernel_io.end_children()
    assert not kernel_io.has_children()
    for process in processes:
        process.returncode = 0


def test_elsewhere_nothing_is_asked_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_io, "IS_LINUX", False)
    kernel_io.die_with_parent()
    kernel_io.adopt_orphans()
    kernel_io.call_myself("nobody")
    assert kernel_io.children() == set()
    assert kernel_io.thread_count() == 1
