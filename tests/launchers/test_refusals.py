"""What a template does not fork for: each a fresh interpreter, with the reason."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import pytest

from nestling.driver.template_launcher_io import TemplateLauncher
from nestling.driver.template_pool_io import TemplateBounds
from support.launchers import at_work, stand_in
from support.processes import fifo, needs_linux

pytestmark = [needs_linux, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

MUTE: Final = stand_in("mute")

THREAD: Final = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""

#: What a module does at import that makes the whole template useless, and what is said.
HARM: Final[dict[str, tuple[str, str]]] = {
    "thread": (THREAD, "started a thread at import"),
    "thread and raises": (f"{THREAD}\nraise ValueError", "started a thread at import"),
    "socket": ("import socket\nkept = socket.socket()", "opened a socket at import"),
    "file": ("kept = open(__file__)", "agent.py open at import"),
    "database": (
        """
import sqlite3
kept = sqlite3.connect(__file__ + '.db')
kept.execute('create table x (y)')
""",
        "agent.py.db open at import",
    ),
    "process": (
        "import subprocess\nkept = subprocess.Popen(['sleep', '600'])",
        "left a process at import",
    ),
    "fork": ("import os\nos.fork()", "left a process at import"),
    "fork that stays": (
        "import os, signal\nif not os.fork():\n    signal.pause()",
        "left a process at import",
    ),
    "signal": (
        "import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "took SIGCHLD at import",
    ),
    "streams": ("import os\nos.close(1)", "closed stdout at import"),
    "denied": ("import grpc", "loaded grpc, which does not bear a fork, at import"),
}

#: What only the module itself suffers from.
FAILURES: Final[dict[str, tuple[str, str]]] = {
    "raises": ("raise ValueError('no')", "raises when it is imported: ValueError: no"),
    "exits": ("import sys\nsys.exit(3)", "exits when it is imported, with 3"),
    "no Python": ("def", "is not Python"),
    "interrupt": ("raise KeyboardInterrupt", "failed to import: KeyboardInterrupt"),
}

#: What is the end of the template itself.
ENDS: Final[dict[str, tuple[str, str]]] = {
    "exit": ("import os\nprint('bye', flush=True)\nos._exit(3)", "(exit code 3: bye)"),
    "kill": ("import os\nos.kill(os.getpid(), 9)", "(SIGKILL)"),
}


def _module(folder: Path, source: str, name: str = "agent") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "grpc.py").write_text("")
    path = folder / f"{name}.py"
    path.write_text(source)
    return str(path)


@pytest.mark.parametrize("case", [*HARM, *ENDS])
async def test_a_module_that_spoils_the_template(tmp_path: Path, case: str) -> None:
    """Its workers are fresh interpreters; all others come from another template."""
    source, reason = {**HARM, **ENDS}[case]
    bad, good = _module(tmp_path / "bad", source), _module(tmp_path / "good", "")
    launcher = TemplateLauncher([bad, good], MUTE)
    async with at_work(launcher, tmp_path) as bench:
        first = await bench.start(module=bad)
        assert first.launcher == "exec"
        assert first.reason is not None
        assert bad in first.reason
        assert reason in first.reason
        for module in (good, ""):
            other = await bench.start(module=module)
            assert (other.launcher, other.reason) == ("template", None)
        assert bench.pool.generation == 2
        again = await bench.start(module=bad)
        assert (again.launcher, again.reason) == ("exec", first.reason)


@pytest.mark.parametrize("case", FAILURES)
async def test_a_module_that_cannot_be_imported(tmp_path: Path, case: str) -> None:
    source, reason = FAILURES[case]
    bad, good = _module(tmp_path / "bad", source), _module(tmp_path / "good", "")
    async with at_work(TemplateLauncher([bad, good], MUTE), tmp_path) as bench:
        first = await bench.start(module=bad)
        assert first.launcher == "exec"
        assert first.reason is not None
        assert first.reason.startswith(f"agent module {bad} {reason}")
        assert (await bench.start(module=good)).launcher == "template"
        assert bench.pool.generation == 1


async def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.py")
    async with at_work(TemplateLauncher([missing, "no.such"], MUTE), tmp_path) as bench:
        one = await bench.start(module=missing)
        other = await bench.start(module="no.such")
    assert one.reason == f"agent file {missing} does not exist"
    assert other.reason is not None
    assert other.reason.startswith("agent module no.such: No module named 'no'")


async def test_a_module_that_hangs(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    source = (
        f"open({str(pipe)!r}, 'w').write('hangs\\n')\nimport signal\nsignal.pause()"
    )
    bad = _module(tmp_path / "bad", source)
    good = _module(tmp_path / "good", "")
    # Long enough for those that do not hang; the other one is not waited for.
    launcher = TemplateLauncher([bad, good], MUTE, TemplateBounds(warm=60.0))
    with fifo(pipe) as told:
        async with at_work(launcher, tmp_path) as bench:
            asked = [bench.asked(module=m) for m in (bad, good, "")]
            await asyncio.to_thread(told.until, "hangs")
            bench.is_over_warming()
            first, *others = [await each for each in asked]
        assert first.launcher == "exec"
        assert first.reason == f"agent module {bad} was not imported within 60 s"
        assert [each.launcher for each in others] == ["template", "template"]


async def test_printing_does_no_harm(tmp_path: Path) -> None:
    source = "import sys\nprint('out')\nprint('err', file=sys.stderr)"
    module = _module(tmp_path / "loud", source)
    launcher = TemplateLauncher([module], stand_in("quits"))
    async with at_work(launcher, tmp_path) as bench:
        process = await bench.start(module=module)
        assert process.launcher == "template"
        await bench.exit_of(process)
    assert (tmp_path / "w0.log").read_bytes().startswith(b"first line on stdout\n")


async def test_a_module_that_ran_a_process_and_waited_for_it(tmp_path: Path) -> None:
    source = "import subprocess\nsubprocess.run(['true'], check=True)"
    module = _module(tmp_path / "fine", source)
    async with at_work(TemplateLauncher([module], MUTE), tmp_path) as bench:
        assert (await bench.start(module=module)).launcher == "template"


async def test_a_thread_that_comes_later(tmp_path: Path) -> None:
    source = f"""
