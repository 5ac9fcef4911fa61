"""A worker that ignores every signal that can be ignored, and has a child like it."""

from __future__ import annotations

import os
import signal

from support.stand_ins import tell

for _number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(_number, signal.SIG_IGN)
_child = os.fork()
if _child:
    tell(f"up {_child}")
while True:
    signal.pause()
