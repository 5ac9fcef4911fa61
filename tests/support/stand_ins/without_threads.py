"""A template that is not told of its threads: /proc is hidden from it."""

from __future__ import annotations

import sys
from pathlib import Path

from nestling.worker import kernel_io, template_io

kernel_io._TASKS = Path("/nowhere")  # type: ignore[misc]  # final where it is
sys.exit(template_io.main(sys.argv))
