"""Signals that ask `nestling replay` to stop: one orderly stop, 130, nothing left."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from nestling.session.invariants import log_findings
from nestling.session.store_io import open_store
from support.leaks import no_leaks
from support.processes import (
    NESTLING,
    Lines,
    children_of,
    fifo,
    have_ended,
    needs_linux,
    pidfds,
    spied,
    wait_stopped,
)
from support.scenarios import MIXED, composed, hanging

pytestmark = needs_linux

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
SERVED = "notice / call 1"


@pytest.mark.parametrize("number", STOPS)
def test_a_run_that_is_going_on(
    tmp_path: Path, box: Path, number: signal.Signals
) -> None:
    scenario = hanging(tmp_path)
    with no_leaks(box), spied("replay", scenario, "--json") as (process, lines):
        pid = int(lines.until("pid "))
        lines.until(SERVED)
        with pidfds(pid) as fds:
            process.send_signal(number)
            assert process.communicate(timeout=20) == (b"", b"")
            assert have_ended(fds, 0.0)
        assert process.returncode == 130
        assert not list(box.glob("nestling-*"))


@pytest.mark.parametrize("moment", ["pid ", "notice /t2s1b1 call 1"])
def test_a_tree_that_is_growing(tmp_path: Path, box: Path, moment: str) -> None:
    scenario = composed(tmp_path / "tree", "parallel_children")
    with no_leaks(box), spied("replay", scenario) as (process, lines):
        lines.until(moment)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize(
    ("number", "count"),
    [(signal.SIGINT, 2), (signal.SIGINT, 30), (signal.SIGTERM, 2)],
)
def test_more_signals_change_nothing(
    tmp_path: Path, box: Path, number: signal.Signals, count: int
) -> None:
    """They come while the first one is being obeyed, until the process is gone."""
    with no_leaks(box), spied("replay", hanging(tmp_path)) as (process, lines):
        lines.until(SERVED)
        with pidfds(process.pid) as fds:
            for _ in range(count):
                process.send_signal(number)
                have_ended(fds, 0.01)
        assert process.communicate(timeout=20) == (b"", b"")
        assert process.returncode == 130


NEVER_CLOSED = """
import anyio, time
async def model(request):
    with open({fifo!r}, "w") as told:
        told.write("asked\\n")
    {ends}
    yield {{}}
"""

STAYS = {
    "closes slowly": """
    try:
        yield {"type": "block-end", "index": 0, "block": {"type": "text", "text": "a"}}
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()
""",
    "heeds no cancel": """
    while True:
        try:
            await anyio.sleep_forever()
        except BaseException:
            pass
""",
    "blocks the loop": """
    while True:
        time.sleep(3600)
""",
}
"""Providers that do not end, and how."""


@pytest.mark.parametrize("launcher", ["exec", "template"])
@pytest.mark.parametrize("how", STAYS)
def test_a_later_signal_ends_what_waits_for_a_provider(
    tmp_path: Path, box: Path, how: str, launcher: str
) -> None:
    """The first one waits for it to be closed, which may be for ever.

    One that heeds nothing is left: the process ends without it, when all else is gone.
    """
    scenario = tmp_path / "scenario"
    scenario.mkdir()
    source = NEVER_CLOSED.format(fifo=str(tmp_path / "pipe"), ends=STAYS[how])
    (scenario / "model.py").write_text(source)
    (scenario / "agent.py").write_text(
        "from nestling.worker import Agent\nroot = Agent('m/one')\n"
    )
    (scenario / "scenario.toml").write_text(
        'agent = "agent.py:root"\nprovider = "model.py:model"\nprompts = ["go"]\n'
    )
    before = sorted(scenario.iterdir())
    with no_leaks(box), fifo(tmp_path / "pipe") as pipe:
        process = subprocess.Popen(
            [*NESTLING, "record", str(scenario), "--launcher", launcher],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert pipe.next() == "asked"
        with pidfds(process.pid, *children_of(process.pid)) as fds:
            for _ in range(40):
                process.send_signal(signal.SIGINT)
                if have_ended(fds[:1], 0.4):
                    break
            else:
                process.kill()
            assert have_ended(fds, 0.0), "a worker, a template, a guardian"
        out, err = process.communicate(timeout=20)
        assert out == b""
        if err:  # it took so long that it was said what is waited for
            assert err.startswith(b"leaving a driver waits for what was cancelled: the")
    assert process.returncode == 130
    left = [path for path in scenario.iterdir() if path.name != "__pycache__"]
    assert sorted(left) == before
    assert not list(box.glob("nestling-*"))


TREE = """
from nestling.worker import Agent, subagent
root = Agent("m/one", tools=[subagent])
"""
TREE_MODEL = """
import json
from nestling.harness import Answer, ScriptedModel, tool_call
def delegating(*prompts):
    return Answer("", calls=[
        tool_call("subagent", {"description": "d", "prompt": prompt}) for prompt in prompts
    ])
names = ["go"]
answers = {}
for depth in range(3):
    below = {name: [f"{name} {side}" for side in "lr"] for name in names}
    answers |= {name: [delegating(*below[name])] for name in names}
    names = [each for both in below.values() for each in both]
