"""Lineage: who is whose child among the recorded sessions of one folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nestling.harness.bind_order import by_age
from nestling.session.errors import UnreadableError
from nestling.session.reading import Recording


class Lineage(NamedTuple):
    """A tree of recorded sessions.

    Attributes:
        sessions: every session, parents before their children, the root first.
        children: of each session's id, its children by age.
        depths: of each session's id, how many delegations lie above it.
    """

    sessions: Sequence[Recording]
    children: Mapping[str, Sequence[Recording]]
    depths: Mapping[str, int]


def lineage_of(recordings: Sequence[Recording]) -> Lineage:
    """Find the tree that recordings form by their ``parentSession``.

    Raises:
        UnreadableError: if two have one id, a parent is missing, there is not exactly
            one root, or parents form a circle.
    """
    _check_ids(recordings)
    names = {recording.header.id: recording.name for recording in recordings}
    children: dict[str, list[Recording]] = {session_id: [] for session_id in names}
    for recording in by_age(recordings):
        parent = recording.header.parent_session
        if parent is not None:
            _siblings(recording, parent, children).append(recording)
    lineage = _walk(_only_root(recordings), children)
    _check_all_reached(recordings, lineage)
    return lineage


def _check_ids(recordings: Iterable[Recording]) -> None:
    names: dict[str, str] = {}
    for recording in recordings:
        other = names.setdefault(recording.header.id, recording.name)
        if other != recording.name:
            raise UnreadableError(
                f"{other} and {recording.name} have one id, {recording.header.id!r}; "
                "expected every session of a tree to have its own"
            )


def _siblings(
    recording: Recording, parent: str, children: Mapping[str, list[Recording]]
) -> list[Recording]:
    if parent not in children:
        raise UnreadableError(
            f"{recording.name}: parentSession {parent!r} is not among the recorded "
            f"sessions, expected one of {', '.join(map(repr, children))}"
        )
    return children[parent]


def _only_root(recordings: Sequence[Recording]) -> Recording:
    roots = [r for r in recordings if r.header.parent_session is None]
    if len(roots) == 1:
        return roots[0]
    if roots:
        raise UnreadableError(
            f"{' and '.join(root.name for root in roots)} have no parentSession, "
            "expected one root"
        )
    raise UnreadableError(
        f"every one of {', '.join(r.name for r in recordings)} has a parentSession, "
        "expected one root without"
    )


def _walk(root: Recording, children: Mapping[str, Sequence[Recording]]) -> Lineage:
    sessions, depths = [root], {root.header.id: 0}
    for parent in sessions:  # grows while it is walked
        for child in children[parent.header.id]:
            depths[child.header.id] = depths[parent.header.id] + 1
            sessions.append(child)
    return Lineage(sessions, children, depths)


def _check_all_reached(recordings: Iterable[Recording], lineage: Lineage) -> None:
    lost = [r for r in recordings if r.header.id not in lineage.depths]
    if lost:
        names = ", ".join(recording.name for recording in _circle(lost))
        raise UnreadableError(
            f"{names}: parentSession leads round in a circle, expected it to lead to "
            "the root"
        )


def _circle(lost: Sequence[Recording]) -> Iterable[Recording]:
    """Return the circle that the parents of a session end in, if not in the root."""
    by_id = {recording.header.id: recording for recording in lost}
    walked: dict[str, int] = {}
    at = lost[0].header.id
    while at not in walked:
        walked[at] = len(walked)
        at = by_id[at].header.parent_session or ""
    return [by_id[each] for each, place in walked.items() if place >= walked[at]]
