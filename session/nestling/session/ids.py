"""Session ids as file names: reversible, and safe on every file system we write to.

``[A-Za-z0-9_-]`` and inner dots stay, every other UTF-16 unit becomes ``~XXXX``, so
``..``, separators and lone surrogates are harmless and no two ids share a name. A dot
at either end is escaped too (names that begin with one are the store's own, and Windows
drops one at the end), and the first letter of what Windows takes for a device.

An id is one directory. A name that is too long for that is cut into several, one inside
the other; all but the last end with a lone ``~``, which no whole name does. (Source of
the escapes: the format's rules for its paths; the rest is ours.)
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Final

LONGEST_NAME: Final = 200
"""So many characters has one component at most; file systems take 255 bytes."""

CONTINUED: Final = "~"
"""With this ends a component that another one continues."""

_GUARDS: Final = 2 * len("~0000") + len(CONTINUED)
"""By so much guarding both ends and continuing can lengthen a component."""

_LITERALS: Final = frozenset(string.ascii_letters + string.digits + "._-")
_RUN: Final = re.compile(r"(?:~[0-9A-F]{4})+|[A-Za-z0-9._-]+")
_DEVICE: Final = re.compile(
    r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|\Z)", re.IGNORECASE
)


def encode_id(session_id: str) -> str:
    """Return the file-name form of a session id, however long it gets.

    Raises:
        ValueError: if the id is empty.
    """
    return _guarded(_units(session_id))


def id_parts(session_id: str) -> list[str]:
    """Return the components of the path of a session's directory in a store.

    Raises:
        ValueError: if the id is empty.
    """
    whole = encode_id(session_id)
    if len(whole) <= LONGEST_NAME:
        return [whole]
    parts: list[str] = []
    begun: list[str] = []
    length = 0
    for unit in _units(session_id):
        if length + len(unit) > LONGEST_NAME - _GUARDS:
            parts.append(_guarded(begun) + CONTINUED)
            begun, length = [], 0
        begun.append(unit)
        length += len(unit)
    return [*parts, _guarded(begun)]


def id_of_parts(parts: Sequence[str]) -> str:
    """Return the id whose components `parts` are.

    Raises:
        ValueError: if they are no id's.
    """
    name = "".join(part.removesuffix(CONTINUED) for part in parts)
    units = bytearray()
    for run in _RUN.findall(name):
        if run.startswith("~"):
            units += bytes.fromhex(run.replace("~", ""))
        else:
            units += run.encode("utf-16-be")
    session_id = units.decode("utf-16-be", "surrogatepass")
    # What was skipped, or is written in another way than ours, shows here.
    if not session_id or id_parts(session_id) != list(parts):
        raise ValueError(f"{'/'.join(parts)!r} is not the path of a session id")
    return session_id


def _units(session_id: str) -> list[str]:
    if not session_id:
        raise ValueError("a session id must not be empty")
    if _LITERALS.issuperset(session_id):  # as most ids are
        return list(session_id)
    return [
        unit
        for char in session_id
        for unit in ([char] if char in _LITERALS else _escaped(char))
    ]


def _guarded(units: Sequence[str]) -> str:
    """Join one component's units, of which the ends may have to be escaped."""
    first, *others = units
    if first == "." or _DEVICE.match("".join(units)):
        (first,) = _escaped(first)
    if others and others[-1] == ".":
        others[-1:] = _escaped(".")
    return "".join([first, *others])


def _escaped(char: str) -> list[str]:
    units = char.encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return [f"~{high:02X}{low:02X}" for high, low in pairs]
