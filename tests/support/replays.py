"""Replays in one thread, for tests: a tree of recordings in, what came of it out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from nestling.harness.compose import Tree
from nestling.harness.ledger import Account, Problem
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import RecordedSession, Scenario, build_scenario
from nestling.harness.tape_runner import Choose, TapeRunner
from nestling.session.event import Event
from nestling.session.jsontext import Json, JsonObject, dumps
from nestling.session.reading import Recording, read_recording

Edit = Callable[[JsonObject], JsonObject | None]
"""Given an event's content, returns another one; None leaves it."""


class Replay(NamedTuple):
    """One replay that was run."""

    scenario: Scenario
    director: ReplayDirector
    runner: TapeRunner

    @property
    def problems(self) -> list[Problem]:
        """What the ledger holds against it."""
        return self.director.ledger.problems

    @property
    def kinds(self) -> list[tuple[str, str | None]]:
        """The kind and the path of each problem."""
        return [(problem.kind, problem.path) for problem in self.problems]

    def account(self, path: str) -> Account:
        """Return what happened to one session."""
        return self.director.ledger.accounts[path]


def recordings_of(tree: Tree, *, projected: bool = False) -> list[Recording]:
    """Read a composed tree back from its files."""
    files = tree.files(projected=projected)
    return [read_recording(content, name) for name, content in files.items()]


def scenario_of(
    tree: Tree, *, projected: bool = False, override: bytes | None = None
) -> Scenario:
    """Understand a composed tree."""
    return build_scenario("tree", recordings_of(tree, projected=projected), override)


def replayed(scenario: Scenario, choose: Choose = lambda _: 0) -> Replay:
    """Replay a scenario on one schedule."""
    director = ReplayDirector(scenario)
    runner = TapeRunner(director, choose)
    runner.run()
    if not runner.stalled:
        director.close()
    return Replay(scenario, director, runner)


def seeded(seed: int) -> Choose:
    """Return the schedule that a seed stands for."""
    return random.Random(seed).randrange


def contents(events: Iterable[Event]) -> list[JsonObject]:
    """What events say, without place and time."""
    return [event.content() for event in events]


def live_contents(replay: Replay) -> dict[str, list[JsonObject]]:
    """The live logs by spawn path, without times."""
    return {path: contents(log) for path, log in replay.runner.logs().items()}


def recorded_contents(scenario: Scenario) -> dict[str, list[JsonObject]]:
    """The recorded logs by spawn path, without times."""
    return {
        path: contents(session.recording.events)
        for path, session in scenario.by_path.items()
    }


# --- edited recordings ---------------------------------------------------------


def edited_events(events: Sequence[Event], edit: Edit) -> list[Event]:
    """Return events, each as `edit` wants it."""
    return [_edited(event, edit) for event in events]


def _edited(event: Event, edit: Edit) -> Event:
    content = edit(msgspec.json.decode(msgspec.json.encode(event.content())))
    if content is None:
        return event
    return Event(
        event.seq,
        content["type"],
        event.time,
        content["data"],
        content.get("surfaceOp"),
        content.get("sourceEventSeqs"),
        content.get("ignorable", False),
    )


def edited(recording: Recording, edit: Edit) -> Recording:
    """Return a recording with its events as `edit` wants them."""
    return recording._replace(events=edited_events(recording.events, edit))


def with_event(recording: Recording, at: int, kind: str, data: Json) -> Recording:
    """Return a recording with one more event, and citations where they now stand."""
    rows = [event.row() for event in recording.events]
    for row in rows:
        row["seq"] += row["seq"] >= at
        if "sourceEventSeqs" in row:
            row["sourceEventSeqs"] = [n + (n >= at) for n in row["sourceEventSeqs"]]
    rows.insert(at, {"type": kind, "seq": at, "time": 0, "data": data})
    lines = [dumps(row) + b"\n" for row in [recording.header.row(), *rows]]
    return read_recording(b"".join(lines), recording.name)


def with_session(scenario: Scenario, path: str, **changes: Json) -> Scenario:
    """Return a scenario with fields of one session replaced."""

    def changed(session: RecordedSession) -> RecordedSession:
        if session.path != path:
            return session
        return msgspec.structs.replace(session, **changes)

    return Scenario(scenario.name, tuple(map(changed, scenario.sessions)))


def with_edit(scenario: Scenario, path: str, edit: Edit) -> Scenario:
    """Return a scenario with the recorded log of one session edited.

    Its script stays what it was, so the log alone is what differs.
    """
    recording = scenario.by_path[path].recording
    events = edited_events(recording.events, edit)
    return with_session(scenario, path, recording=recording._replace(events=events))


def once(kind: str, change: Callable[[JsonObject], None], at: int = 0) -> Edit:
    """Return an edit that changes the data of the `at`-th event of a type."""
    count = -1

    def edit(content: JsonObject) -> JsonObject | None:
        nonlocal count
        if content["type"] != kind:
            return None
        count += 1
        if count != at:
            return None
        change(content["data"])
        return content

    return edit
