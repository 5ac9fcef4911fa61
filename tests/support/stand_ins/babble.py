"""A worker whose tools print what is no text, and one that a locale cannot write."""

from __future__ import annotations

import subprocess
import sys

from nestling.wire.launch import LaunchSpec
from nestling.worker import process_io

_PRINTED = (
    "wörter\n".encode("utf-16-le"),
    "wörter €\n".encode("cp1252"),
    b"\0\xff\xfe\n",
)


def _tool() -> None:
    for each in _PRINTED:
        script = f"import sys; sys.stdout.buffer.write({each!r})"
        subprocess.run([sys.executable, "-c", script], check=True)
    print("\ud83d")  # noqa: T201 - it is what tools do


async def _run(spec: LaunchSpec, lifeline: int) -> int:
    _tool()
    return 0


process_io._run = _run
sys.exit(process_io.main(sys.argv))
