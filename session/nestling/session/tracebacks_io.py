"""Saying on stderr where somebody's code failed, as far as stderr takes it."""

from __future__ import annotations

import traceback
from contextlib import suppress


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error that is dealt with otherwise.

    A stream that is closed, or a disk that is full, is not to make another one of it.
    """
    with suppress(OSError, ValueError):
        traceback.print_exception(error)
