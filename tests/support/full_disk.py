"""A writer whose disk is full for a while.

``python -m support.full_disk SCHEME FOLDER``: it appends a turn, then runs out of room in
the middle of a batch, says how that failed, gets room again and appends the same batch.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from nestling.session.errors import StoreError
from nestling.session.store_io import Batch
from support.damage import log_file
from support.session_logs import LogWriter
from support.stores import Place, exact, header


def log() -> LogWriter:
    """What is appended; the first eight events before the disk is full."""
    written = LogWriter()
    written.answered_turn("q", "a")
    written.start_turn()
    for number in range(200):
        written.user(f"{number} " * 50)
    written.end_turn()
    return written


def main(scheme: str, folder: str) -> None:
    """Write a session, in spite of all."""
    place, events = Place(scheme, Path(folder)), log().events
    with place.open() as store:
        for name in ("s", "other"):
            store.create(header(name))
            store.append(name, events[:8])
        is_jsonl = scheme == "jsonl"
        file = log_file(place) if is_jsonl else Path(f"{place.path}-wal")
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = file.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, most))
        try:
            store.append("s", events[8:])
        except StoreError as error:
            os.write(1, f"full: {error}\n".encode())
        assert exact(store.read_from("s", 0)) == exact(events[:8])
        assert store.append_logged([Batch("s", events[8:])])[0] is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        store.append("other", events[8:])
        store.append("s", events[8:])
        assert exact(store.read_from("s", 0)) == exact(events)
    os.write(1, b"done\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
