"""Recordings with one thing changed: each is caught by a named problem.

``pytest tests/live/test_mutations.py -s`` prints the table: what was changed, who
replayed it, the verdict, the kind of problem and where, and its message.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import pytest

from nestling.driver import TemplateLauncher
from nestling.harness import cast_of, load_scenario, replay
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.support import hindrances
from nestling.harness.tape_runner import TapeRunner
from nestling.session.errors import UnreadableError
from nestling.session.jsontext import JsonObject
from support.scenarios import MIXED

Rows = list[JsonObject]
Files = dict[str, Rows]
"""The rows of each file; row 0 is the header."""

ROOT, SPAWN, FORK = "session.jsonl", "session.1.jsonl", "session.2.jsonl"


class Found(NamedTuple):
    """What a replay of a changed recording came to."""

    verdict: str
    kind: str
    path: str | None
    message: str


# --- what is changed -------------------------------------------------------------


def row(rows: Rows, kind: str, at: int = 0) -> JsonObject:
    return [each for each in rows if each["type"] == kind][at]


def header(rows: Rows) -> JsonObject:
    found: JsonObject = row(rows, "request/header", -1)["data"]["header"]
    return found


def system_prompt(files: Files) -> None:
    header(files[SPAWN])["system"] = "You keep the harbour's boats and may delegate."


def tool_added(files: Files) -> None:
    tool = {"name": "moor", "description": "Moor a boat.", "parameters": {}}
    header(files[SPAWN])["tools"].append(tool)


def tool_removed(files: Files) -> None:
    header(files[SPAWN])["tools"].pop()


def child_removed(files: Files) -> None:
    files[SPAWN] = files.pop(FORK)


def child_added(files: Files) -> None:
    rows: Rows = json.loads(json.dumps(files[SPAWN]))
    rows[0]["id"] = "harbour.more"
    rows[0]["spawnedBy"] = {"turn": 2, "step": 3, "context": "spawn", "key": "more"}
    files["session.3.jsonl"] = rows


def last_call_removed(files: Files) -> None:
    """The last step of the root, with its call."""
    rows = files[ROOT]
    at = rows.index(row(rows, "step/start", -1))
    files[ROOT] = [*rows[:at], rows[-1]]


def call_added(files: Files) -> None:
    """The last step of the root once more, after it."""
    rows = files[ROOT]
    at = rows.index(row(rows, "step/start", -1))
    again: Rows = json.loads(json.dumps(rows[at:-1]))
    length = sum(logical(each) for each in again)
    for each in again:
        each["data"]["step"] += 1
        message = each["data"].get("message")
        if message is not None:
            message["id"] = "harbour.again"
            each["sourceEventSeqs"] = [n + length for n in each["sourceEventSeqs"]]
    files[ROOT] = [*rows[:-1], *again, rows[-1]]


def tool_result(files: Files) -> None:
    message = row(files[ROOT], "tool/result")["data"]["message"]
    message["content"][0]["content"][0]["text"] = "TERN"


def seed_one_less(files: Files) -> None:
    files[FORK][0]["seedLength"] -= 1


def seed_one_more(files: Files) -> None:
    files[FORK][0]["seedLength"] += 1


def inherited(files: Files) -> None:
    """The parent's first prompt; its fork has inherited what it was."""
    row(files[ROOT], "user/message")["data"]["content"][0]["text"] += "!"


def delta(files: Files) -> None:
    """A delta, and not the block that it adds up to."""
    (chunk,) = (
        each["data"]["chunk"]
        for each in files[SPAWN]
        if each["type"] == "assistant/chunk"
        and each["data"]["chunk"]["type"] == "text-delta"
    )
    chunk["text"] = "TERN"


def block(files: Files) -> None:
    """A delta and its block, and not the message that they were folded to."""
    delta(files)
    for each in files[SPAWN]:
        chunk = each["data"].get("chunk", {}) if "data" in each else {}
        if chunk.get("block", {}).get("type") == "text":
            chunk["block"]["text"] = "TERN"


def message(files: Files) -> None:
    """The message, and not the chunks that it was folded from."""
    content = row(files[SPAWN], "assistant/message")["data"]["message"]["content"]
    content[-1]["text"] = "TERN"


