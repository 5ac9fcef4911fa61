"""Templates that die, stop, or are killed at the worst moment."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anyio
import pytest

from nestling.driver import template_port_io
from nestling.driver.exits import TEMPLATE_LOST, Exit
from nestling.driver.hub_io import Bounds
from nestling.driver.template_io import Template, receive
from nestling.driver.template_launcher_io import TemplateLauncher
from nestling.driver.template_pool_io import TemplateBounds
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from nestling.session.errors import LaunchError
from nestling.wire.messages import Stream, ToHub
from support.launchers import Bench, at_work, stand_in
from support.leaks import is_spare
from support.processes import (
    Lines,
    fifo,
    have_ended,
    needs_linux,
    parent_of,
    pidfds,
    wait_stopped,
)
from support.runs import kinds, on_each_message
from support.scenarios import MIXED, saying

pytestmark = [needs_linux, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

MUTE: Final = stand_in("mute")
LOST: Final = Exit(None, None, cause=TEMPLATE_LOST)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """What stand-ins tell."""
    with fifo(tmp_path / "pipe") as lines:
        monkeypatch.setenv("LC_NESTLING_FIFO", str(tmp_path / "pipe"))
        yield lines


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_stopped(pid)


def _workers(template: int) -> set[int]:
    """The children of a template that are no spares."""
    children = Path(f"/proc/{template}/task/{template}/children").read_text().split()
    return {pid for pid in map(int, children) if not is_spare(pid)}


# --- death -----------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_template_that_is_killed_while_it_waits(
    tmp_path: Path, number: int
) -> None:
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        one = await bench.start()
        os.kill(bench.template, number)
        assert await bench.exit_of(one) == LOST
        assert str(LOST) == "template-lost"
        other = await bench.start()
        assert (other.launcher, other.reason) == ("template", None)
        assert bench.pool.generation == 2


async def test_a_template_that_is_killed_between_two_runs(tmp_path: Path) -> None:
    """No module is to blame: it had imported them all, though not for this run."""
    module = tmp_path / "agent.py"
    module.write_text("")
    with TemplateLauncher(entry=MUTE) as launcher:
        async with at_work(launcher, tmp_path) as bench:
            one = await bench.start(module=str(module))
            assert one.launcher == "template"
            template = bench.template
        os.kill(template, signal.SIGKILL)
        (tmp_path / "other").mkdir()
        async with at_work(launcher, tmp_path / "other") as bench:
            other = await bench.start(module=str(module))
            assert (other.launcher, other.reason) == ("template", None)
            assert bench.template != template


async def test_a_template_with_fifty_workers(tmp_path: Path) -> None:
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        processes = await asyncio.gather(*[bench.asked() for _ in range(50)])
        with pidfds(*[process.pid for process in processes]) as fds:
            os.kill(bench.template, signal.SIGKILL)
            exits = [await bench.exit_of(process) for process in processes]
            assert have_ended(fds, 0.0)
        assert exits == [LOST] * 50
        assert (await bench.start()).launcher == "template"


async def test_what_a_worker_of_it_had_started_ends_too(
    tmp_path: Path, told: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no group of ours, and nobody we know is its parent."""
    monkeypatch.setenv("LC_NESTLING_END", "never")
    launcher = TemplateLauncher(entry=stand_in("daemon"))
    async with at_work(launcher, tmp_path) as bench:
        process = await bench.start()
        with pidfds(int(told.until("left "))) as fds:
            os.kill(bench.template, signal.SIGKILL)
            assert await bench.exit_of(process) == LOST._replace(swept=1)
            assert have_ended(fds, 0.0)


