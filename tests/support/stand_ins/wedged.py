"""A worker that hangs in C with the interpreter's lock held, and has a thread, too."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

from nestling.wire.launch import LaunchSpec
from nestling.worker import process_io
from support.stand_ins import tell


def _wedge() -> None:
    library = ctypes.PyDLL(None)
    while True:
        library.pause()


async def _run(spec: LaunchSpec, lifeline: int) -> int:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    tell(f"wedged {os.getpid()}")
    _wedge()
    return 0


process_io._run = _run
sys.exit(process_io.main(sys.argv))
