"""`nestling run`: a live tree from the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner, Result

from nestling.harness import cli
from nestling.session.store_io import open_store
from nestling.session.version import VERSION
from support.examples import FOLDER
from support.leaks import no_leaks
from support.processes import NESTLING, Lines, needs_linux

AGENT: Final = f"{FOLDER / 'mixed' / 'agent.py'}:clerk"
MODEL: Final = f"{FOLDER / 'mixed' / 'model.py'}:model"
TOLD: Final = "Note for later: the harbour code is LANTERN. Answer OK."
ASKED: Final = (
    "Have a fresh helper say GULL, then have one that knows our conversation "
    "name the harbour code. Report both words."
)


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["run", *map(str, arguments)])


def _json(*arguments: object) -> Any:
    return json.loads(_run(*arguments, "--json").stdout)


def _refused(*arguments: object) -> str:
    result = _run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize("launcher", ["exec", "template"])
def test_a_tree_is_run_and_kept(tmp_path: Path, box: Path, launcher: str) -> None:
    store = f"sqlite:{tmp_path / 'runs.db'}"
    options = ("--provider", MODEL, "--store", store, "--launcher", launcher)
    with no_leaks(box):
        ran = _json(AGENT, TOLD, ASKED, *options)
    assert (ran["verdict"], ran["stopReason"]) == ("ok", "completed")
    assert ran["output"] == "The helper said GULL, and the harbour code is LANTERN."
    assert (ran["ending"], ran["losses"], ran["store"]) == ("done", [], store)
    facts = [(s["path"], s["kind"], s["output"]) for s in ran["sessions"][1:]]
    assert facts == [("/t2s1b1", "spawn", "GULL"), ("/t2s2b1", "fork", "LANTERN")]
    assert ran["sessions"][2]["seedLength"] > 0
    with open_store(store) as kept:
        assert {s["id"] for s in ran["sessions"]} == {s.id for s in kept.sessions()}
        assert len(kept.load(ran["sessionId"]).events) == ran["sessions"][0]["events"]


def test_what_a_person_sees() -> None:
    result = _run(AGENT, TOLD, "--provider", f"scripted={MODEL}")
    assert (result.exit_code, result.stderr) == (0, "")
    tree, verdict, _, said = result.stdout.splitlines()
    assert tree.startswith("/ ")
    assert tree.endswith("completed  OK")
    assert verdict.startswith("ok: r-")
    assert said == "OK"


def test_a_turn_that_fails() -> None:
    """The exit code tells; with the reason."""
    result = _run(AGENT, "something else", "--provider", MODEL)
    assert result.exit_code == 1
    assert "failed: r-" in result.stdout
    assert "SCRIPT_EXHAUSTED" in result.stdout
    ran = _json(AGENT, "something else", "--provider", f"other={MODEL}")
    assert (ran["verdict"], ran["stopReason"]) == ("failed", "error")
    assert "no provider is named 'scripted'" in ran["diagnostic"]


@pytest.mark.parametrize(
    ("providers", "said"),
    [
        (["nope:x"], "agent module nope"),
        (["x"], "'x' has no colon"),
        (["=a:b"], "found no name before the equals sign"),
        ([MODEL, MODEL], "a second one for every name"),
        ([f"a={MODEL}", f"a={MODEL}"], "a second one for 'a'"),
        ([AGENT], "expected a provider"),
    ],
)
def test_providers_that_are_none(providers: list[str], said: str) -> None:
    options = [word for each in providers for word in ("--provider", each)]
    assert said in _refused(AGENT, TOLD, *options)


def test_other_bad_input() -> None:
    assert "Missing option '--provider'" in _refused(AGENT, TOLD)
    assert "Missing argument" in _refused(AGENT, "--provider", MODEL)
    assert "no store at" in _refused(
        AGENT, TOLD, "--provider", MODEL, "--store", "bogus"
    )
    assert "has no colon" in _refused("agent", TOLD, "--provider", MODEL)
    result = _run(AGENT.replace("clerk", "nobody"), TOLD, "--provider", MODEL)
    assert result.exit_code == 1
    assert "has no attribute 'nobody'" in result.stdout


def test_modules_of_the_working_directory(tmp_path: Path) -> None:
    """They are found by their names, by the program and by its workers."""
    for name in ("agent", "model"):
        source = FOLDER / "mixed" / f"{name}.py"
        (tmp_path / f"my_{name}.py").write_bytes(source.read_bytes())
    ran = subprocess.run(
        [
            *(sys.executable, "-P", *NESTLING[1:], "run", "my_agent:clerk", TOLD),
            *("--provider", "my_model:model", "--json"),
        ],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=50,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert json.loads(ran.stdout)["output"] == "OK"


@needs_linux
def test_it_is_interrupted(tmp_path: Path, box: Path) -> None:
    """One orderly stop, 130, nothing printed; what was stored is closed."""
    (tmp_path / "waits.py").write_text(
        "import asyncio, sys\n"
        "async def model(request):\n"
        "    print('asked', file=sys.stderr, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "    yield {}\n"
    )
    store = f"jsonl:{tmp_path / 'runs'}"
    with no_leaks(box):
        process = subprocess.Popen(
            [
                *(*NESTLING, "run", AGENT, TOLD, "--store", store),
                *("--provider", f"{tmp_path / 'waits.py'}:model"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        Lines(process.stderr.fileno()).until("asked")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == (b"", b"")
        assert process.returncode == 130
    with open_store(store) as kept:
        (session,) = kept.sessions()
        last = kept.inspect(session.id).events[-1]
    assert (last.type, last.data["reason"]["kind"]) == ("turn/end", "aborted")


def test_the_version() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"nestling {VERSION}\n")
