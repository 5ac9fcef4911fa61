"""Stated seed digests, checked against what a child and its parent hold."""

from __future__ import annotations

from collections.abc import Sequence

from nestling.session.digest import PrefixDigest, seed_digest
from nestling.session.errors import UnreadableError
from nestling.session.event import Event
from nestling.session.jsontext import dumps
from nestling.session.reading import Recording


def check_seed_digest(recording: Recording) -> None:
    """Check a stated ``seedDigest`` against the events it is about.

    Raises:
        UnreadableError: naming both digests.
    """
    stated = recording.header.seed_digest
    if stated is not None:
        seed = recording.events[: recording.header.seed_length]
        _compare(recording, seed_digest(seed), "its")


class InheritedSeeds:
    """Checks what the children of one parent inherited.

    The parent is hashed once, if those that inherited less are checked first.
    """

    def __init__(self, parent: Recording) -> None:
        self._parent = parent
        self._digests = PrefixDigest(parent.events)

    def check(self, child: Recording) -> None:
        """Check a child's stated ``seedDigest`` against both logs.

        Raises:
            UnreadableError: if the parent's log is shorter, or naming both digests.
        """
        length = child.header.seed_length
        if child.header.seed_digest is None:
            return
        if length > len(self._parent.events):
            raise UnreadableError(
                f"{child.name}: seedLength is {length}, but its parent "
                f"{self._parent.name} has {len(self._parent.events)} events; "
                "expected a prefix of them"
            )
        if not _are_alike(child.events, self._parent.events, length):
            check_seed_digest(child)
        whose = f"its parent {self._parent.name}'s"
        _compare(child, self._digests.at(length), whose)


def _compare(child: Recording, found: str, whose: str) -> None:
    stated, length = child.header.seed_digest, child.header.seed_length
    if found != stated:
        raise UnreadableError(
            f"{child.name}: seedDigest is {stated}, but {whose} first {length} events "
            f"have digest {found}"
        )


def _are_alike(one: Sequence[Event], other: Sequence[Event], length: int) -> bool:
    """Tell whether two prefixes say the same, so that one digest serves for both.

    By their texts: in Python ``True == 1``, in a digest they differ.
    """
    return all(
        dumps(one[seq].content()) == dumps(other[seq].content())
        for seq in range(length)
    )
