"""Workers that die, wedge or never start: always bounded, always said."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from nestling.driver.hub_io import Bounds
from nestling.driver.run_io import run_tree
from nestling.driver.template_io import Template
from nestling.driver.template_launcher_io import TemplateLauncher
from nestling.harness.ledger import Problem
from nestling.harness.replay_io import replay
from nestling.harness.scenario_io import load_scenario
from nestling.wire.messages import Beat, Events, Hello, Result, Stream, ToHub
from support.launchers import LAUNCHERS, a_launcher, stand_in
from support.processes import needs_linux, wait_stopped
from support.runs import (
    Watched,
    is_logged,
    is_started,
    kinds,
    leaps,
    loaded,
    on_each_message,
    on_each_start,
)
from support.scenarios import MIXED, hanging

pytestmark = [
    needs_linux,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.parametrize("launcher", LAUNCHERS),
]


@pytest.fixture(autouse=True, scope="module")
def _template(box: Path) -> Iterator[None]:
    """One template for all of these tests; what a worker runs is no matter of it."""
    launcher = TemplateLauncher()
    with launcher:
        # It is there before the tests, none of which leaves it behind.
        assert isinstance(launcher._held[0].template_for(""), Template)
        yield


IMPATIENT = Bounds(stall=15.0, timeout=60.0)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


async def _replay_killing(
    patch: pytest.MonkeyPatch,
    launcher: str,
    launch: str,
    when: Callable[[ToHub], bool],
    act: Callable[[int], None] = _kill,
    bounds: Bounds = IMPATIENT,
) -> tuple[tuple[Problem, ...], dict[str, Any]]:
    """Replay the example, and do something to one worker when it says something."""
    done: list[int] = []

    def on_message(user: str, pid: int, message: ToHub) -> None:
        if user == launch and not done and when(message):
            done.append(pid)
            act(pid)

    on_each_message(patch, on_message)
    with anyio.fail_after(20):
        report = await replay(load_scenario(MIXED), bounds, a_launcher(launcher))
    assert done
    return tuple(report.problems), dict(report.accounts)


MOMENTS: dict[str, Callable[[ToHub], bool]] = {
    "after its hello": lambda message: isinstance(message, Hello),
    "at its call": lambda message: isinstance(message, Stream),
    "while it logs an answer": lambda message: (
        isinstance(message, Events) and message.first > 5
    ),
    "before its goodbye": lambda message: isinstance(message, Result),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_killed_child(
    launcher: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    problems, accounts = await _replay_killing(
        monkeypatch, launcher, "w1", MOMENTS[moment]
    )
    assert problems[0].kind == "worker-lost"
    assert problems[0].path == "/t2s1b1"
    assert problems[0].message.startswith("its worker ended (SIGKILL)")
    # The parent was told of an error, which is not what it was told when recorded.
    assert kinds(problems[1:]) == [("log-differs", "/")]
    assert "tool/result" in problems[1].message
    assert accounts["/"].has_settled
    assert accounts["/t2s1b1"].outcome.stop_reason == "error"


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_killed_root(
    launcher: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    problems, accounts = await _replay_killing(
        monkeypatch, launcher, "w0", MOMENTS[moment]
    )
    assert kinds(problems) == [("worker-lost", "/")]
    assert problems[0].message.startswith("its worker ended (SIGKILL)")
    assert accounts["/"].outcome.stop_reason == "error"


async def test_a_killed_fork_leaves_the_others_judged(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems, accounts = await _replay_killing(
        monkeypatch, launcher, "w2", MOMENTS["at its call"]
    )
    assert kinds(problems) == [("worker-lost", "/t2s2b1"), ("log-differs", "/")]
    child = accounts["/t2s1b1"]
    assert child.has_settled
    assert not child.is_different
    assert child.outcome.text == "GULL"


async def test_a_parent_is_told_of_an_error_that_names_the_signal(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_message(user: str, pid: int, message: ToHub) -> None:
        if user == "w1" and isinstance(message, Stream):
            _kill(pid)

    on_each_message(monkeypatch, on_message)
    director = Watched(loaded(tmp_path, "spawn_and_fork"))
    with anyio.fail_after(20):
        await run_tree(director, a_launcher(launcher), IMPATIENT)
    result = next(e for e in director.grown["root"] if e.type == "tool/result")
    (block,) = result.data["message"]["content"]
    assert block["isError"]
    assert "SIGKILL" in str(block["content"])


@pytest.mark.parametrize("launch", ["w0", "w1"])
async def test_a_worker_that_is_killed_before_its_hello(
    launcher: str, monkeypatch: pytest.MonkeyPatch, launch: str
) -> None:
    def on_start(each: str, pid: int) -> None:
        if each == launch:
            _kill(pid)

    on_each_start(monkeypatch, on_start)
    with anyio.fail_after(20):
        report = await replay(load_scenario(MIXED), IMPATIENT, a_launcher(launcher))
    assert report.problems[0].kind == "worker-lost"
    assert "SIGKILL" in report.problems[0].message


async def test_a_stopped_worker_is_a_stall(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[int] = []

    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        wait_stopped(pid)
        stopped.append(pid)

    leaps(monkeypatch, (21.0, lambda _: bool(stopped)))
    problems, _ = await _replay_killing(
        monkeypatch,
        launcher,
        "w1",
        MOMENTS["at its call"],
        stop,
        Bounds(20, 60),
    )
    assert kinds(problems) == [("stall", "/t2s1b1")]
    message = "the replay was ended after 20 s: / waits for its child /t2s1b1; /t2s1b1 "
    assert problems[0].message.startswith(message)


@pytest.mark.parametrize(
    ("bounds", "kind"),
    [(Bounds(20, 600), "stall"), (Bounds(600, 20), "timeout")],
    ids=["stall", "timeout"],
)
async def test_a_hang_is_a_stall_and_a_timeout(
    launcher: str,
    bounds: Bounds,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once all has come that ever will; ``leaps`` says why nothing waits for it."""
    leaps(monkeypatch, (21.0, is_logged("/", 5)))
    with anyio.fail_after(20):
        scenario = load_scenario(hanging(tmp_path))
        report = await replay(scenario, bounds, a_launcher(launcher))
    assert kinds(report.problems) == [(kind, "/")]
    assert report.accounts["/"].logged == 5


