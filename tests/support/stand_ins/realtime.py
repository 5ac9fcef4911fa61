"""A worker that is ended by a signal that has no name."""

from __future__ import annotations

import os
import signal

os.kill(os.getpid(), signal.SIGRTMIN + 6)
