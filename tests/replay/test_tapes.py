"""Tapes: what a tape agent is told of its recording, and what it must not be told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compose.trees import TREES
from nestling.harness.crashes import crashes
from nestling.harness.scenario import build_scenario
from nestling.harness.scenario_io import load_scenario
from nestling.harness.tapes import is_summary_call, make_tape
from nestling.session.boundary import own_events
from nestling.session.errors import UnreadableError, WireError
from nestling.session.event import Event
from nestling.session.jsontext import Json, dumps, loads
from nestling.session.reading import Recording, read_recording
from nestling.session.surface import is_replacement
from nestling.worker.tape import (
    Call,
    CallInput,
    Hold,
    Input,
    Item,
    Message,
    StepEnd,
    StepStart,
    Summary,
    ToolCall,
    ToolResult,
    TurnEnd,
    TurnStart,
    decode_tape,
    encode_tape,
)
from support.corpus import dsh_folders, needs_corpus
from support.logs import Log, text_chunks
from support.replays import recordings_of, replayed

MARKERS = {
    "turn/start": TurnStart,
    "turn/end": TurnEnd,
    "step/start": StepStart,
    "step/end": StepEnd,
    "assistant/message": Message,
    "tool/call": ToolCall,
    "tool/result": ToolResult,
}


def kinds_of(items: Sequence[Item]) -> Counter[str]:
    """How many events of each type a tape stands for, chunks left aside."""
    counts: Counter[str] = Counter()
    names = {item: name for name, item in MARKERS.items()}
    for item in items:
        if isinstance(item, Input | Summary):
            counts[item.content["type"]] += 1
        elif isinstance(item, Call):
            counts.update(entry.content["type"] for entry in item.inputs)
        elif not isinstance(item, Hold):
            counts[names[type(item)]] += 1
    return counts


def check_tape(recording: Recording) -> None:
    """Every own event is a marker, an input, a chunk, or the end of the seed."""
    tape = make_tape(recording)
    own = own_events(recording.events, recording.header.seed_length)
    until = next((crash.length for crash in crashes(recording)), None)
    told = [event for event in own if until is None or event.seq < until]
    expected = Counter(e.type for e in told if e.type != "assistant/chunk")
    if recording.header.seed_length:
        assert own[0].type == "session/end-seed"
        expected["session/end-seed"] -= 1
    assert kinds_of(tape.items) == +expected
    is_held = any(isinstance(item, Hold) for item in tape.items[-1:])
    assert is_held == (until is not None)
    calls = [item for item in tape.items if isinstance(item, Call | Summary)]
    assert len(calls) == len(list(call_starts(told)))
    encoded = encode_tape(tape.items)
    assert decode_tape(encoded) == tape.items
    check_secrets(encoded, recording, told)


def call_starts(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the first event of each call."""
    is_open = False
    for event in events:
        if event.type == "assistant/chunk":
            if not is_open:
                yield event
            is_open = event.data["chunk"]["type"] != "finish"
        elif event.type in MARKERS:
            is_open = False
        elif is_summary_call(event):
            yield event


def check_secrets(encoded: bytes, recording: Recording, own: Sequence[Event]) -> None:
    """What the model said is in the tape only where an input repeats it."""
    inputs = b"\n".join(dumps(e.content()) for e in own if is_input(e))
    for event in own:
        for secret in secrets_of(event):
            if secret not in inputs:
                place = recording.place(event.seq)
                assert secret not in encoded, f"{place}: the tape holds {secret!r}"


def is_input(event: Event) -> bool:
    is_made = event.type in MARKERS or event.type == "assistant/chunk"
    is_made = is_made or is_summary_call(event)
    return not is_made or is_replacement(event.surface_op)


