"""What a tool's docstring tells a model: its first paragraph, and its ``Args:``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_ARGUMENTS: Final = re.compile(r"(Args|Arguments|Parameters):\s*")
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


def summary(docstring: str) -> str:
    """Return the first paragraph in one line, or nothing.

    Args:
        docstring: without indentation, as ``inspect.getdoc`` returns it.
    """
    lines: list[str] = []
    for line in docstring.strip().splitlines():
        if not line.strip() or _ARGUMENTS.fullmatch(line):
            break
        lines.append(line.strip())
    return " ".join(lines)


def parameter_docs(docstring: str) -> dict[str, str]:
    """Return what the ``Args:`` section (Google style) says about each parameter.

    Args:
        docstring: without indentation, as ``inspect.getdoc`` returns it.
    """
    docs: dict[str, str] = {}
    name = ""
    margin: int | None = None
    for line in _section(docstring):
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        margin = indent if margin is None else margin
        entry = _ENTRY.fullmatch(text) if indent <= margin else None
        if entry is not None:
            name = entry[1]
            docs[name] = entry[2]
        elif name:
            docs[name] = f"{docs[name]} {text}".strip()
    return docs


def _section(docstring: str) -> Iterator[str]:
    """Yield the lines of the section, blank ones left out."""
    is_inside = False
    for line in docstring.splitlines():
        if _ARGUMENTS.fullmatch(line):
            is_inside = True
        elif is_inside and line.strip():
            if not line[0].isspace():
                return
            yield line