import os
def start():
{THREAD.replace(chr(10), chr(10) + "    ")}
os.register_at_fork(after_in_parent=start)
"""
    module = _module(tmp_path / "late", source)
    async with at_work(TemplateLauncher([module], MUTE), tmp_path) as bench:
        # The first one may come before there is a spare, whose fork starts the thread.
        await bench.start(module=module)
        second = await bench.start(module=module)
        assert second.launcher == "exec"
        assert second.reason == "the template has 2 threads"


#: What every interpreter here does when it starts, and what is said of a template.
STARTS: Final[dict[str, tuple[str, str]]] = {
    "thread": (THREAD, "the template has 2 threads"),
    "stdin": (
        "import os\nos.close(0)",
        "something closed stdin when the template started",
    ),
    "streams": (
        "import os\nos.close(0)\nos.close(1)",
        "something closed stdin when the template started",
    ),
}


@pytest.mark.parametrize("case", STARTS)
async def test_a_start_that_spoils_every_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Another one would be no better."""
    source, reason = STARTS[case]
    _module(tmp_path / "site", source, "sitecustomize")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        for _ in range(3):
            process = await bench.start()
            assert (process.launcher, process.reason) == ("exec", reason)
        assert bench.pool.generation == 1


# --- what differs from the start -----------------------------------------------------


