"""Normalisers: what may be another from run to run, and still be the same.

A replay with an agent makes its inputs anew, so a clock, a working directory or an id
made by chance would differ in every run. A normaliser finds such values in text; two
texts are the same if they are equal but for these. Both sides are normalised, the live
one and the recorded one.

Values are *renamed*, not blanked: where the recording has one id twice, so must the live
run; where it has two, there must be two (``nestling.harness.matching``). Times and places are the
exception: two readings of a clock may fall into one millisecond or not, and each worker
has a working directory of its own.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache, partial
from typing import Final, NamedTuple, TypeAlias

from nestling.harness.ambiguity import EXPLOSIVE, is_explosive
from nestling.session.errors import UnreadableError
from nestling.session.jsontext import Json

BUILT_IN: Final = ("time", "cwd", "uuid")
"""The normalisers that are in force unless a scenario says otherwise."""

BLANKED: Final = frozenset({"time", "cwd", "scenario"})
"""Those whose values are not told apart."""

_DATE: Final = r"(?:19|20)\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_CLOCK: Final = r"(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?"
_ZONE: Final = r"(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
_COMPACT: Final = r"(?:19|20)\d{6}T\d{6}Z?"
# Seconds or milliseconds of the years 2014 to 2039.
_EPOCH: Final = r"(?:1[4-9]|2[01])\d{8}(?:\d{3})?(?:\.\d{1,9})?"
_TIME: Final = (
    rf"(?<![\w.-])(?<!\d:)(?:{_DATE}(?:[T ]{_CLOCK}{_ZONE})?"
    rf"|(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:[.,]\d{{1,9}})?{_ZONE}"
    rf"|{_COMPACT}|{_EPOCH})(?![\w:-]|\.\d)"
)
_UUID: Final = (
    r"(?<![0-9A-Fa-f-])[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-"
    r"[0-9A-Fa-f]{12}(?![0-9A-Fa-f-])"
)
_PATTERNS: Final = {"time": re.compile(_TIME), "uuid": re.compile(_UUID)}
_INTEGER_TIME: Final = re.compile(r"(?:1[4-9]|2[01])\d{8}(?:\d{3})?")
# A worker's working directory (see ``nestling.driver.run_directory_io``).
_WORK: Final = re.compile(
    r"(?<![\w.-])(?:/[^\s/\"'`<>|:;,(){}\[\]]+)*"
    r"/nestling-[a-z0-9_]{8}/work/w\d+(?:\.\d+)?(?![\w-]|\.\w)"
)

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class Value(NamedTuple):
    """What a normaliser found: its name, and the text."""

    name: str
    text: str

    @property
    def token(self) -> str:
        """What stands in its place."""
        return "{{" + self.name + "}}"


Piece: TypeAlias = str | Value

_LONG: Final = 4096
"""Characters of a text that is worth remembering."""
_MOST_KNOWN: Final = 16


class Normalisers:
    """The normalisers in force.

    Attributes:
        names: what they are called.
    """

    def __init__(
        self,
        built_in: Sequence[str] = BUILT_IN,
        declared: Mapping[str, str] | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare them.

        Args:
            built_in: which of ``time``, ``cwd`` and ``uuid``.
            declared: more of them, name to regular expression; they go first.
            places: absolute paths that ``cwd`` finds besides the working directories of
                workers, and what each is called: ``cwd`` or ``scenario``.

        Raises:
            UnreadableError: if one of them is none; naming it.
        """
        declared = declared or {}
        unknown = [name for name in built_in if name not in BUILT_IN]
        if unknown:
            raise UnreadableError(
                f"normalise: found {unknown[0]!r}, expected some of "
                f"{', '.join(BUILT_IN)}"
            )
        self.names = frozenset({*built_in, *declared})
        self._declared = [(n, _compiled(n, text)) for n, text in declared.items()]
        self._built_in = tuple(built_in)
        self._arrange(places or {})

    def _arrange(self, places: Mapping[str, str]) -> None:
        self._places = _place_patterns(places) if "cwd" in self.names else []
        others = [(n, _PATTERNS[n]) for n in ("uuid", "time") if n in self._built_in]
        self._patterns = [*self._declared, *self._places, *others]
        self._telling = [each for each in self._patterns if each[0] not in BLANKED]
        self._cut_all = _remembering(self._patterns)
        self._cut_telling = _remembering(self._telling)

    def at(self, places: Mapping[str, str]) -> Normalisers:
        """Return the same normalisers, ``cwd`` with other places (see ``__init__``)."""
        made = copy(self)
        made._arrange(places)
        return made

    def pieces(self, text: str) -> list[Piece]:
        """Cut a text into what is plain and what normalisers found."""
        return list(self._cut_all(text))

    def values(self, text: str) -> Iterator[Value]:
        """Yield what was found in a text and is told apart."""
        for piece in self._cut_telling(text):
            if isinstance(piece, Value):
                yield piece

    def normalised(self, text: str) -> str:
        """Return a text with tokens, as ``{{uuid}}``, in the place of what was found."""
        return "".join(shown_piece(piece) for piece in self.pieces(text))

    def normalised_json(self, value: Json) -> Json:
        """Return a JSON value with tokens in its texts, and for its times."""
        if type(value) is str:
            return self.normalised(value)
        if type(value) is list:
            return [self.normalised_json(item) for item in value]
        if type(value) is dict:
            return {key: self.normalised_json(item) for key, item in value.items()}
        return "{{time}}" if "time" in self.names and is_time(value) else value

    def without_places(self, value: Json) -> Json:
        """Return a JSON value without paths of this machine.

        ``{{cwd}}`` stands in the place of working directories, ``{{scenario}}`` of the
        scenario's folder. So recordings are written, if ``cwd`` is in force.
        """
        if type(value) is str:
            return "".join(shown_piece(piece) for piece in _cut(value, self._places))
        if type(value) is list:
            return [self.without_places(item) for item in value]
        if type(value) is dict:
            return {key: self.without_places(item) for key, item in value.items()}
        return value


