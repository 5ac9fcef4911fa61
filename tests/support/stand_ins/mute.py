"""A worker that starts and never says hello."""

from __future__ import annotations

import os
import signal

from support.stand_ins import tell

tell(f"up {os.getpid()}")
while True:
    signal.pause()
