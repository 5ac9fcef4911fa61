"""The order of logs that no lineage connects: root first, then age, then id.

The format's own harness numbers its files in this order. Ids compare as people sort
words (``a < A < b < B``), as its ``localeCompare`` does: first the letters, then
their accents, then their case.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from nestling.session.header import Header
from nestling.session.reading import Recording

# How the root collation of Unicode's CLDR orders ASCII; letters follow digits.
_ASCII_ORDER: Final = (
    "\t\n\v\f\r _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$0123456789abcdefghijklmnopqrstuvwxyz"
)
_RANKS: Final = {char: rank for rank, char in enumerate(_ASCII_ORDER)}

LocaleKey: TypeAlias = tuple[tuple[int, ...], tuple[str, ...], tuple[bool, ...]]


def bind_order(recordings: Sequence[Recording]) -> list[Recording]:
    """Return loose recordings in order; the first one given is the root.

    Recordings of the same age and id keep the order they were given in.
    """
    return [*recordings[:1], *by_age(recordings[1:])]


def by_age(recordings: Iterable[Recording]) -> list[Recording]:
    """Return recordings by (createdAt, id)."""
    return sorted(recordings, key=lambda recording: age_key(recording.header))


def age_key(header: Header) -> tuple[int, LocaleKey]:
    """Return the key under which the children of one parent are ordered."""
    return header.created_at, locale_key(header.id)


def locale_key(text: str) -> LocaleKey:
    """Return a key under which texts sort as people sort words."""
    chars = unicodedata.normalize("NFD", text)
    base = [char for char in chars if not unicodedata.combining(char)]
    marks = tuple(char for char in chars if unicodedata.combining(char))
    return tuple(map(_rank, base)), marks, tuple(char.isupper() for char in base)


def _rank(char: str) -> int:
    folded = char.lower()
    return _RANKS.get(folded, len(_RANKS) + ord(folded[0]))
