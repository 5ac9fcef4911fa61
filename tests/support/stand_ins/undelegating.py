"""A worker that asks for no child: its delegating calls are calls of any tool."""

from __future__ import annotations

import sys

from nestling.worker import endpoint, process_io
from nestling.worker.tool_calls import PendingTool


def _nothing(tool: PendingTool) -> None:
    """Find no delegation in any call."""


endpoint._delegated = _nothing
sys.exit(process_io.main(sys.argv))
