"""Messages that came from anywhere: a log says of what source each is, in any form.

A tape carries user messages as they are. Who a model's message is from is the loop's
to say, so there another source is a difference, told in one sentence.
"""

from __future__ import annotations

from typing import Final

import pytest

from compose.trees import TREES
from nestling.harness.plan import make_plan
from nestling.harness.scenario import build_scenario
from nestling.session.jsontext import MAX_DEPTH, Json, JsonObject
from nestling.session.reading import Recording
from nestling.worker.tape import Call, Input, decode_tape
from support.logs import Log
from support.replays import (
    edited,
    live_contents,
    recorded_contents,
    recordings_of,
    replayed,
    seeded,
)


def nested(depth: int) -> Json:
    value: Json = {}
    for _ in range(depth - 1):
        value = [value]
    return value


ABSENT: Final = "(no source)"
SOURCES: Final[list[Json]] = [
    *(ABSENT, None, True, 7, 1.5, "", "user", "\ud800", [], ["user"], {}),
    *({"kind": kind} for kind in (None, 1, ["user"], {"kind": "user"}, "\ud800")),
    *({"kind": kind} for kind in ("hooks", "tool", "agent-instructions", "later")),
    {"kind": "user", "callId": 1, "provider": [], "model": None},
    {"kind": "tool", "callId": "c"},
    {"kind": "model", "provider": "p", "model": "m"},
    nested(MAX_DEPTH - 1),
]
"""Each is data of the JSON domain where it stands, one level deep."""


def with_source(message: JsonObject, source: Json) -> JsonObject:
    others = {key: value for key, value in message.items() if key != "source"}
    return others if source is ABSENT else {**others, "source": source}


def from_source(recording: Recording, source: Json) -> Recording:
    """A recording all of whose user messages are from that source."""

    def edit(content: JsonObject) -> JsonObject | None:
        if content["type"] != "user/message":
            return None
        return {**content, "data": with_source(content["data"], source)}

    return edited(recording, edit)


def foreign(recording: Recording) -> Recording:
    """A recording whose header does not say by which delegation it was born."""
    return recording._replace(header=recording.header.with_fields(spawnedBy=None))


@pytest.mark.parametrize("is_foreign", [False, True])
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: repr(source)[:40])
def test_a_user_message_of_any_source(source: Json, is_foreign: bool) -> None:
    tree = [
        from_source(each, source) for each in recordings_of(TREES["unlucky_children"]())
    ]
    scenario = build_scenario("any", list(map(foreign, tree)) if is_foreign else tree)
    assert len(scenario.by_path) == 5
    for session in scenario.sessions:
        carried = [
            item.content["data"].get("source", ABSENT)
            for item in decode_tape(make_plan(session).creation.brief)
            if isinstance(item, Input) and item.content["type"] == "user/message"
        ]
        assert carried
        assert all(each == source for each in carried)
    for seed in range(3):
        replay = replayed(scenario, seeded(seed))
        assert replay.problems == []
        assert live_contents(replay) == recorded_contents(scenario)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: repr(source)[:40])
def test_a_user_message_during_a_call(source: Json) -> None:
    (recording,) = recordings_of(TREES["plain_answer"]())
    at = next(e.seq for e in recording.events if e.type == "assistant/chunk") + 1
    message = {"id": "late", "role": "user", "content": []}
    data = with_source(message, source)
    rows = [event.row() for event in recording.events]
    for row in rows:
        row["seq"] += row["seq"] >= at
        if "sourceEventSeqs" in row:
            row["sourceEventSeqs"] = [n + (n >= at) for n in row["sourceEventSeqs"]]
    late = {"type": "user/message", "seq": at, "time": 0, "data": data}
    rows.insert(at, {**late, "surfaceOp": "append"})
    log = Log("root")
    log.header, log.rows = recording.header.row(), rows
    scenario = build_scenario("late", [log.recording()])
    tape = decode_tape(make_plan(scenario.root).creation.brief)
    (entry,) = (i for item in tape if isinstance(item, Call) for i in item.inputs)
    assert (entry.after, entry.content["data"]) == (1, data)
    assert replayed(scenario).problems == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: repr(source)[:40])
def test_a_models_message_of_any_source(source: Json) -> None:
    log = Log("root").answered("go", "done")
    (row,) = (row for row in log.rows if row["type"] == "assistant/message")
    row["data"]["message"] = with_source(row["data"]["message"], source)
    row["sourceEventSeqs"] = [3, 4]
    if isinstance(source, list) and source and source[0] != "user":
        row["data"]["message"]["source"] = nested(MAX_DEPTH - 2)  # one level deeper
    replay = replayed(build_scenario("any", [log.recording()]))
    is_a_models = isinstance(source, dict) and source.get("kind") == "model"
    assert replay.kinds == ([] if is_a_models else [("log-differs", "/")])
    for problem in replay.problems:
        assert problem.message.startswith("event 5: assistant/message: data.message.so")
