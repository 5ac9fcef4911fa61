"""``python -m nestling.worker FD``: one worker process, told what to do over FD."""

from __future__ import annotations

import sys

from nestling.worker.process_io import main

sys.exit(main(sys.argv))
