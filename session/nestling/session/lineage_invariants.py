"""Every rule between sessions of one store: parents, boundaries, depths, spawn paths.

Each session is looked at once and leaves an ``Imprint``, so that no more than one log
at a time has to be held. Source of the rules: the session format, version 0, and the
spawn paths of ``nestling.session.spawn_path``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from nestling.session.boundary import own_events
from nestling.session.delegation import FORK_TOOL, SPAWN_TOOL
from nestling.session.event import Event
from nestling.session.header import Header, SpawnedBy
from nestling.session.invariants import Finding
from nestling.session.jsontext import canonical, shown
from nestling.session.shape import shape_problem
from nestling.session.spawn_path import ROOT, child_path

_CONTEXTS: Final = {SPAWN_TOOL: "spawn", FORK_TOOL: "fork"}
_TOLD: Final = frozenset({"turn/start", "step/start", "assistant/message", "tool/call"})


class _Block(NamedTuple):
    """A tool-call block of a message."""

    call_id: str
    name: str


class Imprint(NamedTuple):
    """What is kept of a session's log to judge its relatives by.

    Attributes:
        length: how many events it has.
        contents: a hash of what each event says, of as many as anybody inherited.
        steps: (turn, step) of its own steps; a turn has a step 0, too.
        blocks: its own tool-call blocks by (turn, step, position).
        begun: (turn, step, call id) of its own tool calls.
    """

    length: int
    contents: Sequence[bytes]
    steps: Collection[tuple[int, int]]
    blocks: Mapping[tuple[int, int, int], _Block]
    begun: Collection[tuple[int, int, str]]


def imprint(header: Header, events: Sequence[Event], inherited: int) -> Imprint:
    """Return what is kept of a session's log.

    Args:
        header: the session's header.
        events: all that is stored of it, from seq 0.
        inherited: the largest ``seedLength`` among its children.
    """
    longest = max(inherited, header.seed_length)
    contents = [
        hashlib.sha256(canonical(event.content())).digest()
        for event in events[:longest]
    ]
    steps: set[tuple[int, int]] = set()
    blocks: dict[tuple[int, int, int], _Block] = {}
    begun: set[tuple[int, int, str]] = set()
    for event in own_events(events, header.seed_length):
        if event.type not in _TOLD or shape_problem(event) is not None:
            continue
        place = event.data["turn"], event.data.get("step", 0)
        if event.type == "tool/call":
            begun.add((*place, event.data["callId"]))
        elif event.type != "assistant/message":
            steps.add(place)
        elif event.surface_op == "append":
            for position, block in enumerate(event.data["message"]["content"]):
                if block["type"] == "tool-call":
                    found = _Block(block["id"], block["name"])
                    blocks.setdefault((*place, position), found)
    return Imprint(len(events), contents, steps, blocks, begun)


def lineage_findings(
    headers: Iterable[Header], stored: Collection[str], imprints: Mapping[str, Imprint]
) -> Iterator[Finding]:
    """Yield what is wrong between the sessions of a store.

    Args:
        headers: those that can be read.
        stored: the ids of all sessions, also of those that cannot.
        imprints: of the sessions whose logs can be read, by id.
    """
    by_id = {header.id: header for header in headers}
    taken: dict[tuple[str, str], str] = {}
    for child in by_id.values():
        parent = child.parent_session
        if parent is None:
            continue
        if parent not in stored:
            text = f"its parent {shown(parent)} is not stored here"
            yield Finding(child.id, None, text, is_remark=True)
        if parent in by_id:
            yield from _depth_findings(child, by_id[parent])
        if parent in imprints:
            if child.id in imprints:
                yield from _seed_findings(child, imprints[child.id], imprints[parent])
            yield from _delegation_findings(child, imprints[parent])
        yield from _path_findings(child, parent, taken)
    yield from _circle_findings(by_id)


def _depth_findings(child: Header, parent: Header) -> Iterator[Finding]:
    depth = child.delegation_depth
    is_delegated = child.spawned_by is not None or "origin" in child.fields
    expected = (parent.delegation_depth or 0) + 1
    # A copy that nobody delegated is as deep as what it was copied from.
    if is_delegated and depth is not None and depth != expected:
        text = f"delegationDepth is {depth}, expected {expected}, one more than "
        yield Finding(child.id, None, f"{text}that of its parent {shown(parent.id)}")


def _seed_findings(child: Header, own: Imprint, parent: Imprint) -> Iterator[Finding]:
    length, whose = child.seed_length, shown(child.parent_session)
    if length > parent.length:
        text = f"seedLength is {length}, but its parent {whose} has {parent.length} "
        yield Finding(child.id, None, f"{text}events; expected a prefix of them")
    # Where its own log is too short, that was found when it was looked at alone.
    pairs = zip(own.contents[:length], parent.contents[:length], strict=False)
    for seq, (inherited, told) in enumerate(pairs):
        if inherited != told:
            text = f"this inherited event is not event {seq} of its parent {whose}"
            yield Finding(child.id, seq, f"{text}, expected the parent's prefix")
            return


def _delegation_findings(child: Header, parent: Imprint) -> Iterator[Finding]:
    stated = child.spawned_by
    if stated is not None:
        whose = f"the own events of its parent {shown(child.parent_session)}"
        problem = _delegation_problem(stated, parent, whose)
        if problem is not None:
            yield Finding(child.id, None, f"spawnedBy names {problem}")


def _delegation_problem(stated: SpawnedBy, parent: Imprint, whose: str) -> str | None:
    place = f"turn {stated.turn}, step {stated.step}"
    if stated.block is None:
        is_there = (stated.turn, stated.step) in parent.steps
        return None if is_there else f"{place}, expected a step of {whose}"
    block = parent.blocks.get((stated.turn, stated.step, stated.block))
    place = f"{place}, block {stated.block}"
    if block is None:
        return f"{place}, expected a tool call in {whose}"
    if stated.call_id not in (None, block.call_id):
        found = f"{place} with callId {shown(stated.call_id)}"
        return f"{found}, expected {shown(block.call_id)} as in {whose}"
    if (stated.turn, stated.step, block.call_id) not in parent.begun:
        return f"{place}, expected a tool/call of that block in {whose}"
    # Any other tool may delegate by its code, either way.
    context = _CONTEXTS.get(block.name, stated.context)
    if stated.context != context:
        found = f"{place} with context {stated.context}"
        return f"{found}, expected {context} of {block.name} in {whose}"
    return None


def _path_findings(
    child: Header, parent: str, taken: dict[tuple[str, str], str]
) -> Iterator[Finding]:
    if child.spawned_by is None:
        return
    path = child_path(ROOT, child.spawned_by)
    other = taken.setdefault((parent, path), child.id)
    if other != child.id:
        text = f"it is at {path[1:]} below its parent {shown(parent)}, as is session "
        yield Finding(child.id, None, f"{text}{shown(other)}; expected one at each")


def _circle_findings(headers: Mapping[str, Header]) -> Iterator[Finding]:
    done: set[str] = set()
    for start in headers:
        walked: dict[str, int] = {}
        at: str | None = start
        while at is not None and at in headers and at not in done:
            if at in walked:
                circle = list(walked)[walked[at] :]
                names = ", ".join(map(shown, circle))
                text = f"parentSession leads round in a circle ({names})"
                yield Finding(at, None, f"{text}, expected it to lead to a root")
                break
            walked[at] = len(walked)
            at = headers[at].parent_session
        done.update(walked)
