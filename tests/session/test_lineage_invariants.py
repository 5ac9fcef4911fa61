"""Every rule between the sessions of a store: broken once each, and told of the child."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nestling.session.event import Event, event_from_content
from nestling.session.header import Header
from nestling.session.invariants import Finding
from nestling.session.lineage_invariants import imprint, lineage_findings
from nestling.session.reading import Recording
from nestling.session.recording_io import read_file
from support.corpus import dsh_logs, needs_corpus
from support.examples import FOLDER
from support.session_logs import (
    answered,
    call_block,
    delta,
    edited,
    finish,
    forked,
    text_block,
)


def _parent() -> tuple[Header, Sequence[Event]]:
    """Two turns; the second delegates in its first step, by blocks 1 and 2."""
    log = answered()
    log.start_turn()
    log.start_step()
    log.chunks(delta("x"), finish("tool-calls"))
    log.assistant(
        text_block("x"),
        call_block("c1", "subagent"),
        call_block("c2", "subagent_fork"),
        call_block("c3", "research"),
    )
    seqs = {call_id: log.tool_call(call_id) for call_id in ("c1", "c2", "c3")}
    for call_id, seq in seqs.items():
        log.tool_result(call_id, seq)
    log.end_step()
    log.end_turn()
    return Header("p", 1, {"delegationDepth": 0}), log.events


def _child(
    block: int | None = 1, call_id: str = "c1", context: str = "spawn", **fields: Any
) -> tuple[Header, Sequence[Event]]:
    stated = {"turn": 2, "step": 1, "context": context, "callId": call_id}
    if block is not None:
        stated["block"] = block
    header = {
        "parentSession": "p",
        "delegationDepth": 1,
        "spawnedBy": {**stated, **fields.pop("spawnedBy", {})},
        **fields,
    }
    return Header(fields.pop("id", "c"), 2, header), answered().events


def _its_fork(**fields: Any) -> tuple[Header, Sequence[Event]]:
    header, _ = _child(2, "c2", "fork", **{"seedLength": 8, **fields})
    return header, forked()[1].events


def _tree(*sessions: tuple[Header, Sequence[Event]]) -> list[Finding]:
    headers = [header for header, _ in sessions]
    imprints = {header.id: imprint(header, events, 99) for header, events in sessions}
    return list(lineage_findings(headers, imprints.keys(), imprints))


def _told_otherwise() -> tuple[Header, Sequence[Event]]:
    header, events = _its_fork()
    return header, edited(events, 2, id="other")


TREES: dict[
    str, tuple[Callable[[], tuple[Header, Sequence[Event]]], int | None, list[str]]
] = {
    "depth": (lambda: _child(delegationDepth=2), None, ["is 2, expected 1"]),
    "seed": (_told_otherwise, 2, ['not event 2 of its parent "p"']),
    "seed beyond": (
        lambda: (_its_fork(seedLength=40)[0], answered(6).events),
        None,
        ["seedLength is 40, but its parent", "events; expected a prefix"],
    ),
    "no turn": (
        lambda: _child(None, spawnedBy={"turn": 9}),
        None,
        ["names turn 9, step 1, expected a step"],
    ),
    "no block": (lambda: _child(7), None, ["block 7, expected a tool call"]),
    "text block": (lambda: _child(0), None, ["block 0, expected a tool call"]),
    "another call": (
        lambda: _child(1, "c9"),
        None,
        ['callId "c9", expected "c1"'],
    ),
    "another context": (
        lambda: _child(2, "c2", "spawn"),
        None,
        ["context spawn, expected fork of subagent_fork"],
    ),
    "its own parent": (
        lambda: _child(parentSession="c"),
        None,
        ['circle ("c")', "expected it to lead to a root"],
    ),
}


@pytest.mark.parametrize("name", TREES)
def test_a_child_that_does_not_fit(name: str) -> None:
    build, seq, facts = TREES[name]
    child = build()
    found = [f for f in _tree(_parent(), child) if f.seq == seq]
    assert any(all(fact in f.line for fact in facts) for f in found), found
    assert all(finding.session == "c" for finding in found)


def test_children_that_fit() -> None:
    by_code, events = _child(3, "c3", "fork")
    children = [
        _child(),
        (Header("f", 2, _its_fork()[0].fields), _its_fork()[1]),
        (Header("d", 2, by_code.fields), events),
        (Header("e", 2, _child(None)[0].fields), events),
        (Header("copy", 2, {"parentSession": "p", "delegationDepth": 0}), events),
    ]
    assert _tree(_parent(), *children) == []


def test_a_call_that_was_never_begun() -> None:
    header, events = _parent()
    begun = [e for e in events if e.type != "tool/call"]
    moved = [event_from_content(e.content(), n, 0) for n, e in enumerate(begun)]
    (found,) = _tree((header, moved), _child())
    assert "expected a tool/call of that block" in found.line


def test_two_children_at_one_path() -> None:
    other = Header("d", 3, _child()[0].fields)
    (found,) = _tree(_parent(), _child(), (other, answered().events))
    assert found.line == (
        'session "d": it is at t2s1b1 below its parent "p", as is session "c"; '
        "expected one at each"
    )


def test_a_circle_is_told_once() -> None:
    headers = [Header(i, 1, {"parentSession": p}) for i, p in ("ab", "bc", "ca", "da")]
    (found,) = _tree(*((header, []) for header in headers))
    assert 'circle ("a", "b", "c")' in found.line


def test_an_orphan_is_only_a_remark() -> None:
    (found,) = _tree(_child())
    assert found.is_remark
    assert found.line == 'session "c": its parent "p" is not stored here'


def test_a_parent_that_cannot_be_read_says_nothing_of_its_child() -> None:
    header, events = _child()
    imprints = {"c": imprint(header, events, 0)}
    assert list(lineage_findings([header], {"c", "p"}, imprints)) == []


def _recordings(folder: Path) -> list[Recording]:
    return [read_file(path) for path in sorted(folder.glob("session*.jsonl"))]


@pytest.mark.parametrize(
    "folder", [pytest.param(p, id=p.name) for p in sorted(FOLDER.glob("[!_]*"))]
)
def test_every_example_is_a_sound_tree(folder: Path) -> None:
    assert _tree(*((r.header, r.events) for r in _recordings(folder))) == []


@needs_corpus
def test_every_tree_of_the_corpus_is_sound() -> None:
    for folder in sorted({path.parent for path in dsh_logs()}):
        found = _tree(*((r.header, r.events) for r in _recordings(folder)))
        assert found == [], folder.name