async def test_a_template_that_is_killed_in_mid_fork(tmp_path: Path) -> None:
    """It was asked and had not answered; nobody has read the launch spec."""
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        one = await bench.start()
        template = bench.template
        _stop(template)
        asked = [bench.asked() for _ in range(20)]
        assert len(bench.starter._ports.popitem()[1]._asked) == 16  # type: ignore[attr-defined]
        os.kill(template, signal.SIGKILL)
        others = await asyncio.gather(*asked)
        # What was with the template falls back; what was not has another one.
        assert [p.launcher for p in others] == ["exec"] * 16 + ["template"] * 4
        assert {p.reason for p in others[:16]} == {
            "the template was lost (SIGKILL)",
        }
        assert await bench.exit_of(one) == LOST


async def test_a_fork_that_had_read_its_spec_when_the_template_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been admitted: there is no second process of that launch."""
    take_back = template_port_io._Asked.take_back
    monkeypatch.setattr(
        template_port_io._Asked, "take_back", lambda self: take_back(self) and False
    )
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        await bench.start()
        template = bench.template
        _stop(template)
        asked = bench.asked()
        os.kill(template, signal.SIGKILL)
        with pytest.raises(
            LaunchError, match=r"^template-lost: its worker had started"
        ):
            await asked


async def test_templates_that_are_lost_again_and_again(tmp_path: Path) -> None:
    """Three are replaced within a minute, and not one more; time is the test's."""
    now = [1000.0]
    bounds = TemplateBounds(clock=lambda: now[0])
    launcher = TemplateLauncher(entry=MUTE, bounds=bounds)
    async with at_work(launcher, tmp_path) as bench:
        for _ in range(3):
            await _lose(bench)
        now[0] += 60
        for _ in range(3):
            await _lose(bench)
        process = await bench.start()
        assert process.launcher == "template"
        os.kill(bench.template, signal.SIGKILL)
        await bench.exit_of(process)
        now[0] += 3600
        last = await bench.start()
        assert last.launcher == "exec"
        assert last.reason == (
            "4 templates were lost within 60 s; the last one: "
            "the template was lost (SIGKILL)"
        )
        assert bench.pool.generation == 7


async def _lose(bench: Bench) -> None:
    process = await bench.start()
    assert process.launcher == "template"
    os.kill(bench.template, signal.SIGKILL)
    await bench.exit_of(process)


async def test_a_template_that_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nestling.driver.template_io.ENTRY", "no.such.template")
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        process = await bench.start()
        assert process.launcher == "exec"
        assert process.reason is not None
        assert process.reason.startswith("4 templates were lost within 60 s; ")
        assert "No module named 'no'" in process.reason


# --- silence -----------------------------------------------------------------------


async def test_a_fork_that_is_not_answered(tmp_path: Path) -> None:
    """Taken back, so that a late one finds nothing; who runs is left alone."""
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        one = await bench.start()
        template = bench.template
        _stop(template)
        with bench.impatient(fork=0.2):
            late = await bench.start()
        assert late.launcher == "exec"
        assert late.reason == "the template did not fork within 0.2 s"
        new = await bench.start()
        assert new.launcher == "template"
        assert bench.template != template
        os.kill(template, signal.SIGCONT)
        # It answers now, and the fork it had made finds no spec.
        assert not one.has_ended()
        one.kill()
        exit = await bench.exit_of(one)
        assert exit.signal == "SIGKILL"


async def test_a_late_fork_ends_by_itself(tmp_path: Path) -> None:
    async with at_work(TemplateLauncher(), tmp_path) as bench:
        one = await bench.start()
        old, template = bench.pool._current, bench.template
        _stop(template)
        with bench.impatient(fork=0.2):
            late = await bench.start()
        assert late.launcher == "exec"
        os.kill(template, signal.SIGCONT)
        # It goes through its requests in order, so that a fork for this one was made.
        bench.pool._current = old
        probe = await bench.start()
        bench.pool._current = None
        assert probe.launcher == "template"
        with pidfds(*(_workers(template) - {one.pid, probe.pid})) as fds:
            assert have_ended(fds, 20)
        assert not one.has_ended()


