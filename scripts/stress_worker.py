"""A worker that waits a random while before each of its calls (stress_examples.py).

Started as any worker, with this module as its program. Where it is told to:
``LC_NESTLING_STRESS`` names a folder with a file ``seed``, which holds a seed and the
longest delay in seconds, and a file ``delays``, to which each delay is added as a line.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Final

from nestling.session.jsontext import loads
from nestling.wire.messages import Purpose
from nestling.worker import process_io
from nestling.worker.endpoint import Endpoint
from nestling.worker.incoming import IncomingCall

FOLDER: Final = "LC_NESTLING_STRESS"

_stream: Final = Endpoint.stream
_delays: Final[list[random.Random]] = []


def _late(self: Endpoint, purpose: Purpose) -> IncomingCall:
    folder = Path(os.environ[FOLDER])
    seed, longest = (folder / "seed").read_text().split()
    if not _delays:
        _delays.append(random.Random(f"{seed} {loads(self.header)['id']}"))
    delay = _delays[0].uniform(0, float(longest))
    time.sleep(delay)
    with (folder / "delays").open("a") as file:
        file.write(f"{delay}\n")
    return _stream(self, purpose)


if __name__ == "__main__":
    Endpoint.stream = _late  # type: ignore[method-assign]
    sys.exit(process_io.main(sys.argv))
