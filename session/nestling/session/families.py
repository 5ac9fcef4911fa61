"""Who delegated whom: the trees of a store's sessions, told from their headers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nestling.session.header import Header
from nestling.session.store_backend import Listed


def families(sessions: Iterable[Listed]) -> Mapping[str, Sequence[Header]]:
    """Return the headers of the sessions that each session delegated, by its id."""
    children: dict[str, list[Header]] = {}
    for listed in sessions:
        if listed.header is not None and listed.header.parent_session is not None:
            children.setdefault(listed.header.parent_session, []).append(listed.header)
    return children


def below(session_id: str, children: Mapping[str, Sequence[Header]]) -> list[str]:
    """Return the ids of all sessions below one, each once; headers may lie in a circle."""
    found = [session_id]
    seen = {session_id}
    for parent in found:  # which grows meanwhile
        for child in children.get(parent, ()):
            if child.id not in seen:
                seen.add(child.id)
                found.append(child.id)
    return found[1:]
