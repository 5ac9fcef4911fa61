"""``python -m nestling.worker FD``: one worker process, told what to do over FD."""

from __future__ import annotations

import os
import sys
import threading
import traceback

from nestling.worker.process_io import main


def _leave(code: int) -> None:
    """End, though a thread of a tool may go on that nobody waits for any more."""
    others = [each for each in threading.enumerate() if not each.daemon]
    if len(others) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


try:
    ended_with = main(sys.argv)
except Exception:  # noqa: BLE001 - it is shown as the interpreter would
    traceback.print_exc()
    ended_with = 1
_leave(ended_with)
