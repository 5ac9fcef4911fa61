"""A template that cannot end what its workers leave behind."""

from __future__ import annotations

import sys

from nestling.worker import offspring_io, template_io


def _leave(pid: int) -> None:
    """Do not end it."""


offspring_io._kill = _leave
sys.exit(template_io.main(sys.argv))
