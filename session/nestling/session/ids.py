"""Session ids as file names: reversible, and safe on every file system we write to.

``[A-Za-z0-9_-]`` and inner dots stay, every other UTF-16 unit becomes ``~XXXX``, so
``..``, separators and lone surrogates are harmless and no two ids share a name.
"""

from __future__ import annotations

import re
from typing import Final

_LITERAL: Final = re.compile(r"[A-Za-z0-9._-]")


def encode_id(session_id: str) -> str:
    """Return the file-name form of a session id.

    Raises:
        ValueError: if the id is empty.
    """
    if not session_id:
        raise ValueError("a session id must not be empty")
    if session_id in (".", ".."):
        return "".join(_escaped(char) for char in session_id)
    return "".join(
        char if _LITERAL.match(char) else _escaped(char) for char in session_id
    )


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return "".join(f"~{high:02X}{low:02X}" for high, low in pairs)
