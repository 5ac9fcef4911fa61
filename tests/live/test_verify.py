"""Recordings replayed by agents that were changed, across processes, at each level."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from nestling.driver import TemplateLauncher
from nestling.harness import cast_of, load_scenario, record, replay
from nestling.harness.comparison import Verify
from nestling.harness.matching import Renaming, normalised_equal
from nestling.harness.normalise import Normalisers
from nestling.harness.replay_report import ReplayReport
from support.live import warm

AGENT: Final = '''
import os, time, uuid
from pathlib import Path
from nestling.worker import Agent, current_turn, subagent, subagent_fork, tool

RUN = uuid.uuid4().hex


@tool
def ticket(about: str) -> str:
    """Open a ticket."""
    (Path(os.getcwd()) / "left.txt").write_text("x")
    return f"opened {uuid.uuid4()} at {time.time()} in {os.getcwd()}/left.txt"


@tool
async def twice(about: str) -> str:
    """Ask two children by code."""
    one = await current_turn().delegate("first of " + about, agent="agent.py:helper")
    return one.text


def stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S")


helper = Agent("m/helper", "You help.")


class Lead(Agent):
    async def run_turn(self, turn):
        """Tell the model where and when it is, and an id; then the usual loop."""
        name = uuid.uuid4()
        turn.append(f"{stamp()}, {os.getcwd()}, run {name}; again {name}")
        turn.append(f"See {Path(__file__).parent}/data.txt EXTRA")
        await super().run_turn(turn)


TOOLS = [ticket, twice, subagent, subagent_fork]
root = Lead("m/root", "You lead.", TOOLS, subagent=helper)
'''

MODEL: Final = """
from nestling.harness import Answer, ScriptedModel, fork_call, spawn_call, tool_call


def model():
    return ScriptedModel(
        [
            "I remember.",
            Answer("A ticket.", calls=[tool_call("ticket", {"about": "it"})]),
            Answer("Helpers.", calls=[
                tool_call("twice", {"about": "it"}),
                spawn_call("label", "say one"),
                fork_call("label", "say two"),
            ]),
            "Done.",
        ],
        by_prompt={"first of it": "yes", "say one": "one", "say two": "two"},
    )
"""

CONFIG: Final = """
agent = "agent.py:root"
prompts = ["Remember it.", "Go on."]
provider = "model.py:model"
tools = "live"
"""


CLOCK: Final = 'time.strftime("%Y-%m-%dT%H:%M:%S")'

PATHS: Final = {"/", "/t2s2b1", "/t2s2b2", "/t2s2b3"}


class Case:
    """A scenario whose agent can be edited."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def edit(self, old: str, new: str) -> None:
        """Change the agent's code."""
        agent = self.path / "agent.py"
        text = agent.read_text()
        assert old in text
        agent.write_text(text.replace(old, new))

    def configure(self, more: str) -> None:
        """Write the configuration, with more than the usual."""
        (self.path / "scenario.toml").write_text(CONFIG + more)

    async def replayed(self, **more: Any) -> ReplayReport:
        """Replay it with its agent."""
        cast = cast_of(self.path, None)
        # Its template imports the agent as it is now.
        with TemplateLauncher((str(self.path / "agent.py"),)) as launcher:
            scenario = load_scenario(self.path)
            return await replay(scenario, launcher=launcher, cast=cast, **more)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One recording for all tests."""
    folder = tmp_path_factory.mktemp("recorded") / "tree"
    folder.mkdir()
    for name, text in (
        ("agent.py", AGENT),
        ("model.py", MODEL),
        ("scenario.toml", CONFIG),
    ):
        (folder / name).write_text(text)
    with TemplateLauncher((str(folder / "agent.py"),)) as launcher:
        report = anyio.run(partial(record, folder, launcher=launcher))
    assert report.problems == ()
    return folder


@pytest.fixture
def case(recording: Path, tmp_path: Path) -> Case:
    """A copy of it, in another place."""
    shutil.copytree(recording, tmp_path / "elsewhere" / "tree")
    return Case(tmp_path / "elsewhere" / "tree")


def kinds(report: ReplayReport) -> list[tuple[str, str | None]]:
    return [(problem.kind, problem.path) for problem in report.problems]


def strip_digests(folder: Path, old: str, new: str) -> None:
    """Put a text into children's logs, too, whose seeds are not told by digest then."""
    for path in folder.glob("session.*.jsonl"):
        text = path.read_text().replace(old, new)
        path.write_text(re.sub(r',"seedDigest":"[0-9a-f]{64}"', "", text))