@pytest.mark.parametrize("where", ["agent", "neighbour"])
@pytest.mark.parametrize("change", ["size", "time", "gone"])
async def test_code_that_changed_on_disk(
    tmp_path: Path, where: str, change: str
) -> None:
    """The old workers run on; the next but one comes from a template with the new."""
    folder = tmp_path / "code"
    module = _module(folder, "import neighbour_of_agent")
    (folder / "neighbour_of_agent.py").write_text("x = 1\n")
    changed = folder / ("agent.py" if where == "agent" else "neighbour_of_agent.py")
    async with at_work(TemplateLauncher([module], MUTE), tmp_path) as bench:
        old = await bench.start(module=module)
        assert old.launcher == "template"
        if change == "size":
            changed.write_text(changed.read_text() + "\n")
        elif change == "time":
            os.utime(changed, (1, 1))
        else:
            changed.rename(changed.with_suffix(".txt"))
        second = await bench.start(module=module)
        assert second.launcher == "exec"
        assert second.reason == f"code changed on disk: {changed}"
        third = await bench.start(module="")
        assert third.launcher == "template"
        assert not old.has_ended()
        assert bench.pool.generation == 2


async def test_our_own_code_that_changed_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nestling was upgraded beneath a driver; here it is a file of its namespace."""
    portion = tmp_path / "portion" / "nestling"
    portion.mkdir(parents=True)
    own = portion / "added.py"
    own.write_text("")
    monkeypatch.syspath_prepend(str(portion.parent))
    launcher = TemplateLauncher(["nestling.added"], MUTE)
    async with at_work(launcher, tmp_path) as bench:
        assert (await bench.start()).launcher == "template"
        own.write_text("x = 1")
        assert (await bench.start()).reason == f"code changed on disk: {own}"


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "LC_ALL", "LANG"])
async def test_an_environment_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        assert (await bench.start()).launcher == "template"
        with monkeypatch.context() as patch:
            patch.setenv(name, "C")
            patch.setenv("LC_TIME", "C")  # one that is read when it is needed
            other = await bench.start()
        assert other.launcher == "exec"
        assert other.reason == (
            f"the environment differs from the template's in {name}"
        )
        assert (await bench.start()).launcher == "template"


async def test_a_module_path_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(TemplateLauncher(entry=MUTE), tmp_path) as bench:
        await bench.start()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", [*sys.path, str(tmp_path)])
            other = await bench.start()
        assert other.launcher == "exec"
        assert other.reason is not None
        assert other.reason.endswith("differs from the template's in PYTHONPATH")


# --- several agent modules -------------------------------------------------------------


async def test_neighbours_are_not_mixed_up(tmp_path: Path) -> None:
    """Two agents import modules of one name: each from its own folder, or not here."""
    source = "import helper_of_agent\nassert helper_of_agent.x == {}"
    modules = [
        _module(tmp_path / f"folder{number}", source.format(number))
        for number in range(2)
    ]
    for number in range(2):
        helper = tmp_path / f"folder{number}" / "helper_of_agent.py"
        helper.write_text(f"x = {number}")
    launcher = TemplateLauncher(modules, stand_in("reporter"))
    async with at_work(launcher, tmp_path) as bench:
        one, other = [await bench.start(module=m) for m in modules]
    assert one.launcher == "template"
    assert other.launcher == "exec"
    assert other.reason == (
        f"agent module {modules[1]}: its helper_of_agent.py is loaded from "
        f"{tmp_path / 'folder0' / 'helper_of_agent.py'}"
    )


async def test_a_module_that_nobody_told_of(tmp_path: Path) -> None:
    """It takes another template, which has the earlier ones, too."""
    one = _module(tmp_path / "a", "", "one")
    two = _module(tmp_path / "b", "", "two")
    async with at_work(TemplateLauncher([one], MUTE), tmp_path) as bench:
        old = await bench.start(module=one)
        new = await bench.start(module=two)
        again = await bench.start(module=one)
        assert [p.launcher for p in (old, new, again)] == ["template"] * 3
        assert not old.has_ended()
        assert bench.pool.generation == 2
