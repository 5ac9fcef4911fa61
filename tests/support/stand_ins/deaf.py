"""A worker that is blocked in C, the interpreter's lock held, once it has a session.

Nothing but the kernel can end it.
"""

from __future__ import annotations

import ctypes
import os
import sys

from nestling.wire.messages import Create, ToWorker
from nestling.worker import process_io
from nestling.worker.endpoint import Endpoint
from support.stand_ins import tell


def _blocked(self: Endpoint, message: ToWorker, body: bytes) -> None:
    if isinstance(message, Create):
        tell(f"blocked {os.getpid()}")
        ctypes.PyDLL(None).pause()


Endpoint.handle = _blocked  # type: ignore[method-assign]
sys.exit(process_io.main(sys.argv))
