"""Data nested as deep as a log allows goes through all that lies around it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compose.trees import TREES, finished, root_with_turn
from nestling.harness.compose import Tree, fork_call, text
from nestling.harness.plan import make_plan
from nestling.harness.scenario import Scenario, build_scenario
from nestling.session.errors import UnreadableError, WireError
from nestling.session.jsontext import MAX_DEPTH, Json, dumps
from nestling.session.reading import Recording, read_recording
from nestling.worker.tape import Call, CallInput, Input, decode_tape, encode_tape
from support.replays import (
    live_contents,
    recorded_contents,
    recordings_of,
    replayed,
    seeded,
    with_event,
)


def nested(depth: int) -> Json:
    value: Json = {}
    for level in range(depth - 1):
        value = [value] if level % 2 else {"in": value}
    return value


DEEPEST, TOO_DEEP = nested(MAX_DEPTH), nested(MAX_DEPTH + 1)


def before(kind: str, at: int = 0) -> Callable[[Json], list[Recording]]:
    """An event before the `at`-th one of another type of a plain session."""

    def make(data: Json) -> list[Recording]:
        (recording,) = recordings_of(TREES["plain_answer"]())
        seqs = [event.seq for event in recording.events if event.type == kind]
        return [with_event(recording, seqs[at], "note", data)]

    return make


def inherited(data: Json) -> list[Recording]:
    """An event that a fork inherits, and one that it has itself."""
    root = root_with_turn()
    root.says(text("OK"))
    root.add("note", data)
    root.end()
    root.turn("Go on.")
    (call,) = root.says(fork_call("recall", "When?"))
    child = root.fork(call)
    child.add("note", data)
    root.returns(finished(child))
    root.end()
    return recordings_of(Tree(root))


PLACES = {
    "outside of turns": before("turn/start", 1),
    "in a turn": before("assistant/message"),
    "in a call": before("assistant/chunk", 1),
    "inherited": inherited,
}


@pytest.mark.parametrize("place", PLACES)
def test_the_deepest_data_is_replayed(place: str) -> None:
    scenario = build_scenario(place, PLACES[place](DEEPEST))
    for session in scenario.sessions:
        assert DEEPEST in [event.data for event in session.recording.events]
    for seed in range(5):
        replay = replayed(scenario, seeded(seed))
        assert replay.problems == []
        assert live_contents(replay) == recorded_contents(scenario)


@pytest.mark.parametrize("place", list(PLACES)[:3])
def test_deeper_data_is_refused_in_one_sentence(place: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        PLACES[place](TOO_DEEP)
    message = str(caught.value)
    assert message.startswith("session.jsonl line ")
    assert message.endswith("nested deeper than 200 levels")
    assert "\n" not in message
    assert len(message) <= 2003


@pytest.mark.parametrize(("place", "kind"), [("in a turn", Input), ("in a call", Call)])
def test_a_tape_holds_the_deepest_data(place: str, kind: type[Input | Call]) -> None:
    scenario: Scenario = build_scenario(place, PLACES[place](DEEPEST))
    tape = decode_tape(make_plan(scenario.root).creation.brief)
    content = {"type": "note", "data": DEEPEST}
    holders = [
        type(item)
        for item in tape
        if (isinstance(item, Input) and item.content == content)
        or (isinstance(item, Call) and content in [i.content for i in item.inputs])
    ]
    assert holders == [kind]


def test_a_tape_of_deeper_data_is_refused() -> None:
    note = {"type": "note", "data": TOO_DEEP}
    tape = encode_tape([Call(inputs=(CallInput(after=0, content=note),))])
    with pytest.raises(WireError, match="nested deeper than 200 levels"):
        decode_tape(tape)


@pytest.mark.parametrize("during_a_call", [False, True])
def test_data_around_a_large_number(during_a_call: bool) -> None:
    """It is read by another way, as the number that it is."""
    data: Json = 2**60
    for _ in range(MAX_DEPTH):
        data = [data]
    place = "in a call" if during_a_call else "in a turn"
    scenario = build_scenario(place, PLACES[place](data))
    replay = replayed(scenario)
    assert replay.problems == []
    assert live_contents(replay) == recorded_contents(scenario)


def test_what_was_replayed_can_be_a_recording() -> None:
    scenario = build_scenario("deep", PLACES["in a call"](DEEPEST))
    log = replayed(scenario).runner.logs()["/"]
    rows = [scenario.root.recording.header.row(), *(event.row() for event in log)]
    again = read_recording(b"".join(dumps(row) + b"\n" for row in rows), "again")
    assert [e.row() for e in again.events] == [event.row() for event in log]