MUTATIONS: Final[dict[str, tuple[Callable[[Files], None], str | None, str]]] = {
    # What is changed: how; what a tape finds; what an agent does. Of a tree that fits
    # together a tape knows nothing else (None): it does what is recorded.
    "one word of a system prompt": (system_prompt, None, "request-differs /t2s1b1"),
    "a tool added": (tool_added, None, "request-differs /t2s1b1"),
    "a tool removed": (tool_removed, None, "request-differs /t2s1b1"),
    "a child removed": (
        child_removed,
        "tree-differs /t2s1b1",
        "tree-differs /t2s1b1",
    ),
    "a child added": (child_added, None, "script-not-bound /t2s3kmore"),
    "the last call removed": (last_call_removed, None, "extra-call /"),
    "a call added": (call_added, None, "leftover-call /"),
    "a tool result": (tool_result, "log-differs /", "request-differs /"),
    "seedLength one less": (seed_one_less, "unreadable", "unreadable"),
    "seedLength one more": (seed_one_more, "unreadable", "unreadable"),
    "the parent in the inherited prefix": (inherited, "unreadable", "unreadable"),
    "a delta": (delta, "drift /t2s1b1", "drift /t2s1b1"),
    "chunks, not their message": (block, "log-differs /t2s1b1", "log-differs /t2s1b1"),
    "a message, not its chunks": (
        message,
        "log-differs /t2s1b1",
        "log-differs /t2s1b1",
    ),
}


# --- the files -------------------------------------------------------------------


def logical(each: JsonObject) -> int:
    """How many events a row holds."""
    packed = each["data"].get("texts", each["data"].get("args"))
    return len(packed) if "seq0" in each else 1


def renumbered(rows: Rows) -> Iterator[str]:
    seq = 0
    for each in rows:
        if "seq" in each:
            each["seq"] = seq
        elif "seq0" in each:
            each["seq0"] = seq
        seq += logical(each) if each["type"] != "session" else 0
        yield json.dumps(each) + "\n"


def mutated(folder: Path, change: Callable[[Files], None]) -> Path:
    """Copy the example with its recording changed."""
    shutil.copytree(MIXED, folder)
    files: Files = {}
    for path in sorted(folder.glob("*.jsonl")):
        files[path.name] = [json.loads(line) for line in path.read_text().splitlines()]
        path.unlink()
    change(files)
    for name, rows in files.items():
        (folder / name).write_text("".join(renumbered(rows)))
    return folder


# --- replaying -------------------------------------------------------------------


def as_tape(folder: Path) -> list[Any]:
    scenario = load_scenario(folder)
    if hindered := hindrances(scenario):
        return list(hindered)
    director = ReplayDirector(scenario)
    runner = TapeRunner(director)
    runner.run()
    director.close()
    return director.ledger.problems


def with_agent(folder: Path) -> list[Any]:
    async def run() -> list[Any]:
        with TemplateLauncher((str(folder / "agent.py"),)) as launcher:
            scenario = load_scenario(folder)
            cast = cast_of(folder, None)
            return list((await replay(scenario, None, launcher, cast=cast)).problems)

    return anyio.run(run)


def found(play: Callable[[Path], list[Any]], folder: Path) -> Found:
    try:
        problems = play(folder)
    except UnreadableError as error:
        return Found("error", "unreadable", None, str(error))
    if not problems:
        return Found("ok", "", None, "")
    kind, path, text = problems[0]
    return Found("failed", kind, path, text)


@pytest.mark.parametrize("what", MUTATIONS)
@pytest.mark.parametrize("who", ["tape", "agent"])
def test_a_mutation_is_caught(tmp_path: Path, what: str, who: str) -> None:
    change, of_tape, of_agent = MUTATIONS[what]
    expected = of_tape if who == "tape" else of_agent
    folder = mutated(tmp_path / "mixed", change)
    came = found(as_tape if who == "tape" else with_agent, folder)
    kind = f"{came.kind} {came.path}" if came.path else came.kind
    told = " / ".join(came.message.split("\n"))
    sys.stdout.write(f"| {what} | {who} | {came.verdict} | {kind} | {told} |\n")
    assert kind == (expected or ""), came


@pytest.mark.parametrize("who", [as_tape, with_agent])
def test_nothing_is_caught_where_nothing_was_changed(
    tmp_path: Path, who: Callable[[Path], list[Any]]
) -> None:
    assert who(mutated(tmp_path / "mixed", lambda files: None)) == []
