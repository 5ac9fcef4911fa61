"""A worker that burns some CPU, touches some memory, and ends well."""

from __future__ import annotations

import time

_held = b"x" * 64_000_000
while time.process_time() < 0.1:
    pass
