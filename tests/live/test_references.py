"""Agents that cannot be loaded, or whose modules do harm: a fresh interpreter with the
reason, or one clear error; under both launchers, and never a hang."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from nestling.driver import Driver, ExecLauncher, Limits, RunResult, TemplateLauncher
from nestling.driver.exits import Birth
from nestling.driver.launcher_io import Launcher
from nestling.driver.template_pool_io import TemplateBounds
from nestling.harness import ScriptedModel
from support.live import SECONDS

AGENT = """
from nestling.worker import Agent
root = Agent("m/one")
"""

THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""

BOTH = pytest.mark.parametrize("name", ["exec", "template"])


def launcher(name: str) -> Launcher:
    return ExecLauncher() if name == "exec" else TemplateLauncher()


def module(folder: Path, source: str, name: str = "agent.py") -> str:
    """Write an agent module; return its path."""
    path = folder / name
    path.write_text(source)
    return str(path)


async def started(
    reference: str, starts: Launcher, start_timeout: float = 20.0
) -> tuple[RunResult, Birth]:
    """Run an agent; return what it came to, and how its process came to be."""
    driver = Driver(
        providers={"m": ScriptedModel(["hi"])},
        launcher=starts,
        limits=Limits(start_timeout=start_timeout),
    )
    with anyio.fail_after(SECONDS):
        async with driver:
            run = await driver.start(reference, "go")
            result = await run.result()
            await run.close()
    assert run.end is not None
    return result, run.end.births["/"]


@BOTH
async def test_an_agent_in_a_file(tmp_path: Path, name: str) -> None:
    path = module(tmp_path, AGENT)
    result, birth = await started(f"{path}:root", launcher(name))
    assert (result.text, birth.launcher, birth.reason) == ("hi", name, None)


@BOTH
@pytest.mark.parametrize(
    ("source", "attribute", "problem"),
    [
        (AGENT, "rot", "has no attribute 'rot'; did you mean root?"),
        (AGENT, "Agent", "is the class Agent, expected an agent or"),
        ("root = 5", "root", "is 5, expected an agent or"),
        ("def root(turn): ...", "root", "is a plain function, expected"),
        (
            "async def root(): ...",
            "root",
            "is an async function with the parameters ()",
        ),
        (
            "raise ValueError('so')",
            "root",
            "raises when it is imported: ValueError: so",
        ),
        ("raise SystemExit(4)", "root", "exits when it is imported, with 4"),
        ("import no_such_thing", "root", "No module named 'no_such_thing'"),
        ("def", "root", "is not Python: invalid syntax"),
    ],
)
async def test_what_is_no_agent(
    tmp_path: Path, name: str, source: str, attribute: str, problem: str
) -> None:
    path = module(tmp_path, source)
    result, _ = await started(f"{path}:{attribute}", launcher(name))
    assert result.stop_reason == "error"
    assert result.diagnostic is not None
    assert "SIGKILL" not in result.diagnostic
    assert problem in result.diagnostic


@BOTH
@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("/no/such/file.py:x", "agent file /no/such/file.py does not exist"),
        ("no.such:x", "agent module no.such: No module named 'no'"),
    ],
)
async def test_what_is_not_there(name: str, reference: str, problem: str) -> None:
    result, birth = await started(reference, launcher(name))
    assert result.diagnostic is not None
    assert problem in result.diagnostic
    if name == "template":
        assert birth.launcher == "exec"
        assert birth.reason is not None
        assert birth.reason.startswith(problem)


@BOTH
@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            THREAD,
            "started a thread at import",
        ),
        ("import socket\ns = socket.socket()", "opened"),
        ("import os\nos.fork()", "left a process"),
        ("import subprocess\np = subprocess.Popen(['sleep', '99'])", "left a process"),
    ],
    ids=["thread", "socket", "fork", "process"],
)
async def test_a_module_that_does_harm(
    tmp_path: Path, name: str, source: str, told: str
) -> None:
    """It runs in a fresh interpreter, alone, and its processes end with it."""
    path = module(tmp_path, source + AGENT)
    result, birth = await started(f"{path}:root", launcher(name))
    assert result.text == "hi"
    assert birth.launcher == "exec"
    if name == "template" and "os.fork" not in source:
        assert birth.reason is not None
        assert told in birth.reason


@BOTH
async def test_a_module_that_prints(tmp_path: Path, name: str) -> None:
    source = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n"
    path = module(tmp_path, source + AGENT)
    result, birth = await started(f"{path}:root", launcher(name))
    assert (result.text, birth.launcher) == ("hi", name)


@BOTH
async def test_a_module_that_ends_the_process(tmp_path: Path, name: str) -> None:
    path = module(tmp_path, "import os\nos._exit(9)")
    result, birth = await started(f"{path}:root", launcher(name))
    assert result.stop_reason == "error"
    assert result.diagnostic is not None
    assert "exit code 9" in result.diagnostic
    assert birth.launcher == "exec"


@BOTH
async def test_a_module_that_hangs(tmp_path: Path, name: str) -> None:
    """The time that a worker has to start bounds it, whoever imports it."""
    path = module(tmp_path, "import signal\nsignal.pause()")
    result, birth = await started(f"{path}:root", _hasty(name), start_timeout=1.0)
    assert result.stop_reason == "error"
    assert result.diagnostic is not None
    assert "did not start within 1 s" in result.diagnostic
    if name == "exec":
        assert birth.launcher == "exec"


def _hasty(name: str) -> Launcher:
    bounds = TemplateBounds(warm=0.8)
    return ExecLauncher() if name == "exec" else TemplateLauncher(bounds=bounds)


async def test_the_bound_of_a_start_holds_while_a_template_warms(
    tmp_path: Path,
) -> None:
    """The template would be waited for longer than the worker may take."""
    path = module(tmp_path, "import signal\nsignal.pause()")
    starts = TemplateLauncher(bounds=TemplateBounds(warm=2 * SECONDS))
    with anyio.fail_after(SECONDS):
        driver = Driver(launcher=starts, limits=Limits(start_timeout=0.5))
        async with driver:
            run = await driver.start(f"{path}:root", "go")
            result = await run.result()
            assert result.stop_reason == "error"
            assert result.diagnostic is not None
            assert "did not start within 0.5 s" in result.diagnostic


async def test_relative_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the driver: from the working directory; of an agent: from beside its module."""
    monkeypatch.chdir(tmp_path)
    source = """
async def parent(turn):
    result = await turn.delegate("x", agent="other/child.py:child")
    turn.append(result.text)
    await turn.stream(model="m/one")
"""
    (tmp_path / "folder" / "other").mkdir(parents=True)
    module(tmp_path / "folder", source)
    child = "async def child(turn):\n    await turn.stream(model='m/one')"
    module(tmp_path / "folder" / "other", child, "child.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "folder" / "__init__.py").write_text("")
    for reference in ("folder/agent.py:parent", "folder.agent:parent"):
        model = ScriptedModel(["of child", "of parent"])
        with anyio.fail_after(SECONDS):
            async with Driver(providers={"m": model}) as driver:
                run = await driver.start(reference, "go")
                assert (await run.result()).text == "of parent"
                logs = await run.close()
        texts = [
            event.data["content"][0]["text"]
            for event in logs["/"].events
            if event.type == "user/message"
        ]
        assert texts == ["go", "of child"]


async def test_code_that_changes_between_two_starts(tmp_path: Path) -> None:
    """The second one runs the new code, in a fresh interpreter, and says why."""
    path = module(tmp_path, AGENT)
    model = ScriptedModel(["a", "b"])
    with anyio.fail_after(SECONDS):
        async with Driver(providers={"m": model}) as driver:
            first = await driver.start(f"{path}:root", "go")
            assert (await first.result()).text == "a"
            module(tmp_path, AGENT.replace('"m/one"', '"m/changed"'))
            second = await driver.start(f"{path}:root", "go")
            assert (await second.result()).text == "b"
            await first.close()
            await second.close()
    assert [request.model for request in model.requests] == ["one", "changed"]
    assert first.end is not None
    assert second.end is not None
    assert first.end.births["/"].launcher == "template"
    birth = second.end.births["/"]
    assert (birth.launcher, birth.reason) == ("exec", f"code changed on disk: {path}")


async def test_an_environment_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child is not forked into an environment that is not its template's."""
    source = """
async def root(turn):
    if turn.number == 2:
        result = await turn.delegate("x", agent="agent.py:child")
        turn.append(result.stop_reason)

async def child(turn):
    pass
"""
    path = module(tmp_path, source)
    with anyio.fail_after(SECONDS):
        async with Driver() as driver:
            run = await driver.start(f"{path}:root", "go")
            await run.result()
            monkeypatch.setenv("LC_ALL", "C")
            await run.send("on")
            assert (await run.result()).stop_reason == "completed"
            await run.close()
    assert run.end is not None
    births = run.end.births
    assert (births["/"].launcher, births["/"].reason) == ("template", None)
    child = births["/t2s0d0"]
    reason = "the environment differs from the template's in LC_ALL"
    assert (child.launcher, child.reason) == ("exec", reason)


@BOTH
async def test_a_thread_of_a_tool_that_never_ends(tmp_path: Path, name: str) -> None:
    """The session ends, and its process with it, though nobody can end the thread."""
    source = """
import asyncio, threading
from nestling.worker import tool

begun = threading.Event()

@tool
def hangs() -> str:
    begun.set()
    threading.Event().wait()
    return "never"

async def root(turn):
    reply = await turn.stream(model="m/one", tools=[hangs])
    running = asyncio.create_task(turn.run_tools(reply))
    while not begun.is_set():
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
"""
    path = module(tmp_path, source)
    call = {"type": "tool-call", "id": "c", "name": "hangs", "arguments": "{}"}
    with anyio.fail_after(SECONDS):
        model = ScriptedModel([[call]])
        async with Driver(providers={"m": model}, launcher=launcher(name)) as driver:
            run = await driver.start(f"{path}:root", "go")
            assert (await run.result()).stop_reason == "completed"
            logs = await run.close()
    (result,) = [e for e in logs["/"].events if e.type == "tool/result"]
    assert result.data["error"]["code"] == "ABORTED"
