"""Scenario folders with agents of their own, recorded and replayed in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from typer.testing import CliRunner

from nestling.harness import cli
from nestling.session.jsontext import JsonObject

AGENT: Final = '''
from pathlib import Path
from nestling.worker import Agent, current_turn, subagent, subagent_fork, tool


@tool
def counts(path: str) -> str:
    """Leave a mark for each time that it runs."""
    with Path(path).open("a") as file:
        file.write("x")
    return "counted"


@tool
async def asks(question: str, path: str) -> str:
    """Ask a child, and leave a mark."""
    result = await current_turn().delegate(question, agent="agent.py:helper")
    counts(path)
    return "heard " + result.text


helper = Agent("m/helper", "You help.")
root = Agent("m/root", "You lead.", [counts, asks, subagent, subagent_fork])
other = Agent("m/root", "You lead otherwise.", [counts, asks, subagent, subagent_fork])


async def fails(turn):
    raise ValueError("so")


async def dies(turn):
    import os
    os._exit(5)


async def dies_late(turn):
    await turn.stream(model="m/root")
    await dies(turn)
'''

MODEL: Final = """
import json
from nestling.harness import Answer, ScriptedModel
from nestling.harness.scripted_model_io import fork_call, spawn_call, tool_call

MARKS = {marks!r}


def model():
    return ScriptedModel(
        [
            "I remember.",
            Answer("Let me see.", calls=[
                tool_call("counts", {{"path": MARKS}}),
                tool_call("asks", {{"question": "why?", "path": MARKS}}),
                spawn_call("label", "one"),
                fork_call("label", "two"),
                tool_call("nothing", {{}}),
            ]),
            "Done.",
        ],
        by_prompt={{"why?": "because", "one": "first", "two": "second"}},
    )


def exhausted():
    return ScriptedModel(["only this"])


def raises():
    raise ValueError("no model today")


def makes_nothing():
    return 5


async def hangs(request):
    import asyncio, sys
    print("hangs", file=sys.stderr, flush=True)
    await asyncio.Event().wait()
    yield {{}}


async def no_chunks(request):
    yield 5


constant = 5
print("printed by the model's module")
"""

PATHS: Final = ("/", "/t2s1b2", "/t2s1b3", "/t2s1b4")
"""The sessions of the recording."""


class Outcome(NamedTuple):
    """What a command came to."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object that it printed."""
        return json.loads(self.out)


class Folder(NamedTuple):
    """A scenario's folder.

    Attributes:
        path: the folder.
        marks: the file in which tools leave marks.
    """

    path: Path
    marks: Path

    def configure(self, **changes: Any) -> None:
        """Write its configuration; None leaves a key out."""
        settings: JsonObject = {
            "agent": "agent.py:root",
            "prompts": ["Remember it.", "Go on."],
            "provider": "model.py:model",
            **changes,
        }
        lines = [
            f"{key} = {json.dumps(value)}"
            for key, value in settings.items()
            if value is not None
        ]
        (self.path / "scenario.toml").write_text("\n".join(lines))

    def logs(self) -> dict[str, bytes]:
        """The files of its recording."""
        return {p.name: p.read_bytes() for p in sorted(self.path.glob("*.jsonl*"))}

    def ran(self) -> int:
        """How often tools have left a mark since the last time."""
        if not self.marks.exists():
            return 0
        count = len(self.marks.read_text())
        self.marks.unlink()
        return count

    def record(self, *arguments: str) -> Outcome:
        """Record it by the command line."""
        return command("record", str(self.path), *arguments)

    def replay(self, *arguments: str) -> Outcome:
        """Replay it by the command line."""
        return command("replay", str(self.path), *arguments)


def command(*arguments: str) -> Outcome:
    """Run ``nestling`` in this process."""
    result = CliRunner().invoke(cli.app, arguments)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def new_folder(path: Path) -> Folder:
    """Write the folder of a scenario that can be recorded."""
    path.mkdir(parents=True, exist_ok=True)
    folder = Folder(path, path / "marks")
    (path / "agent.py").write_text(AGENT)
    (path / "model.py").write_text(MODEL.format(marks=str(folder.marks)))
    folder.configure()
    return folder
