"""Spawn paths: where a session sits in its tree.

Root ``/``; a child ``<parent>/t<turn>s<step>b<block>``, with ``.<n>`` (n >= 1) for a
further delegation by the same tool call; a delegation by code outside a tool is
``t<turn>s<step>k<key>`` or ``t<turn>s<step>d<n>``. Paths sort element by element,
numbers as numbers, depth first.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from nestling.session.header import SpawnedBy

ROOT: Final = "/"

_SAFE: Final = "-_"
_NUMBERS: Final = re.compile(r"([0-9]+)")


def child_path(parent: str, spawned_by: SpawnedBy) -> str:
    """Return the spawn path of the child that `spawned_by` describes."""
    prefix = "" if parent == ROOT else parent
    place = f"t{spawned_by.turn}s{spawned_by.step}"
    return f"{prefix}/{place}{_delegation(spawned_by)}"


def _delegation(spawned_by: SpawnedBy) -> str:
    if spawned_by.block is not None:
        further = f".{spawned_by.n}" if spawned_by.n else ""
        return f"b{spawned_by.block}{further}"
    if spawned_by.key is not None:
        return f"k{_encoded(spawned_by.key)}"
    return f"d{spawned_by.n}"


def _encoded(key: str) -> str:
    # quote() leaves ".", "~" alone, which the path's grammar needs encoded.
    quoted = quote(key, safe=_SAFE, errors="surrogatepass")
    return quoted.replace(".", "%2E").replace("~", "%7E")


def sort_key(path: str) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """Return a key under which paths sort depth first, numbers as numbers."""
    elements = [element for element in path.split("/") if element]
    return tuple(_element_key(element) for element in elements)


def _element_key(element: str) -> tuple[tuple[int, int, str], ...]:
    parts = _NUMBERS.split(element)
    return tuple(
        _number_key(part) if _NUMBERS.fullmatch(part) else (1, 0, part)
        for part in parts
        if part
    )


def _number_key(digits: str) -> tuple[int, int, str]:
    """Order numbers of any length by value, and ``07`` (of a key) beside ``7``."""
    significant = digits.lstrip("0")
    return 0, len(significant), f"{significant} {digits}"
