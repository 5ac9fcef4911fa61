"""Work that is counted, not timed: how many lines of Python something runs."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_by_function(act: Callable[[], object]) -> Counter[str]:
    """Count the lines that something runs, for each function of each file.

    Garbage is not collected meanwhile: that would run other tests' lines.
    """
    count: Counter[tuple[str, str]] = Counter()

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        if event == "line":
            code = frame.f_code
            count[code.co_filename, code.co_qualname] += 1
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    named: Counter[str] = Counter()
    for (file, function), lines in count.items():
        named[f"{file.rsplit('/', 1)[-1]} {function}"] += lines
    return named


def lines_of(act: Callable[[], object]) -> int:
    """Count the lines that something runs."""
    return lines_by_function(act).total()
