"""The sessions of a store as trees: whose child each one is, and in what order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nestling.harness.bind_order import age_key
from nestling.session.header import Header
from nestling.session.spawn_path import ROOT, child_path, sort_key


class Place(NamedTuple):
    """Where a session stands in a drawing.

    Attributes:
        top: the id of the session that its tree begins with.
        path: its path below that; None if no delegation is stated.
        is_rooted: the tree begins with a root, so that the path is the spawn path.
    """

    top: str
    path: str | None
    is_rooted: bool


def places(headers: Iterable[Header]) -> dict[str, Place]:
    """Return the place of every session by its id, in the order of the drawing.

    Trees come by age of what they begin with: a root, a session whose parent is not
    here, or one of a circle of parents. In a tree the order is that of the paths; then
    come those without one, by age.
    """
    ordered = sorted(headers, key=age_key)
    ids = {header.id for header in ordered}
    children: dict[str, list[Header]] = {}
    for header in ordered:
        if header.parent_session is not None:
            children.setdefault(header.parent_session, []).append(header)
    placed: dict[str, Place] = {}
    tops = [header for header in ordered if header.parent_session not in ids]
    # What is not below any of these is in a circle; it begins with the oldest.
    for top in [*tops, *ordered]:
        if top.id not in placed:
            placed.update(_tree(top, children, placed))
    return placed


def _tree(
    top: Header, children: Mapping[str, Sequence[Header]], placed: Mapping[str, Place]
) -> dict[str, Place]:
    paths: dict[str, str | None] = {top.id: ROOT}
    waiting = [top]
    for session in waiting:  # grows while it is walked
        above = paths[session.id]
        for child in children.get(session.id, ()):
            if child.id not in paths and child.id not in placed:
                paths[child.id] = _path(above, child)
                waiting.append(child)
    is_rooted = top.parent_session is None
    return {
        session_id: Place(top.id, paths[session_id], is_rooted)
        for session_id in _in_order(waiting, paths)
    }


def _path(above: str | None, child: Header) -> str | None:
    stated = child.spawned_by
    return None if above is None or stated is None else child_path(above, stated)


def _in_order(
    sessions: Sequence[Header], paths: Mapping[str, str | None]
) -> Iterator[str]:
    with_path = [(path, s.id) for s in sessions if (path := paths[s.id]) is not None]
    for _, session_id in sorted(with_path, key=lambda pair: sort_key(pair[0])):
        yield session_id
    yield from (s.id for s in sorted(sessions, key=age_key) if paths[s.id] is None)


def below(session_id: str, headers: Iterable[Header]) -> set[str]:
    """Return the ids of a session and of all that descend from it."""
    children: dict[str, list[str]] = {}
    for header in headers:
        if header.parent_session is not None:
            children.setdefault(header.parent_session, []).append(header.id)
    found, waiting = {session_id}, [session_id]
    while waiting:
        new = [c for c in children.get(waiting.pop(), ()) if c not in found]
        found.update(new)
        waiting += new
    return found
