"""A worker that leaves a process behind, in a session of its own and without parents.

It stops before it ends, so that the test can take a look. It ends as
``LC_NESTLING_END`` says: ``well``, ``badly``, or not at all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from nestling.wire.launch import LaunchSpec
from nestling.worker import process_io
from support.stand_ins import tell


def _leave() -> None:
    # A shell forks the one that stays, in a new session, and ends: an orphan is born.
    subprocess.run(["setsid", "sh", "-c", "sleep 600 & echo $! > left"], check=True)
    with open("left", encoding="utf-8") as left:
        tell(f"left {int(left.read())}")
    os.kill(os.getpid(), signal.SIGSTOP)


async def _run(spec: LaunchSpec, lifeline: int) -> int:
    _leave()
    return 0


if os.environ["LC_NESTLING_END"] == "well":
    process_io._run = _run
    sys.exit(process_io.main(sys.argv))
_leave()
if os.environ["LC_NESTLING_END"] == "never":
    signal.pause()
sys.exit(1)