def told(report: ReplayReport) -> str:
    """The message of the one problem, or warning."""
    ((_, _, message),) = report.problems or report.warnings
    return message


# --- what is the same (C5) -------------------------------------------------------


async def test_another_day_place_and_id(case: Case) -> None:
    """The prompt holds a date, the working directory and a uuid made by code."""
    assert set(load_scenario(case.path).by_path) == PATHS
    case.edit(CLOCK, '"2031-05-06T07:08:09"')
    report = await case.replayed()
    assert report.problems == ()
    assert report.warnings == ()


def test_no_log_names_a_path_of_this_machine(case: Case, recording: Path) -> None:
    logs = {path: path.read_text() for path in sorted(case.path.glob("*.jsonl"))}
    assert not [path for path, text in logs.items() if str(recording) in text]
    assert not [path for path, text in logs.items() if "/work/w" in text]
    root = logs[case.path / "session.jsonl"]
    assert "See {{scenario}}/data.txt" in root
    assert "in {{cwd}}/left.txt" in root


async def test_a_tape_of_it(case: Case) -> None:
    report = await replay(load_scenario(case.path), launcher=warm())
    assert report.problems == ()


async def test_recording_again_is_equal_when_normalised(
    recording: Path, case: Case
) -> None:
    """Log by log; ids keep their names from one log to the next.

    Where there is a recording that is equal, it is left alone.
    """

    def logs() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in case.path.glob("*.jsonl")}

    kept = logs()
    with TemplateLauncher((str(case.path / "agent.py"),)) as launcher:
        assert (await record(case.path, launcher=launcher)).problems == ()
        assert logs() == kept
        for name in kept:
            (case.path / name).unlink()
        assert (await record(case.path, launcher=launcher)).problems == ()
    assert {name for name, log in logs().items() if log != kept[name]} == set(kept)
    first, again = load_scenario(recording), load_scenario(case.path)
    normalisers, renaming = Normalisers(), Renaming()
    for path, session in first.by_path.items():
        other = again.by_path[path].recording
        assert normalised_equal(other, session.recording, normalisers, renaming)
    one, other = first.root.recording, again.root.recording
    assert not normalised_equal(other, one, Normalisers(("time", "cwd")))


@pytest.mark.parametrize(
    ("left_out", "named"),
    [
        ("time", 'it looks like a time, which changes from run to run: add "time"'),
        ("uuid", 'it looks like a uuid, which changes from run to run: add "uuid"'),
    ],
)
async def test_a_normaliser_that_is_not_in_force(
    case: Case, left_out: str, named: str
) -> None:
    case.edit(CLOCK, '"2031-05-06T07:08:09"')
    kept = [name for name in ("time", "cwd", "uuid") if name != left_out]
    case.configure(f"normalise = {kept}\n")
    report = await case.replayed()
    assert kinds(report) == [("request-differs", "/")]
    assert "\nmessages[1] (user):\n" in told(report)
    assert named in told(report)
    assert (await case.replayed(verify="off")).problems == ()


async def test_one_id_where_two_were(case: Case) -> None:
    case.edit("again {name}", "again {uuid.uuid4()}")
    report = await case.replayed()
    assert kinds(report) == [("request-differs", "/")]
    assert "{{uuid}} " in told(report)
    assert ", and elsewhere for " in told(report) or "elsewhere is" in told(report)


async def test_what_no_normaliser_knows(case: Case) -> None:
    """Its place is named, and what to declare; declared, it is the same."""
    case.edit("EXTRA", "on port 4711, id {RUN}")
    data = (case.path / "session.jsonl").read_text()
    was = "on port 4712, id 00a5b7e65c2a4b3a8e0b3c9c13a7f0a1"
    (case.path / "session.jsonl").write_text(data.replace("EXTRA", was))
    strip_digests(case.path, "EXTRA", was)
    report = await case.replayed()
    assert kinds(report) == [("request-differs", "/")]
    assert "\nmessages[2] (user):\n" in told(report)
    assert "it looks like a port, which changes from run to run" in told(report)
    case.configure("[normalisers]\nport = '(?<=port )[0-9]+'\n")
    report = await case.replayed()
    assert "it looks like an id of hexadecimal digits" in told(report)
    case.configure("[normalisers]\nport = '(?<=port )[0-9]+'\nid = '[0-9a-f]{32}'\n")
    assert (await case.replayed()).problems == ()


