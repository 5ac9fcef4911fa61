"""A template that is not told of its descriptors: /proc is hidden from it."""

from __future__ import annotations

import sys
from pathlib import Path

from nestling.worker import template_io, warmth_io

warmth_io._FDS = Path("/nowhere")  # type: ignore[misc]  # final where it is
sys.exit(template_io.main(sys.argv))
