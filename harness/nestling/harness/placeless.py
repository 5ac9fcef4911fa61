"""Logs without the paths of the machine that they were recorded on.

What a model said is left as it was said, and so is what quotes it: a task that it gave
to a child, and what it was told that the child came to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nestling.driver.exits import Log
from nestling.harness.compare import SKELETON
from nestling.harness.normalise import Normalisers
from nestling.session.delegation import DELEGATION_TOOLS
from nestling.session.digest import seed_digest
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.spawn_path import ROOT, sort_key


def placeless(logs: Mapping[str, Log], normalisers: Normalisers) -> dict[str, Log]:
    """Return the logs of a tree with ``{{cwd}}`` and ``{{scenario}}`` for such paths.

    Args:
        logs: what each session has left, by spawn path; with every parent's.
        normalisers: those in force; without ``cwd`` among them, logs stay as they are.
    """
    made: dict[str, Log] = {}
    for path in sorted(logs, key=sort_key):
        header, events = logs[path]
        length = header.seed_length
        parent = logs.get(path.rpartition("/")[0] or ROOT) if path != ROOT else None
        seed: Sequence[Event] = ()
        if length > 0:
            seed = made[path.rpartition("/")[0] or ROOT].events[:length]
            header = _with_digest(header, seed)
        quoting = set(_quoting(parent, header, events))
        own = [
            event if event.seq in quoting else _written(event, normalisers)
            for event in events[length:]
        ]
        made[path] = Log(header, [*seed, *own])
    return made


def _with_digest(header: Header, seed: Sequence[Event]) -> Header:
    if header.seed_digest is None:
        return header
    return header.with_fields(seedDigest=seed_digest(seed))


def _quoting(
    parent: Log | None, header: Header, events: Sequence[Event]
) -> Iterator[int]:
    """Yield the seqs of own events that hold what a model has said."""
    born = header.spawned_by
    is_waiting = False  # for the task that the parent's model gave it
    if parent is not None and born is not None and born.block is not None:
        is_waiting = born.n == 0 and born.call_id in _delegating(parent.events)
    delegating = _delegating(events)
    for event in events[header.seed_length :]:
        if event.type in SKELETON:
            yield event.seq
        elif event.type == "user/message" and is_waiting:
            yield event.seq
            is_waiting = False
        elif event.type == "tool/result" and _call_id(event) in delegating:
            yield event.seq


def _call_id(result: Event) -> str:
    called: str = result.data["message"]["source"]["callId"]
    return called


def _delegating(events: Sequence[Event]) -> set[str]:
    """Return the ids of the calls of delegation tools."""
    return {
        event.data["callId"]
        for event in events
        if event.type == "tool/call" and event.data["name"] in DELEGATION_TOOLS
    }


def _written(event: Event, normalisers: Normalisers) -> Event:
    data = normalisers.without_places(event.data)
    if data == event.data:
        return event
    return Event(
        event.seq,
        event.type,
        event.time,
        data,
        event.surface_op,
        event.source_event_seqs,
        event.ignorable,
    )
