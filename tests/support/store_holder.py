"""A process that holds sessions of a store until it is told to end, or is killed.

``python -m support.store_holder ADDRESS ID …``: it creates each session, or resumes it,
says so, and waits for the end of its input.
"""

from __future__ import annotations

import os
import sys

from nestling.session.event import Event
from nestling.session.store_io import open_store
from support.stores import header


def main(address: str, *ids: str) -> None:
    """Hold sessions."""
    with open_store(address) as store:
        stored = {listed.id for listed in store.sessions()}
        for session_id in ids:
            if session_id in stored:
                store.resume(session_id)
            else:
                store.create(header(session_id))
                store.append(session_id, [Event(0, "turn/start", 1, {"turn": 1})])
        os.write(1, b"holding\n")
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
