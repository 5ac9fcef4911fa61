"""What is wrong with a ``scenario.toml``, said in the words of whoever wrote it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nestling.session.jsontext import shown

_PLACE: Final = re.compile(r"(?s)(.*?)(?: - at `\$(.*)`)?")
_PART: Final = re.compile(r"\.([^.\[]+)|\[([0-9]+|\.\.\.)\]")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")
_EXPECTED: Final = re.compile(r"Expected `([^`]*)`(?:, got `[^`]*`)?(.*)")

_KINDS: Final = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


def plain_problem(
    message: str,
    document: Any,
    expected: Mapping[str, str],
    known: Mapping[str, Sequence[str]],
) -> str:
    """Say what the decoder complains about: which key, what was found and expected.

    Args:
        message: the decoder's.
        document: what was decoded, unchecked.
        expected: what is expected, in words, by key (``cancel.call``; without numbers).
        known: the keys of each table, by its key; those of the document by ``""``.
    """
    said, at = _PLACE.fullmatch(message).groups(default="")  # type: ignore[union-attr]  # fits any text
    parts = [part[0] or part[1] for part in _PART.findall(at)]
    place, table = _shown_place(parts), _keys(parts)
    where = f"{place}: " if place else ""
    if (found := _MISSING.fullmatch(said)) is not None:
        key = ".".join(filter(None, [table, found[1]]))
        return f"{where}found no {found[1]}, expected {expected.get(key, 'one')}"
    if (found := _UNKNOWN.fullmatch(said)) is not None:
        keys = ", ".join(known.get(table, ()))
        return f"{where}found an unknown key {found[1]}, expected one of {keys}"
    value = _value(document, parts)
    return f"{where}found {value}, expected {expected.get(table) or _plain(said)}"


def _shown_place(parts: Sequence[str]) -> str:
    """Return a place as a person counts: the tables of ``[[steps]]`` from 1."""
    if len(parts) > 1 and parts[0] == "steps" and parts[1].isdigit():
        step, rest = f"step {int(parts[1]) + 1}", ".".join(parts[2:])
        return f"{step}: {rest}" if rest else step
    return ".".join(part for part in parts if part != "...")


def _keys(parts: Sequence[str]) -> str:
    return ".".join(part for part in parts if not part.isdigit() and part != "...")


def _value(document: Any, parts: Sequence[str]) -> str:
    for part in parts:
        try:
            document = document[int(part) if part.isdigit() else part]
        except (KeyError, IndexError, TypeError):
            break
    try:
        return shown(document)
    except (TypeError, ValueError):  # a date, which JSON does not know
        return str(document)


def _plain(said: str) -> str:
    found = _EXPECTED.fullmatch(said)
    if found is None:
        return f"something else ({said})"
    kinds = " or ".join(_KINDS.get(kind, kind) for kind in found[1].split(" | "))
    return f"{kinds}{found[2]}"
