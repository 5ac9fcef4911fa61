"""Every rule of a log and of a store: broken once each, and found where it is broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nestling.session.event import Event, event_from_content
from nestling.session.header import Header
from nestling.session.invariants import Finding, log_findings
from nestling.session.jsontext import JsonObject
from nestling.session.recording_io import read_file
from nestling.session.repair import closers
from support.corpus import dsh_logs, needs_corpus
from support.examples import FOLDER
from support.session_logs import (
    LogWriter,
    answered,
    call_block,
    delta,
    edited,
    finish,
    forked,
    text_block,
)

ROOT = Header("s", 1, {})


def _with_tools() -> LogWriter:
    """A turn of two steps, the first with two tools: 17 events."""
    log = LogWriter()
    log.start_turn()
    log.user("go")
    log.start_step()
    log.chunks(delta("on it"), finish("tool-calls"))
    log.assistant(text_block("on it"), call_block("c1"), call_block("c2"))
    first, second = log.tool_call("c1"), log.tool_call("c2")
    log.tool_result("c1", first)
    log.tool_result("c2", second)
    log.end_step()
    log.start_step()
    log.chunks(delta("done"), finish())
    log.assistant(text_block("done"))
    log.end_step()
    log.end_turn()
    return log


def _found(
    events: Sequence[Event], header: Header = ROOT, **options: bool
) -> list[Finding]:
    return list(log_findings(header, events, **options))


def _without(events: Sequence[Event], *seqs: int) -> list[Event]:
    """Return a log without some events, the others moved up; sources are kept."""
    kept = [event for event in events if event.seq not in seqs]
    return [event_from_content(e.content(), n, e.time) for n, e in enumerate(kept)]


# --- what is sound ---------------------------------------------------------------


def _interrupted() -> list[Event]:
    events = _with_tools().events[:8]
    return [*events, *closers(events)]


def _aborted() -> list[Event]:
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.chunks(delta("hal"))
    log.end_step()
    log.end_turn("aborted")
    return log.events


def _compacted() -> list[Event]:
    log = answered(2)
    nodes = [e.seq for e in log.events if e.surface_op is not None][:2]
    replaces = {"op": "replace", "start": nodes[0], "end": nodes[1]}
    message = {**log.events[nodes[0]].data, "id": "summary"}
    log.add("user/message", message, surfaceOp=replaces, sourceEventSeqs=nodes)
    log.answered_turn("more", "yes")
    return log.events


def _pruned(**changes: Any) -> list[Event]:
    """A tool's result told anew, in the next turn."""
    log = _with_tools()
    result = next(event for event in log.events if event.type == "tool/result")
    log.start_turn()
    block = {**result.data["message"]["content"][0], "content": [text_block("…")]}
    data = {**result.data, "message": {**result.data["message"], "content": [block]}}
    data.update(changes)
    replaces = {"op": "replace", "start": result.seq, "end": result.seq}
    log.add("tool/result", data, surfaceOp=replaces, sourceEventSeqs=[result.seq])
    log.end_turn()
    return log.events


def _retried() -> list[Event]:
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.chunks(delta("x"), finish("error"))
    log.add("llm/retry", {"turn": 1, "step": 1})
    log.add("llm/retry-started", {"turn": 1, "step": 1})
    log.chunks(delta("y"), finish())
    log.assistant(text_block("y"))
    log.end_step()
    log.end_turn()
    return log.events


SOUND: dict[str, Sequence[Event]] = {
    "nothing": [],
    "turns": answered(3).events,
    "tools": _with_tools().events,
    "an interrupted turn": _interrupted(),
    "an aborted call": _aborted(),
    "a compaction": _compacted(),
    "a result told anew": _pruned(),
    "a retry": _retried(),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_log(name: str) -> None:
    assert _found(SOUND[name]) == []


def test_a_soundforked() -> None:
    header, log = forked()
    assert _found(log.events, header) == []


def test_time_may_go_backwards() -> None:
    events = [
        event_from_content(event.content(), event.seq, 9000 - event.seq)
        for event in answered().events
    ]
    assert _found(events) == []


def _logs(paths: Sequence[Path]) -> list[Any]:
    return [pytest.param(p, id=f"{p.parent.name}/{p.name}") for p in paths]


@pytest.mark.parametrize("path", _logs(sorted(FOLDER.glob("*/session*.jsonl"))))
def test_every_example_is_sound(path: Path) -> None:
    recording = read_file(path)
    assert _found(recording.events, recording.header) == []


# A child that can be talked to again is given a descriptor as its seed, and marks the
# end of that; it inherited nothing, and our stores write no such mark.
_MARKED = {"acp-agent__subagent-continuable", "acp-agent__subagent-report"}


@needs_corpus
@pytest.mark.parametrize("path", _logs(dsh_logs()))
def test_every_recording_of_the_corpus_is_sound(path: Path) -> None:
    recording = read_file(path)
    found = [f.text for f in _found(recording.events, recording.header)]
    is_marked = path.parent.name in _MARKED and recording.header.parent_session
    mark = "found session/end-seed in a session without a seed, expected none"
    assert found == ([mark] if is_marked else [])


# --- what is not -----------------------------------------------------------------


def _turn(number: int) -> JsonObject:
    return {"turn": number}


def _told(kind: str, data: Any, **fields: Any) -> Callable[[], list[Event]]:
    """A sound log with one more event, outside of its turns."""

    def made() -> list[Event]:
        log = answered()
        log.add(kind, data, **fields)
        return log.events

    return made


def _started(*more: tuple[str, JsonObject]) -> list[Event]:
    """An open step, and what is put into it."""
    log = LogWriter()
    log.start_turn()
    log.start_step()
    for kind, data in more:
        log.add(kind, data)
    return log.events


def _messages(*blocks: JsonObject, **fields: Any) -> list[Event]:
    """A step whose call is logged with these blocks; the message is event 4."""
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.chunks(delta("x"), finish())
    log.assistant(*blocks)
    content = {**log.events[4].content(), **fields}
    log.events[4] = event_from_content(content, 4, 0)
    log.end_step()
    log.end_turn()
    return log.events


def _results(*changes: JsonObject) -> list[Event]:
    log = _with_tools()
    events = log.events[:9]
    for number, change in enumerate(changes):
        content = {**log.events[8].content(), **change}
        events.append(event_from_content(content, 9 + number, 0))
    return events


PLACE = {"turn": 1, "step": 1}
TOOLS = _with_tools().events
PLAIN = answered(2).events
CITED = {"surfaceOp": "append", "sourceEventSeqs": [0]}
NO_ID = {**call_block("c"), "id": ""}
NO_NAME = {**call_block("c"), "name": ""}

BROKEN: dict[str, tuple[Callable[[], Sequence[Event]], int, list[str]]] = {
    "seq": (
        lambda: [*PLAIN[:8], *PLAIN[9:]],
        8,
        ["found seq 9", "expected 8"],
    ),
    "first turn": (
        lambda: edited(PLAIN[:1], 0, turn=2),
        0,
        ["found turn 2", "expected 1"],
    ),
    "turn skipped": (
        lambda: edited(PLAIN, 8, turn=3),
        8,
        ["found turn 3", "expected 2"],
    ),
    "two turns": (
        lambda: _without(PLAIN, 7),
        7,
        ["turn 2 starts while turn 1 is open"],
    ),
    "end of no turn": (
        _told("turn/end", {"turn": 2, "reason": {"kind": "completed"}}),
        8,
        ["turn 2 ends, expected an open turn"],
    ),
    "end of another turn": (
        lambda: edited(PLAIN, 7, turn=5),
        7,
        ["turn 5 ends, expected the end of 1"],
    ),
    "open step": (
        lambda: _without(PLAIN, 6),
        6,
        ["turn 1 ends while its step 1 is open"],
    ),
    "step outside": (
        _told("step/start", {"turn": 2, "step": 1}),
        8,
        ["step 1 of turn 2 starts", "expected an open turn"],
    ),
    "step of another turn": (
        lambda: edited(PLAIN, 1, turn=7),
        1,
        ["step 1 of turn 7 starts", "expected turn 1"],
    ),
    "step skipped": (
        lambda: edited(TOOLS, 11, step=3),
        11,
        ["found step 3", "expected 2"],
    ),
    "two steps": (
        lambda: _without(TOOLS, 10),
        10,
        ["step 2 starts while step 1 is open"],
    ),
    "end of another step": (
        lambda: edited(PLAIN, 6, step=2),
        6,
        ["step 2 of turn 1 ends", "expected turn 1, step 1"],
    ),
    "chunk of another step": (
        lambda: edited(PLAIN, 3, step=2),
        3,
        ["assistant/chunk of turn 1, step 2", "expected turn 1, step 1"],
    ),
    "retry outside": (
        _told("llm/retry", {"turn": 1, "step": 1}),
        8,
        ["llm/retry of turn 1, step 1", "expected an open turn"],
    ),
    "malformed retry": (
        lambda: _started(("llm/retry", {"turn": [], "step": None})),
        2,
        ["llm/retry of turn [], step null"],
    ),
    "todo outside": (_told("todo/write", {"todos": []}), 8, ["todo/write outside"]),
    "context outside": (_told("request/context", {}), 8, ["request/context outside"]),
    "header outside": (
        _told(
            "request/header", {"header": {"config": {"provider": "p", "model": "m"}}}
        ),
        8,
        ["request/header outside of a turn"],
    ),
    "result without call": (
        lambda: _without(TOOLS, 6),
        7,
        ['a result of "c1" without a tool/call', "expected one in this step"],
    ),
    "second result": (
        lambda: _results({}),
        9,
        ['another result of tool call "c1"', "expected 1"],
    ),
    "unanswered call": (
        lambda: _without(TOOLS, 8),
        9,
        ['tool call "c1" of step 1 has no result', "before the step ends"],
    ),
    "never started": (
        lambda: _without(TOOLS, 6, 8),
        8,
        ['tool call "c1" of step 1 has no result'],
    ),
    "one id twice": (
        lambda: _messages(call_block("c"), call_block("c")),
        4,
        ['two tool calls of one message have the id "c"'],
    ),
    "empty id": (lambda: _messages(NO_ID), 4, ["a tool call's id is empty"]),
    "empty name": (
        lambda: _messages(NO_NAME),
        4,
        ['the name of tool call "c" is empty'],
    ),
    "empty name of a call": (
        lambda: _started(
            ("tool/call", {**PLACE, "callId": "c", "name": "", "arguments": "{}"})
        ),
        2,
        ['the name of tool call "c" is empty'],
    ),
    "cites no chunk": (
        lambda: _messages(text_block("x"), **CITED),
        4,
        ["the message cites event 0", "chunks of turn 1, step 1"],
    ),
    "cites another step": (
        lambda: _edited_sources(TOOLS, 14, [3]),
        14,
        ["the message cites event 3", "chunks of turn 1, step 2"],
    ),
    "no finish": (
        lambda: _without(PLAIN, 4),
        3,
        ["this model call has no finish when its message is logged"],
    ),
    "no finish at the end": (
        lambda: edited(_aborted(), 4, reason={"kind": "completed"}),
        2,
        ["this model call has no finish", 'ends "completed"'],
    ),
    "no finish before a call": (
        lambda: _without(TOOLS, 4, 5, 6, 7, 8, 9),
        3,
        ["no finish when a call of turn 1, step 2 begins"],
    ),
    "no surface": (
        lambda: _with_surface(PLAIN, 2, None),
        2,
        ["user/message must have a surfaceOp"],
    ),
    "surface on a turn": (
        lambda: _with_surface(PLAIN, 0, "append"),
        0,
        ["turn/start must not have surface fields"],
    ),
    "no node": (
        lambda: _with_surface(PLAIN, 10, {"op": "replace", "start": 0, "end": 0}),
        10,
        ["replaces 0..0, not on the surface"],
    ),
    "node not cited": (
        lambda: _with_surface(PLAIN, 10, {"op": "replace", "start": 2, "end": 2}),
        10,
        ["replaces event 2", "sourceEventSeqs"],
    ),
    "replaces no result": (
        lambda: _replacing_result(1, 1),
        18,
        ["replaces event 1", "expected that to be a tool/result"],
    ),
    "replaces two results": (
        lambda: _replacing_result(8, 9),
        18,
        ["replaces 2 messages", "exactly one tool/result"],
    ),
    "replaces more than content": (
        lambda: _pruned(error={"name": "E", "code": "E"}),
        18,
        ["replaces event 8", "in more than its block's content"],
    ),
    "replaces outside": (
        lambda: _without(_pruned(), 17, 19),
        17,
        ["tool/result replaces, expected an open turn"],
    ),
    "shape": (
        lambda: edited(PLAIN, 2, id=""),
        2,
        ["user/message: message id must be a non-empty string"],
    ),
    "no source": (
        lambda: edited(PLAIN, 2, source={}),
        2,
        ["user/message: source.kind must be some text, found null"],
    ),
    "no model": (
        lambda: _messages(
            data={
                **PLACE,
                "message": {
                    "id": "a",
                    "role": "assistant",
                    "content": [],
                    "source": {"kind": "model", "provider": "p"},
                },
            }
        ),
        4,
        ["assistant/message: source.model must be a string, found null"],
    ),
    "open turn": (lambda: PLAIN[:11], 10, ["turn 2 is open: a resume closes it"]),
}


def _with_surface(events: Sequence[Event], seq: int, operation: Any) -> list[Event]:
    edited = list(events)
    content = {**edited[seq].content(), "surfaceOp": operation}
    edited[seq] = event_from_content(content, seq, edited[seq].time)
    return edited


def _edited_sources(
    events: Sequence[Event], seq: int, sources: list[int]
) -> list[Event]:
    edited = list(events)
    content = {**edited[seq].content(), "sourceEventSeqs": sources}
    edited[seq] = event_from_content(content, seq, edited[seq].time)
    return edited


def _replacing_result(start: int, end: int) -> list[Event]:
    events = _pruned()
    operation = {"op": "replace", "start": start, "end": end}
    content = events[18].content()
    content["surfaceOp"] = operation
    content["sourceEventSeqs"] = list(range(start, end + 1))
    events[18] = event_from_content(content, 18, 0)
    return events


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_found_where_it_is_broken(name: str) -> None:
    build, seq, facts = BROKEN[name]
    found = _found(build())
    lines = [finding.line for finding in found if finding.seq == seq]
    assert any(all(fact in line for fact in facts) for line in lines), found
    assert all(line.startswith(f'session "s" event {seq}: ') for line in lines)
    assert not any(finding.is_remark for finding in found)


def test_what_a_model_wrote_that_is_no_json_is_a_remark() -> None:
    block = {**call_block("c"), "arguments": "{oops"}
    found = [f for f in _found(_messages(block)) if f.is_remark]
    assert [f.seq for f in found] == [4]
    assert 'arguments of tool call "c" are no JSON' in found[0].text


def test_the_turn_of_a_live_session_may_be_open() -> None:
    assert _found(PLAIN[:11], is_live=True) == []


def test_a_malformed_turn_is_one_finding_and_not_many() -> None:
    events = edited(PLAIN, 0, turn="one")
    assert [finding.seq for finding in _found(events)] == [0]


# --- the boundary ----------------------------------------------------------------


def _other_digest() -> tuple[Header, Sequence[Event]]:
    header, log = forked(seedDigest="0" * 64)
    return header, log.events


def _at(length: int) -> tuple[Header, Sequence[Event]]:
    header, log = forked(seedLength=length, seedDigest=None)
    return header.with_fields(seedDigest=None), log.events


def _unmarked(*marks: int) -> tuple[Header, Sequence[Event]]:
    """A fork with the mark at these places of its own events instead."""
    header, log = forked()
    own = [event.content() for event in log.events[9:]]
    for mark in marks:
        own.insert(mark, {"type": "session/end-seed", "data": {}})
    contents = [*(event.content() for event in log.events[:8]), *own]
    return header, [event_from_content(c, n, 0) for n, c in enumerate(contents)]


def _spawned(**fields: Any) -> tuple[Header, Sequence[Event]]:
    return ROOT.with_fields(**fields), PLAIN


DELEGATED = {"turn": 1, "step": 1, "block": 1, "context": "spawn"}

BOUNDARIES: dict[
    str, tuple[Callable[[], tuple[Header, Sequence[Event]]], int | None, list[str]]
] = {
    "beyond": (lambda: _at(99), None, ["seedLength 99 is beyond", "17 events"]),
    "in a call": (lambda: _at(4), 4, ["inside the model call of turn 1, step 1"]),
    "in a turn": (lambda: _at(7), 7, ["7 inherited events leave turn 1 open"]),
    "digest": (_other_digest, None, ["seedDigest is 000", "first 8 events"]),
    "no mark": (_unmarked, 8, ['found "turn/start"', "expected session/end-seed"]),
    "a late mark": (lambda: _unmarked(1), 9, ["another session/end-seed", "event 8"]),
    "two marks": (lambda: _unmarked(0, 0), 9, ["another session/end-seed"]),
    "a mark without a seed": (
        lambda: (ROOT, forked()[1].events),
        8,
        ["session/end-seed in a session without a seed"],
    ),
    "a spawn with a seed": (
        lambda: (forked(spawnedBy=DELEGATED)[0], forked()[1].events),
        None,
        ["spawnedBy.context is spawn", "seedLength is 8"],
    ),
    "nobody's child": (
        lambda: _spawned(spawnedBy=DELEGATED),
        None,
        ["spawnedBy, but no parentSession"],
    ),
}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_a_boundary_that_cannot_be(name: str) -> None:
    build, seq, facts = BOUNDARIES[name]
    header, events = build()
    found = [finding for finding in _found(events, header) if finding.seq == seq]
    assert any(all(fact in f.line for fact in facts) for f in found), found