# --- levels (C4) -----------------------------------------------------------------

CHANGES: Final = (
    ('"You lead."', '"You lead!"', "system"),
    (
        "[ticket, twice, subagent, subagent_fork]",
        "[twice, subagent, subagent_fork]",
        "tools.ticket",
    ),
    ('"m/root"', '"m/other"', "config.model"),
    ("EXTRA", "EXTRA word", "messages[2] (user)"),
    (
        "        await super()",
        '        turn.append("one more")\n        await super()',
        "messages[3] (user) is new",
    ),
    (
        '        turn.append(f"See {Path(__file__).parent}/data.txt EXTRA")\n',
        "",
        "messages[2] (user) is missing",
    ),
)


@pytest.mark.parametrize(("old", "new", "place"), CHANGES)
async def test_another_request(case: Case, old: str, new: str, place: str) -> None:
    case.edit(old, new)
    report = await case.replayed()
    assert kinds(report) == [("request-differs", "/")]
    assert told(report).startswith("call 1 (turn 1, step 1): the request is not the ")
    assert told(report).split("\n")[1] == f"{place}:"
    assert report.accounts["/"].served == 0
    assert not report.is_ok


@pytest.mark.parametrize(("old", "new", "place"), CHANGES)
@pytest.mark.parametrize("verify", ["warn", "off"])
async def test_another_request_that_is_let_pass(
    case: Case, old: str, new: str, place: str, verify: Verify
) -> None:
    """The whole tree comes to its end; each change is warned of once, or not at all."""
    if "ticket" in place:
        new = old  # without the tool, the recorded call of it has another result
    case.edit(old, new)
    report = await case.replayed(verify=verify)
    assert report.problems == ()
    calls = {path: each.served for path, each in report.accounts.items()}
    assert calls == {"/": 4, "/t2s2b1": 1, "/t2s2b2": 1, "/t2s2b3": 1}
    if verify == "off" or new == old:
        assert report.warnings == ()
    else:
        assert place in told(report)
        assert report.warnings[0].path == "/"


async def test_the_configuration_says_the_level(case: Case) -> None:
    case.edit('"You lead."', '"You lead!"')
    for level, problems, warnings in (("off", 0, 0), ("warn", 0, 1), ("strict", 1, 0)):
        case.configure(f'verify = "{level}"\n')
        report = await case.replayed()
        assert (len(report.problems), len(report.warnings)) == (problems, warnings)
    case.configure('verify = "strict"\n')
    assert (await case.replayed(verify="off")).problems == ()


async def test_a_childs_request(case: Case) -> None:
    """It stands before what came of it."""
    case.edit('"first of "', '"first part of "')
    report = await case.replayed()
    (kind, path, message), (_, parent, _) = report.problems
    assert (kind, path, parent) == ("request-differs", "/t2s2b1", "/")
    assert message.split("\n")[1:] == [
        "messages[0] (user):",
        "  - first of it",
        "  + first part of it",
    ]
    report = await case.replayed(verify="off")
    assert report.problems == ()


async def test_a_tool_that_returns_something_else(case: Case) -> None:
    case.edit('f"opened', 'f"closed')
    report = await case.replayed()
    ((kind, path, message),) = report.problems
    assert (kind, path) == ("request-differs", "/")
    assert message.startswith("call 3 (turn 2, step 2): ")
    assert "  - [result of " in message
    assert "opened {{uuid}} at {{time}} in {{cwd}}/left.txt" in message


async def test_code_that_goes_another_way(case: Case) -> None:
    """At any level: what is done is not as recorded."""
    case.edit("        await super().run_turn(turn)\n", "        await turn.stream()\n")
    for verify in ("off", "warn", "strict"):
        report = await case.replayed(verify=verify)
        assert not report.is_ok