def is_time(value: Json) -> bool:
    """Tell whether a JSON value is plainly a time: epoch seconds or milliseconds."""
    return type(value) is int and _INTEGER_TIME.fullmatch(str(value)) is not None


# --- finding ---------------------------------------------------------------------

_Patterns: TypeAlias = list[tuple[str, re.Pattern[str]]]


def _cut(text: str, patterns: _Patterns) -> list[Piece]:
    pieces: list[Piece] = [text] if text else []
    for name, pattern in patterns:
        cut: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Value):
                cut.append(piece)
            else:
                cut += _found(piece, name, pattern)
        pieces = cut
    return pieces


def _remembering(patterns: _Patterns) -> Callable[[str], list[Piece]]:
    """Return what cuts texts; of long ones, which many sessions share, it knows some."""
    known = lru_cache(_MOST_KNOWN)(partial(_cut, patterns=patterns))

    def cut(text: str) -> list[Piece]:
        return known(text) if len(text) >= _LONG else _cut(text, patterns)

    return cut


def _found(text: str, name: str, pattern: re.Pattern[str]) -> Iterator[Piece]:
    end = 0
    for match in pattern.finditer(text):
        if match.end() > match.start():
            if match.start() > end:
                yield text[end : match.start()]
            yield Value(name, match.group())
            end = match.end()
    if end < len(text):
        yield text[end:]


def shown_piece(piece: Piece) -> str:
    """Return a piece as it is shown: plain text, or a token."""
    return piece if isinstance(piece, str) else piece.token


def _place_patterns(places: Mapping[str, str]) -> _Patterns:
    patterns: _Patterns = [("cwd", _WORK)]
    for path, name in sorted(places.items(), key=lambda each: -len(each[0])):
        trimmed = path.rstrip("/")
        if trimmed:
            text = rf"(?<![\w.-]){re.escape(trimmed)}(?![\w-]|\.\w)"
            patterns.append((name, re.compile(text)))
    # A recording holds the tokens themselves.
    patterns += [
        (n, re.compile(re.escape(f"{{{{{n}}}}}"))) for n in ("cwd", "scenario")
    ]
    return patterns


def _compiled(name: str, text: str) -> re.Pattern[str]:
    if not _NAME.fullmatch(name) or name in (*BUILT_IN, *BLANKED):
        raise UnreadableError(
            f"normalisers.{name}: expected another name, of letters, digits, _ and -, "
            f"that none of {', '.join(sorted({*BUILT_IN, *BLANKED}))} has"
        )
    try:
        with warnings.catch_warnings():
            # What might mean something else in a later Python means this here.
            warnings.simplefilter("ignore")
            pattern = re.compile(text)
            is_bomb = is_explosive(pattern)
    except (re.error, OverflowError) as error:
        raise UnreadableError(
            f"normalisers.{name}: {text!r} is no regular expression: {error}"
        ) from None
    if is_bomb:
        raise UnreadableError(f"normalisers.{name}: {text!r} {EXPLOSIVE}")
    if pattern.fullmatch("") is not None:
        raise UnreadableError(
            f"normalisers.{name}: {text!r} matches the empty text, expected a regular "
            "expression of what is there"
        )
    return pattern
