"""Regular expressions that may take for ever, found before they are used.

Python's engine tries one way of matching after the other, and cannot be interrupted:
a pattern such as ``(a+)+b`` has twice as many ways for each letter more, and nothing in
the process would move again. Such a pattern has, in its automaton of positions, a loop
that one text leads through in two ways, and something after the loop that may fail
(Weber and Seidl's criterion of exponential ambiguity). Patterns that are merely slow
(polynomial) pass, and so do parts that are too large to be looked at.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from re import _constants as codes  # type: ignore[attr-defined]  # no public parser
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple

EXPLOSIVE: Final = (
    "may take for ever: something in a repeat matches one text in several ways, as in "
    "(a+)+b; expected a pattern with one way, as in a+b"
)
"""What is said of such a pattern, after the pattern."""

_MOST_COPIES: Final = 6
"""A part that is repeated more often than this counts as repeated at will."""
_MOST_POSITIONS: Final = 300
_MOST_IN_LOOP: Final = 24
_SAMPLES: Final = " \t\n\r\x0b\x1c09azAZ_-.,:/\"'{}éßĀ٠中\u00a0\u2028\U0001f600"
_CATEGORIES: Final = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}


def is_explosive(pattern: re.Pattern[str]) -> bool:
    """Tell whether a pattern may need time that is exponential in a text's length.

    Args:
        pattern: a pattern that compiles.
    """
    automaton = _Automaton(pattern)
    try:
        found = automaton.sequence(parser.parse(pattern.pattern, pattern.flags))
    except _TooLargeError:
        return False
    automaton.ends = set(found.free)
    return automaton.is_ambiguous()


class _TooLargeError(Exception):
    """The pattern has too many positions."""


class _Part(NamedTuple):
    """A part of a pattern.

    Attributes:
        is_nullable: whether it may match the empty text.
        may_fail: whether it may fail at the end of what was matched, without matching.
        first: the positions that it may begin at.
        last: those that it may end at.
        free: those of them after which nothing of it may fail.
    """

    is_nullable: bool
    may_fail: bool
    first: Sequence[int]
    last: Sequence[int]
    free: Sequence[int]


_EMPTY: Final = _Part(True, False, (), (), ())
_CHECK: Final = _Part(True, True, (), (), ())


class _Automaton:
    """The positions of a pattern, and how often each may follow another."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.ends: set[int] = set()
        self._follow: Counter[tuple[int, int]] = Counter()
        self._atoms: list[tuple[Any, Any]] = []
        self._flags = pattern.flags & (re.ASCII | re.IGNORECASE | re.DOTALL)
        characters = {*_SAMPLES, *pattern.pattern}
        self._alphabet = sorted(
            {chr(n) for c in characters for n in _near(ord(c))}
            | {c.swapcase() for c in characters if len(c.swapcase()) == 1}
        )

    # --- reading the pattern -----------------------------------------------------

    def sequence(self, parsed: Iterable[tuple[Any, Any]]) -> _Part:
        found = _EMPTY
        for code, argument in parsed:
            found = self._then(found, self._part(code, argument))
        return found

    def _part(self, code: Any, argument: Any) -> _Part:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            return self._repeat(*argument)
        if code is codes.SUBPATTERN:
            return self.sequence(argument[3])
        if code is codes.BRANCH:
            return _either([self.sequence(each) for each in argument[1]])
        if code is codes.GROUPREF_EXISTS:
            _, yes, no = argument
            return _either([self.sequence(yes), self.sequence(no or ())])
        if code in (codes.ASSERT, codes.ASSERT_NOT):
            self.sequence(argument[1])
            return _CHECK
        if code in _ATOMS:
            return self._atom(code, argument)
        # Places, references to groups, and what is never tried in another way.
        return _CHECK

    def _atom(self, code: Any, argument: Any) -> _Part:
        at = len(self._atoms)
        if at == _MOST_POSITIONS:
            raise _TooLargeError
        self._atoms.append((code, argument))
        return _Part(False, True, (at,), (at,), (at,))

    def _then(self, one: _Part, other: _Part) -> _Part:
        self._join(one.last, other.first)
        passes = other.is_nullable
        return _Part(
            one.is_nullable and passes,
            one.may_fail or other.may_fail,
            (*one.first, *(other.first if one.is_nullable else ())),
            (*(one.last if passes else ()), *other.last),
            (*(one.free if passes and other is not _CHECK else ()), *other.free),
        )

    def _join(self, last: Iterable[int], first: Sequence[int]) -> None:
        for position in last:
            for following in first:
                self._follow[position, following] += 1

    def _repeat(self, least: int, most: int, parsed: Any) -> _Part:
        if most > _MOST_COPIES:
            part = self.sequence(parsed)
            self._join(part.last, part.first)
            return part._replace(is_nullable=part.is_nullable or least == 0)
        found = _EMPTY
        for _ in range(most - least):  # from the last: x(x(x)?)?
            found = self._then(self.sequence(parsed), found)
            found = found._replace(is_nullable=True)
        for _ in range(least):
            found = self._then(self.sequence(parsed), found)
        return found

    # --- judging -----------------------------------------------------------------

    def is_ambiguous(self) -> bool:
        return any(
            self._is_ambiguous_loop(loop)
            for loop in self._loops()
            if len(loop) <= _MOST_IN_LOOP and not loop <= self.ends
        )

    def _loops(self) -> list[set[int]]:
        """Return the sets of positions that can be reached from each other."""
        following: dict[int, set[int]] = {}
        leading: dict[int, set[int]] = {}
        for one, other in self._follow:
            following.setdefault(one, set()).add(other)
            leading.setdefault(other, set()).add(one)
        loops: list[set[int]] = []
        left = set(following) & set(leading)
        while left:
            one = min(left)
            loop = _reached(one, following) & _reached(one, leading)
            if loop:
                loops.append(loop)
            left -= {one, *loop}
        return loops

    def _is_ambiguous_loop(self, loop: set[int]) -> bool:
        edges = [pair for pair in self._follow if loop.issuperset(pair)]
        if any(self._follow[pair] > 1 for pair in edges):
            return True
        said = {at: self._characters(at) for at in loop}
        following: dict[tuple[int, int], set[tuple[int, int]]] = {}
        leading: dict[tuple[int, int], set[tuple[int, int]]] = {}
        for one, to_one in edges:
            for other, to_other in edges:
                if said[to_one] & said[to_other]:
                    following.setdefault((one, other), set()).add((to_one, to_other))
                    leading.setdefault((to_one, to_other), set()).add((one, other))
        for at in loop:
            both = _reached((at, at), following) & _reached((at, at), leading)
            if any(one != other for one, other in both):
                return True
        return False

    def _characters(self, at: int) -> frozenset[str]:
        code, argument = self._atoms[at]
        return frozenset(c for c in self._alphabet if self._fits(code, argument, c))

    def _fits(self, code: Any, argument: Any, character: str) -> bool:
        if code is codes.ANY:
            return bool(self._flags & re.DOTALL) or character != "\n"
        cases = [character]
        if self._flags & re.IGNORECASE:
            cases += [character.lower(), character.upper()]
        if code is codes.IN:
            is_negated = argument[0][0] is codes.NEGATE
            return is_negated != any(
                self._is_member(item[0], item[1], case)
                for item in argument[is_negated:]
                for case in cases
            )
        is_same = any(ord(case) == argument for case in cases if len(case) == 1)
        return is_same is (code is codes.LITERAL)

    def _is_member(self, code: Any, argument: Any, character: str) -> bool:
        if code is codes.CATEGORY:
            pattern = _CATEGORIES[argument]
            return re.match(pattern, character, self._flags & re.ASCII) is not None
        if len(character) > 1:
            return False
        if code is codes.RANGE:
            return bool(argument[0] <= ord(character) <= argument[1])
        return bool(argument == ord(character))


_ATOMS: Final = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN)


def _either(parts: Sequence[_Part]) -> _Part:
    return _Part(
        any(part.is_nullable for part in parts),
        True,
        [at for part in parts for at in part.first],
        [at for part in parts for at in part.last],
        [at for part in parts for at in part.free],
    )


def _reached(start: Any, following: dict[Any, set[Any]]) -> set[Any]:
    """Return what is reached from a place in one step or more."""
    found: set[Any] = set()
    waiting = [start]
    while waiting:
        for each in following.get(waiting.pop(), ()):
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


def _near(code: int) -> Iterable[int]:
    return (n for n in (code - 1, code, code + 1) if 0 <= n <= 0x10FFFF)
