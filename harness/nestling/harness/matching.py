"""Whether live values are the recorded ones, ids renamed consistently over a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from nestling.driver.live_director import STARTED_AS
from nestling.harness.normalise import (
    BLANKED,
    Normalisers,
    Value,
    is_time,
    shown_piece,
)
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import Json, JsonObject, canonical

Pair: TypeAlias = tuple[str, str, str]
"""A normaliser's name, what it found live, and what stood there in the recording."""


class Renaming:
    """Which live value stands for which recorded one, the same all over a tree.

    A live value stands for one recorded value. Two may stand for one only if one of them
    is the recorded one itself: what a model was recorded to say quotes it.
    """

    def __init__(self) -> None:
        self._recorded: dict[tuple[str, str], str] = {}
        self._live: dict[tuple[str, str], str] = {}

    def conflict(self, pairs: Iterable[Pair]) -> str | None:
        """Take in what stands for what; if it does not fit, say so and take in nothing."""
        recorded: dict[tuple[str, str], str] = {}
        lives: dict[tuple[str, str], str] = {}
        for name, live, was in pairs:
            token = "{{" + name + "}}"
            key, back = (name, live), (name, was)
            stands_for = recorded.get(key, self._recorded.get(key, was))
            if stands_for != was:
                return (
                    f"{token} {live} stands for {was}, and elsewhere for {stands_for}"
                )
            recorded[key] = was
            if live == was:
                continue
            taken_by = lives.get(back, self._live.get(back, live))
            if taken_by != live:
                return f"{token} {live} stands for {was}, which elsewhere is {taken_by}"
            lives[back] = live
        self._recorded.update(recorded)
        self._live.update(lives)
        return None


class Matcher:
    """Tells whether live values are the recorded ones, under the normalisers in force."""

    def __init__(self, normalisers: Normalisers, renaming: Renaming) -> None:
        self.normalisers = normalisers
        self._renaming = renaming

    def is_same(self, live: Json, recorded: Json) -> bool:
        """Tell whether two JSON values are the same; if so, take in what stands for what."""
        return self.difference(live, recorded) is None

    def difference(self, live: Json, recorded: Json) -> str | None:
        """Return None for the same values; else what stands for two things, or ""."""
        pairs: list[Pair] = []
        if not self._pair(live, recorded, pairs):
            return ""
        return self._renaming.conflict(pairs)

    def _pair(self, live: Json, recorded: Json, pairs: list[Pair]) -> bool:
        """Tell whether two values are equal but for values, which are added to `pairs`."""
        kind = type(live)
        if kind is not type(recorded):
            return canonical(live) == canonical(recorded)
        if kind is dict:
            return live.keys() == recorded.keys() and all(
                self._pair(live[key], recorded[key], pairs) for key in live
            )
        if kind is list:
            return len(live) == len(recorded) and all(
                self._pair(*both, pairs) for both in zip(live, recorded, strict=True)
            )
        if kind is str:
            return self._pair_texts(live, recorded, pairs)
        if live == recorded:
            return True
        return "time" in self.normalisers.names and is_time(live) and is_time(recorded)

    def _pair_texts(self, live: str, recorded: str, pairs: list[Pair]) -> bool:
        if live == recorded:
            values = self.normalisers.values(live)
            pairs += [(value.name, value.text, value.text) for value in values]
            return True
        mine, others = (self.normalisers.pieces(text) for text in (live, recorded))
        if list(map(shown_piece, mine)) != list(map(shown_piece, others)):
            return False
        for one, other in zip(mine, others, strict=True):
            if isinstance(one, Value) and isinstance(other, Value):
                if one.name not in BLANKED:
                    pairs.append((one.name, one.text, other.text))
            elif type(one) is not type(other):
                return False
        return True


class KeptLog(Protocol):
    """A log: one of a run, or a recording."""

    @property
    def header(self) -> Header:
        """Its header."""
        ...

    @property
    def events(self) -> Sequence[Event]:
        """Its events, oldest first."""
        ...


def normalised_equal(
    log_a: KeptLog,
    log_b: KeptLog,
    normalisers: Normalisers,
    renaming: Renaming | None = None,
) -> bool:
    """Tell whether two logs are equal under normalisers.

    Times of events and of the header do not count, nor the digest of what was inherited,
    which follows from the parent's events, nor which agent's code ran.

    Args:
        log_a: a log, or a recording.
        log_b: the one that it may be equal to.
        normalisers: those in force.
        renaming: what stands for what already, by the tree's other logs; it is left as
            it was if the two are not equal.
    """
    if len(log_a.events) != len(log_b.events):
        return False
    matcher = Matcher(normalisers, Renaming() if renaming is None else renaming)
    one, other = ([_stated(each.header), *_contents(each)] for each in (log_a, log_b))
    return matcher.is_same(one, other)


def _stated(header: Header) -> JsonObject:
    left_out = ("createdAt", "seedDigest", STARTED_AS)
    return {key: value for key, value in header.row().items() if key not in left_out}


def _contents(log: KeptLog) -> list[JsonObject]:
    return [event.content() for event in log.events]