def secrets_of(event: Event) -> Iterator[bytes]:
    """Yield the texts of chunks and messages, as JSON writes them."""
    if event.type == "assistant/chunk":
        chunk = event.data["chunk"]
        texts = [chunk.get("text"), chunk.get("argumentsDelta")]
        if chunk["type"] == "finish":
            yield dumps(chunk["reason"])
    elif event.type == "assistant/message":
        blocks = event.data["message"]["content"]
        texts = [b.get(key) for b in blocks for key in ("text", "arguments", "name")]
    elif event.type == "tool/result":
        texts = [dumps(event.data["message"]["content"]).decode()]
    elif is_summary_call(event):
        texts = [dumps(event.data["rawOutput"]).decode()]
    else:
        return
    for text in texts:
        if text is not None and len(text) > 5:
            yield dumps(text)[1:-1]


@pytest.mark.parametrize("name", TREES)
def test_composed_recordings(name: str) -> None:
    for recording in recordings_of(TREES[name]()):
        check_tape(recording)


@needs_corpus
@pytest.mark.parametrize("folder", dsh_folders(), ids=lambda path: path.name)
def test_recordings_of_the_corpus(folder: Path) -> None:
    for session in load_scenario(folder).sessions:
        check_tape(session.recording)


def test_a_tape_that_says_too_much_is_noticed() -> None:
    (recording,) = recordings_of(TREES["plain_answer"]())
    for event in recording.events:
        for secret in secrets_of(event):
            with pytest.raises(AssertionError, match="the tape holds"):
                check_secrets(b"[" + secret + b"]", recording, recording.events)


# --- positions -----------------------------------------------------------------


def test_inputs_that_arrive_in_a_call_stand_after_their_chunk() -> None:
    log = Log("root").turn("hi")
    first, second, last = [*text_chunks("a", None), *text_chunks("b")]
    log.chunks([first]).add("note", {"n": 1}).chunks([second]).add("note", {"n": 2})
    log.chunks([last]).message([{"type": "text", "text": "ab"}]).end()
    (call,) = (i for i in make_tape(log.recording()).items if isinstance(i, Call))
    assert call.inputs == (
        CallInput(1, {"type": "note", "data": {"n": 1}}),
        CallInput(2, {"type": "note", "data": {"n": 2}}),
    )


def test_two_calls_of_one_step_are_two_calls() -> None:
    log = Log("root").turn("hi").chunks(text_chunks("a", "error"))
    log.chunks(text_chunks("b")).message([{"type": "text", "text": "b"}]).end()
    items = make_tape(log.recording()).items
    assert [type(item) for item in items[3:6]] == [Call, Call, Message]


@pytest.mark.parametrize(
    ("kind", "calls", "is_told"),
    [
        ("completed", 0, False),
        ("blocked", 0, True),
        ("blocked", 1, True),
        ("error", 0, True),
        ("error", 1, False),
        ("max-tokens", 1, False),
    ],
)
def test_a_reason_is_told_only_where_no_call_can_tell(
    kind: str, calls: int, is_told: bool
) -> None:
    log = Log("root").turn("hi")
    for _ in range(calls):
        log.say("x")
    item = make_tape(log.end(kind).recording()).items[-1]
    assert item == TurnEnd(reason={"kind": kind} if is_told else None)


def test_a_result_of_no_call_has_no_place() -> None:
    log = Log("root").turn("hi").say("x")
    block = {"type": "tool-result", "toolCallId": "c", "content": []}
    message = {"id": "r", "role": "user", "content": [block], "source": {"callId": "c"}}
    data = {"turn": 1, "step": 1, "message": message}
    log.add("tool/result", data, surfaceOp="append").end()
    with pytest.raises(UnreadableError, match="belongs to no tool-call block"):
        make_tape(log.recording())


# --- across the wire -----------------------------------------------------------

