"""Stated seed digests, checked against what a child and its parent hold."""

from __future__ import annotations

from nestling.session.digest import seed_digest
from nestling.session.errors import UnreadableError
from nestling.session.reading import Recording


def check_seed_digest(recording: Recording) -> None:
    """Check a stated ``seedDigest`` against the events it is about.

    Raises:
        UnreadableError: naming both digests.
    """
    _check(recording, recording, "its")


def check_inherited(child: Recording, parent: Recording) -> None:
    """Check a child's stated ``seedDigest`` against its parent's log.

    Raises:
        UnreadableError: if the parent's log is shorter, or naming both digests.
    """
    length = child.header.seed_length
    if child.header.seed_digest is not None and length > len(parent.events):
        raise UnreadableError(
            f"{child.name}: seedLength is {length}, but its parent {parent.name} has "
            f"{len(parent.events)} events; expected a prefix of them"
        )
    _check(child, parent, f"its parent {parent.name}'s")


def _check(child: Recording, source: Recording, whose: str) -> None:
    stated = child.header.seed_digest
    if stated is None:
        return
    length = child.header.seed_length
    found = seed_digest(source.events[:length])
    if found != stated:
        raise UnreadableError(
            f"{child.name}: seedDigest is {stated}, but {whose} first {length} events "
            f"have digest {found}"
        )
