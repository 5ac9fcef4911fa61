"""Leases: one live writer a session."""

from __future__ import annotations

from nestling.session.errors import LeaseError


class Leases:
    """The sessions that one store object may write."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._held: set[str] = set()

    def take(self, session_id: str) -> None:
        """Take a lease."""
        if session_id in self._held:
            raise LeaseError(session_id)
        self._held.add(session_id)

    def release(self, session_id: str) -> None:
        """Give it back."""
        self._held.discard(session_id)

    def is_elsewhere(self, session_id: str) -> bool:
        """Tell whether somebody else holds it."""
        return False

    def close(self) -> None:
        """Give all back."""
        self._held.clear()
