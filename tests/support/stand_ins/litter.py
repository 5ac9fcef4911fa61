"""A worker whose tools leave processes of many kinds behind, while the worker runs.

They are: a child in the worker's group, one in a session of its own, one that forked
twice, one that ignores every signal that can be ignored, one that is in a session of
its own and was given an empty environment, and one like that, forked twice, that prints
to nowhere. Their pids are told, in this order.

As ``LC_NESTLING_END`` says it does so when it starts, ``loop``, and then waits for its
session; or ``stuck``, and then waits for ever; else once it has a session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from nestling.wire.launch import LaunchSpec
from nestling.wire.messages import Create, ToWorker
from nestling.worker import process_io
from nestling.worker.endpoint import Endpoint
from support.stand_ins import tell

_STUBBORN = "trap '' HUP INT TERM USR1 USR2; echo .; exec sleep 600"


def _started(*command: str, **more: Any) -> int:
    return subprocess.Popen(command, **more).pid


def _forked_twice(env: Mapping[str, str] | None = None) -> int:
    script = "sleep 600 >/dev/null 2>&1 & echo $!"
    return int(subprocess.check_output(["setsid", "sh", "-c", script], env=env))


def _stubborn() -> int:
    child = subprocess.Popen(
        ["sh", "-c", _STUBBORN], stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    child.stdout.read(1)  # it has set its traps
    return child.pid


def litter() -> None:
    """Leave them, and tell their pids."""
    pids = [
        _started("sleep", "600"),
        _started("sleep", "600", start_new_session=True),
        _forked_twice(),
        _stubborn(),
        _started("sleep", "600", start_new_session=True, env={}),
        _forked_twice(env={}),
    ]
    tell(f"left {' '.join(map(str, pids))}")


_real_run, _real_handle = process_io._run, Endpoint.handle
_moment = os.environ.get("LC_NESTLING_END")


async def _run(spec: LaunchSpec, lifeline: int) -> int:
    litter()
    while _moment == "stuck":
        signal.pause()
    return await _real_run(spec, lifeline)


def _with_session(self: Endpoint, message: ToWorker, body: bytes) -> None:
    if isinstance(message, Create):
        litter()
    _real_handle(self, message, body)


if _moment in ("loop", "stuck"):
    process_io._run = _run
else:
    Endpoint.handle = _with_session  # type: ignore[method-assign]
sys.exit(process_io.main(sys.argv))
