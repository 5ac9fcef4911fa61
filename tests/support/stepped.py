"""A scenario whose steps are cancelled, in every way that one can say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from nestling.harness.scenario import Scenario
from nestling.harness.scenario_io import load_scenario
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject
from support.recordings import Folder, Outcome

AGENT: Final = '''
import asyncio
from pathlib import Path
from nestling.worker import Agent, subagent, subagent_fork, tool


@tool
async def look(where: str) -> str:
    """Look, and leave a mark."""
    with Path(where).open("a") as file:
        file.write("x")
    return "seen"


@tool
async def waits() -> str:
    """Never come to an end."""
    await asyncio.Event().wait()
    return ""


root = Agent("m/root", "You lead.", [look, waits, subagent, subagent_fork])


async def hasty(turn):
    """Give up a stream that does not come on, and ask again."""
    try:
        async with asyncio.timeout(float(turn.options["seconds"])):
            await turn.stream(model="m/slow")
    except TimeoutError:
        turn.append("That took too long.")
    await turn.stream(model="m/quick")
'''

MODEL: Final = """
from nestling.harness import Answer, ScriptedModel
from nestling.harness.scripted_model_io import fork_call, spawn_call, tool_call

MARKS = {marks!r}
LONG = "One two three four five six."
CHILD = [
    Answer("Let me look.", calls=[tool_call("look", {{"where": MARKS}})]),
    LONG,
]


def model():
    return ScriptedModel(
        by_prompt={{
            "say": LONG,
            "again": "Again.",
            "stay": Answer(LONG).hangs(after=4),
            "silent": Answer(LONG).hangs(),
            "look": [
                Answer("I look.", calls=[tool_call("look", {{"where": MARKS}})]),
                "I saw it.",
            ] * 2,
            "both": [
                Answer("I look and wait.", calls=[
                    tool_call("look", {{"where": MARKS}}), tool_call("waits", {{}}),
                ]),
                "Never.",
            ],
            "fail": [Answer(LONG).fails("SERVER", after=3), "Better."],
            "ask": [
                Answer("I ask.", calls=[
                    fork_call("label", "one"), spawn_call("label", "two"),
                ]),
                "They said it.",
            ],
            "one": CHILD,
            "two": CHILD,
        }},
    )
"""


class Stepped(Folder):
    """A scenario's folder, written from steps."""

    def steps(self, *steps: str | tuple[str, JsonObject]) -> None:
        """Write its configuration.

        Args:
            steps: prompts, some with where their turns are cancelled.
        """
        lines = [
            'agent = "agent.py:root"',
            'provider = "model.py:model"',
            'tools = "live"',
        ]
        for step in steps:
            prompt, cancel = (step, None) if isinstance(step, str) else step
            lines += ["[[steps]]", f"prompt = {json.dumps(prompt)}"]
            if cancel is not None:
                pairs = (
                    f"{key} = {json.dumps(value)}" for key, value in cancel.items()
                )
                lines.append(f"cancel = {{ {', '.join(pairs)} }}")
        (self.path / "scenario.toml").write_text("\n".join(lines))

    def replays(self) -> list[Outcome]:
        """Replay it with its agent and as a tape."""
        return [self.replay("--json"), self.replay("--json", "--agent", "tape")]


def stepped(path: Path) -> Stepped:
    """Write the agent and the model of such a scenario."""
    path.mkdir(parents=True)
    folder = Stepped(path, path / "marks")
    (path / "agent.py").write_text(AGENT)
    (path / "model.py").write_text(MODEL.format(marks=str(folder.marks)))
    return folder


def own(scenario: Scenario, path: str) -> list[Event]:
    """The own events of a session."""
    return list(scenario.by_path[path].own_events)


def reasons(folder: Folder, path: str = "/") -> list[str]:
    """Why each turn of a session ended: by whom it was cancelled, or how."""
    ends = [
        event.data["reason"]
        for event in own(load_scenario(folder.path), path)
        if event.type == "turn/end"
    ]
    return [each.get("reason", each)["kind"] for each in ends]


def chunks(folder: Folder, path: str = "/") -> list[int]:
    """How many chunks of each call of a session were served."""
    script = load_scenario(folder.path).by_path[path].script
    return [len(call.entry.chunks) for call in script]