async def test_beats_are_no_progress(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that lives and gets nothing for its call is stalled all the same."""
    beats: list[int] = []

    def on_message(user: str, pid: int, message: ToHub) -> None:
        if isinstance(message, Beat):
            beats.append(pid)

    on_each_message(monkeypatch, on_message)
    # Neither leap is as long as the bound; both are, if a beat between them is nothing.
    leaps(monkeypatch, (8.0, is_logged("/", 5)), (8.0, lambda _: bool(beats)))
    with anyio.fail_after(20):
        report = await replay(
            load_scenario(hanging(tmp_path)), Bounds(14, 600), a_launcher(launcher)
        )
    assert kinds(report.problems) == [("stall", "/")]
    assert beats


# --- workers that never get as far ----------------------------------------------


async def _root_lost(
    launcher: str, entry: str, start_timeout: float = 30.0, stall: float = 60.0
) -> str:
    director = Watched(load_scenario(MIXED), start_timeout)
    made = a_launcher(launcher, stand_in(entry))
    with anyio.fail_after(20):
        end = await run_tree(director, made, Bounds(stall, 600))
    assert end.ending == "done"
    (problem,) = director.ledger.problems
    assert (problem.kind, problem.path) == ("worker-lost", "/")
    return problem.message


async def test_a_worker_that_never_says_hello(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaps(monkeypatch, (31.0, is_started("w0")))
    message = await _root_lost(launcher, "mute")
    assert message.startswith("its worker did not start within 30 s (SIGKILL)")


async def test_a_slow_start_is_no_stall(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a bound of its own, which may be the longer one."""
    is_there = is_started("w0")
    leaps(monkeypatch, (100.0, is_there), (25.0, is_there))
    message = await _root_lost(launcher, "mute", 120.0, stall=30.0)
    assert message.startswith("its worker did not start within 120 s (SIGKILL)")


async def test_a_worker_that_prints_garbage_and_quits(
    launcher: str, capfd: pytest.CaptureFixture[str]
) -> None:
    message = await _root_lost(launcher, "quits")
    assert message.startswith(
        "its worker ended (exit code 7: first line on stdout | \\xff\\xfe\x00\x1b[31mred"
        " | \\xc3 | last line on stderr)"
    )
    assert capfd.readouterr() == ("", "")


async def test_a_worker_that_cannot_be_imported(launcher: str) -> None:
    message = await _root_lost(launcher, "broken")
    assert message.startswith("its worker ended (exit code 1: Traceback")
    assert "| RuntimeError: the agent cannot be imported)" in message


async def test_a_worker_that_does_not_exist(launcher: str) -> None:
    message = await _root_lost(launcher, "nobody")
    assert "No module named support.stand_ins.nobody" in message


async def test_a_signal_without_a_name(launcher: str) -> None:
    number = signal.SIGRTMIN + 6
    message = await _root_lost(launcher, "realtime")
    assert message.startswith(f"its worker ended (signal {number})")