answers |= {name: [Answer("one two three").hangs(after=3)] for name in names}
model = ScriptedModel(by_prompt=answers)
"""


@pytest.mark.parametrize("launcher", ["exec", "template"])
def test_two_at_once_to_the_group_of_a_tree_of_fifteen(
    tmp_path: Path, box: Path, launcher: str
) -> None:
    """D2: one orderly stop, every log closed once, and nobody is left."""
    (tmp_path / "agent.py").write_text(TREE)
    (tmp_path / "model.py").write_text(TREE_MODEL)
    store = f"jsonl:{tmp_path / 'runs'}"
    arguments = ("run", f"{tmp_path / 'agent.py'}:root", "go", "--store", store)
    asked = ("--provider", f"{tmp_path / 'model.py'}:model", "--launcher", launcher)
    with (
        no_leaks(box),
        spied(*arguments, *asked, start_new_session=True) as (process, lines),
    ):
        pids: set[int] = set()
        leaves: set[str] = set()
        while len(leaves) < 8:
            kind, _, told = lines.next().partition(" ")
            if kind == "pid":
                pids.add(int(told))
            elif told.count("/") == 3 and told.endswith(" call 1"):
                leaves.add(told)
        assert len(pids) == 15
        with pidfds(*pids) as fds:
            os.kill(max(pids), signal.SIGSTOP)  # so that the stop is going on
            wait_stopped(max(pids))
            for _ in range(2):  # those that come at one moment are one
                os.killpg(process.pid, signal.SIGINT)
                assert not have_ended(fds, 0.03)
            os.kill(max(pids), signal.SIGCONT)
            assert process.communicate(timeout=20) == (b"", b"")
            assert have_ended(fds, 0.0)
        assert process.returncode == 130
        assert not list(box.glob("nestling-*"))
    with open_store(store) as kept:
        logs = [kept.load(session.id) for session in kept.sessions()]
    assert len(logs) == 15
    for log in logs:
        assert list(log_findings(log.header, log.events)) == []
        (end,) = [e.data["reason"] for e in log.events if e.type == "turn/end"]
        cause = "user" if log.header.parent_session is None else "parent"
        assert end == {"kind": "aborted", "reason": {"kind": cause}}


def _ignore() -> None:
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    """As under nohup, or for a job in the background of a script."""
    arguments = ("replay", hanging(tmp_path), "--stall", "1")
    with spied(*arguments, preexec_fn=_ignore) as (process, lines):
        lines.until(SERVED)
        for number in STOPS:
            process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, b"")
    assert b"stall /:" in out


# --- before there is a run -----------------------------------------------------


@pytest.mark.parametrize("number", STOPS)
def test_while_the_scenario_is_loaded(tmp_path: Path, number: signal.Signals) -> None:
    """Loading is held up in a file that the program reads; it is a pipe."""
    with fifo(tmp_path / "log") as pipe:
        code = (
            "import os, pathlib, sys; from nestling.harness import tree_commands_io\n"
            "path = sys.argv[1]\n"
            "def load(_):\n"
            "    os.write(2, b'loading\\n')\n"
            "    pathlib.Path(path).read_bytes()\n"
            "tree_commands_io.load_scenario = load\n"
            "sys.argv[1:] = ['replay', path]\n"
            "from nestling.harness.__main__ import main; main()\n"
        )
        process = subprocess.Popen(
            [NESTLING[0], "-c", code, f"/proc/{os.getpid()}/fd/{pipe.fd}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        assert Lines(process.stderr.fileno()).next() == "loading"
        process.send_signal(number)
        assert process.communicate(timeout=20) == (b"", b"")
    assert process.returncode == 130


@pytest.mark.parametrize("number", STOPS)
def test_while_the_program_is_loaded(number: signal.Signals) -> None:
    """The signal comes in the middle of an import, from the import itself."""
    code = (
        "import os, sys, types\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'typer': os.kill(os.getpid(), {number})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv[1:] = ['replay', 'nothing']\n"
        "from nestling.harness.__main__ import main; main()\n"
    )
    result = subprocess.run(
        [NESTLING[0], "-c", code], capture_output=True, timeout=20, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


SWALLOWED = {
    "finalizer": "class It:\n    def __del__(self): stop()\nIt()",
    "name": "class Name:\n    def __set_name__(self, *_): stop()\n"
    "class It:\n    name = Name()",
    "handler": "try:\n    stop()\nexcept BaseException:\n    pass",
    "callback": "import gc\ngc.callbacks.append(lambda *_: stop())\n"
    "gc.collect()\ngc.callbacks.clear()",
}


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("where", SWALLOWED)
@pytest.mark.parametrize("scenario", [MIXED, "nothing"])
def test_a_signal_where_an_exception_is_lost_or_changed(
    number: signal.Signals, where: str, scenario: object
) -> None:
    """Python prints those of finalizers and goes on; some modules catch all."""
    code = (
        "import os, sys\n"
        f"def stop(): os.kill(os.getpid(), {number})\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'typer': exec({SWALLOWED[where]!r}, globals())\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"sys.argv[1:] = ['replay', {str(scenario)!r}]\n"
        "from nestling.harness.__main__ import main; main()\n"
    )
    result = subprocess.run(
        [NESTLING[0], "-c", code], capture_output=True, timeout=20, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


# --- from a terminal -----------------------------------------------------------


def test_ctrl_c_in_a_terminal_reaches_the_driver_only(
    tmp_path: Path, box: Path
) -> None:
    """The terminal signals its foreground group, in which no worker is."""
    master, slave = pty.openpty()
    with (
        no_leaks(box),
        spied(
            "replay",
            hanging(tmp_path),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        ) as (process, lines),
    ):
        os.close(slave)
        pid = int(lines.until("pid "))
        lines.until(SERVED)
        assert os.getpgid(pid) == pid
        assert os.tcgetpgrp(master) == process.pid
        os.write(master, b"\x03\x03")
        assert process.wait(20) == 130
        os.close(master)


def _take_terminal() -> None:
    """Make stdin the controlling terminal of the new session."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))