async def test_a_template_that_never_gets_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even its own modules load; here it is stopped before they do."""
    start = Template.__init__

    def stopped(self: Template, *arguments: object) -> None:
        start(self, *arguments)  # type: ignore[arg-type]
        os.kill(self.pid, signal.SIGSTOP)

    monkeypatch.setattr(Template, "__init__", stopped)
    bounds = TemplateBounds(warm=0.1)
    async with at_work(TemplateLauncher(entry=MUTE, bounds=bounds), tmp_path) as bench:
        for process in await asyncio.gather(bench.asked(), bench.asked()):
            assert process.launcher == "exec"
            assert process.reason == "the template was not ready within 0.1 s"
        assert (await bench.start()).launcher == "exec"
        assert bench.pool.generation == 1  # another one would take as long


async def test_a_template_that_does_not_tell_of_an_end(tmp_path: Path) -> None:
    """It counts as lost, with all that it has forked."""
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        one, other = await bench.start(), await bench.start()
        _stop(bench.template)
        with bench.impatient(exit=0.2):
            one.kill()
            assert await bench.exit_of(one) == LOST
            assert await bench.exit_of(other) == LOST
        assert (await bench.start()).launcher == "template"
        assert bench.pool.generation == 2


async def test_a_run_whose_template_hangs_when_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has said goodbye: that nobody collects its exit is no problem."""

    def on_message(user: str, pid: int, message: ToHub) -> None:
        if isinstance(message, Stream):
            _stop(parent_of(pid))

    on_each_message(monkeypatch, on_message)
    launcher = TemplateLauncher(bounds=TemplateBounds(exit=0.2))
    with anyio.fail_after(20):
        scenario = load_scenario(saying(tmp_path / "one", "yes"))
        report = await replay(scenario, Bounds(15, 60), launcher)
    assert report.problems == ()
    assert report.launcher == "template"


# --- no room -------------------------------------------------------------------------


def _without_descriptors(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive as the kernel does where the table is full."""
    data, fds = receive(sock)
    for fd in fds:
        os.close(fd)
    return data, []


async def test_a_pidfd_for_which_there_was_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_port_io, "receive", _without_descriptors)
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        process = await bench.start()
        assert process.launcher == "template"
        process.kill()
        assert (await bench.exit_of(process)).signal == "SIGKILL"


async def test_a_worker_that_there_is_no_room_to_hold_on_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not started as far as anybody is concerned, and ends by itself."""

    def full(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    problem = "^cannot hold on to a worker: Too many open files$"
    async with at_work(TemplateLauncher(), tmp_path) as bench:
        await bench.start()
        with monkeypatch.context() as patch:
            patch.setattr(template_port_io, "receive", _without_descriptors)
            patch.setattr(os, "pidfd_open", full)
            with pytest.raises(LaunchError, match=problem):
                await bench.start()
        known = {process.pid for process in bench.processes}
        with pidfds(*(_workers(bench.template) - known)) as fds:
            assert have_ended(fds, 20)


# --- whole runs ----------------------------------------------------------------------


async def test_a_run_whose_template_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parent and child die with it; the run says so and ends."""
    killed: list[int] = []

    def on_message(user: str, pid: int, message: ToHub) -> None:
        if user == "w1" and isinstance(message, Stream) and not killed:
            killed.append(parent_of(pid))
            os.kill(killed[0], signal.SIGKILL)

    on_each_message(monkeypatch, on_message)
    with anyio.fail_after(20):
        report = await replay(load_scenario(MIXED), Bounds(15, 60), TemplateLauncher())
    assert killed
    # A child whose parent was found dead first is cancelled; it is dead, too.
    lost = [p for p in report.problems if p.kind == "worker-lost"]
    assert ("worker-lost", "/") in kinds(lost)
    assert all("(template-lost" in problem.message for problem in lost)
    outcome = report.accounts["/"].outcome
    assert outcome is not None
    assert outcome.stop_reason == "error"
