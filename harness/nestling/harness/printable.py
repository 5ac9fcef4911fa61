"""Text of unknown origin on a terminal."""

from __future__ import annotations


def shown(text: str) -> str:
    """Return a text that is safe on one line of a terminal, the rest as escapes."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )
