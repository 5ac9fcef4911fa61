"""A worker that ignores SIGTERM, with a child in its group that tells when it comes."""

from __future__ import annotations

import os
import signal

from support.stand_ins import tell


def _terminated(*_: object) -> None:
    tell(f"terminated {os.getpid()}")
    os._exit(0)


signal.signal(signal.SIGTERM, signal.SIG_IGN)
_child = os.fork()
if _child == 0:
    signal.signal(signal.SIGTERM, _terminated)
    tell(f"child {os.getpid()}")
while True:
    signal.pause()
