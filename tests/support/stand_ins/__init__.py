"""Programs that a test starts in place of ``nestling.worker``.

A launcher starts one as ``ExecLauncher("support.stand_ins.<name>")``. What it has to
tell goes into the named pipe that ``LC_NESTLING_FIFO`` holds: a worker's environment
is an allow-list, and names that begin with ``LC_`` are on it.
"""

from __future__ import annotations

import os


def tell(line: str) -> None:
    """Tell the test something, if it listens."""
    path = os.environ.get("LC_NESTLING_FIFO")
    if path is not None:
        with open(path, "w", encoding="utf-8") as pipe:
            pipe.write(f"{line}\n")
