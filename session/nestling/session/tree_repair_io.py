"""Taking up a whole tree of sessions after whoever ran it is gone."""

from __future__ import annotations

from collections.abc import Iterable

from nestling.session.errors import StoreError
from nestling.session.store_backend import Listed
from nestling.session.store_io import SessionStore, Stored


def take_up(store: SessionStore, session_id: str) -> Stored:
    """Resume a session, and close what was left open in those below it.

    Raises:
        StoreError: as ``SessionStore.resume``. What cannot be repaired below it stays as
            it is: it is reported as interrupted, and somebody may be writing it.
    """
    stored = store.resume(session_id)
    try:
        for child in _below(session_id, store.sessions()):
            _close(store, child)
    except BaseException:
        store.release(session_id)
        raise
    return stored


def _below(session_id: str, sessions: Iterable[Listed]) -> list[str]:
    """Return the ids of all sessions that a session, or one of those, delegated."""
    children: dict[str, list[str]] = {}
    for listed in sessions:
        if listed.header is not None and listed.header.parent_session is not None:
            children.setdefault(listed.header.parent_session, []).append(listed.id)
    found = [session_id]
    for parent in found:  # which grows meanwhile
        found += [child for child in children.pop(parent, ()) if child != session_id]
    return found[1:]


def _close(store: SessionStore, session_id: str) -> None:
    try:
        store.load(session_id)
    except StoreError:
        return  # damaged, or somebody goes on with it