TEXTS = st.text(st.sampled_from("aé\ud800\udfff\x00😀"), max_size=4)
CONTENTS = st.fixed_dictionaries(
    {"type": TEXTS, "data": st.none() | st.dictionaries(TEXTS, TEXTS, max_size=2)}
)
COUNTS = st.integers(0, 2**53 - 1)
ITEMS: st.SearchStrategy[Item] = st.one_of(
    st.builds(Input, CONTENTS),
    st.builds(TurnStart, COUNTS),
    st.builds(StepStart, COUNTS, COUNTS),
    st.builds(
        Call, st.lists(st.builds(CallInput, COUNTS, CONTENTS), max_size=2).map(tuple)
    ),
    st.builds(
        Summary, st.fixed_dictionaries({"type": TEXTS, "data": st.just({"a": 1})})
    ),
    st.builds(Message, TEXTS),
    st.builds(ToolCall, COUNTS),
    st.builds(ToolResult, COUNTS, TEXTS),
    st.builds(StepEnd),
    st.builds(TurnEnd, st.booleans(), st.none() | st.fixed_dictionaries({"k": TEXTS})),
    st.builds(Hold),
)


@given(st.lists(ITEMS, max_size=6))
def test_a_tape_comes_through_whole(tape: list[Item]) -> None:
    # Halves that happen to stand side by side are one character once read.
    encoded = encode_tape(tape)
    assert encode_tape(decode_tape(encoded)) == dumps(loads(encoded))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"{}",
        b"null",
        b"[1]",
        b"[[]]",
        b"[{}]",
        b'[{"at":5}]',
        b'[{"at":"nowhere"}]',
        b'[{"at":"\\ud800"}]',
        b'[{"\\ud800":1,"at":"hold"}]',
        b'[{"at":"hold","more":1}]',
        b'[{"at":"turn/start"}]',
        b'[{"at":"turn/start","turn":"1"}]',
        b'[{"at":"turn/start","turn":1.5}]',
        b'[{"at":"call","purpose":"summary"}]',
        b'[{"at":"call","\\udfff":1}]',
        b'[{"at":"summary","content":{"type":"x"}}]',
        b'[{"at":"summary","content":{"type":"x","data":1}}]',
        b'[{"at":"call","inputs":[{"after":0}]}]',
        b'[{"at":"call","inputs":[{"after":0,"content":{"type":"x"}}]}]',
        b'[{"at":"input","content":[]}]',
        b'[{"at":"input","content":{}}]',
        b'[{"at":"input","content":{"type":1,"data":1}}]',
        b'[{"at":"assistant/message","id":1}]',
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=lambda text: repr(text[:40]),
)
def test_a_hostile_tape_is_refused(text: bytes) -> None:
    with pytest.raises(WireError, match="the tape is not readable"):
        decode_tape(text)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_tape_or_refused(data: bytes) -> None:
    with suppress(WireError):
        decode_tape(data)


JSONS: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | COUNTS | TEXTS | st.sampled_from(["hold", "call"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["at", "content", "inputs", "after", "type"]) | TEXTS,
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(st.lists(JSONS, max_size=2))
def test_any_json_is_a_tape_or_refused(value: list[Json]) -> None:
    with suppress(WireError):
        decode_tape(dumps(value))


def test_a_log_without_a_request_header_still_names_who_answered() -> None:
    recording = recordings_of(TREES["plain_answer"]())[0]
    tape = make_tape(recording)
    assert {item.model for item in tape.items if type(item) is Message} == {None}
    bare = _without(recording, "request/header")
    tape = make_tape(bare)
    assert {i.model for i in tape.items if type(i) is Message} == {"scripted-1"}
    replay = replayed(build_scenario("bare", [bare]))
    assert replay.problems == []


def _without(recording: Recording, kind: str) -> Recording:
    """Leave out the one event of a type, and point citations where they now stand."""
    gone = next(event.seq for event in recording.events if event.type == kind)
    kept = []
    for event in [*recording.events[:gone], *recording.events[gone + 1 :]]:
        row = event.row()
        row["seq"] -= event.seq > gone
        if "sourceEventSeqs" in row:
            row["sourceEventSeqs"] = [n - (n > gone) for n in row["sourceEventSeqs"]]
        kept.append(row)
    body = b"".join(dumps(row) + b"\n" for row in [recording.header.row(), *kept])
    return read_recording(body, recording.name)
