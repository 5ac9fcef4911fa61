"""A worker on a system that cannot be asked to end it with its driver."""

from __future__ import annotations

import sys

from nestling.worker import process_io


def _cannot_ask(parent_pid: int) -> None:
    """Leave it to the lifeline."""


process_io._die_with_parent = _cannot_ask
sys.exit(process_io.main(sys.argv))
