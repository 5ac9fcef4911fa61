"""What looks as if it changed from run to run, and which normaliser would tell so."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from nestling.harness.normalise import Normalisers

_WORD: Final = re.compile(r"[^\s\"'`<>(){}\[\],;]+")


class _Look(NamedTuple):
    """How one kind of volatile text looks.

    Attributes:
        what: what it is called.
        pattern: how it looks, with what stands around it.
        remedy: the built-in normaliser that finds it, or a line of ``[normalisers]``.
    """

    what: str
    pattern: re.Pattern[str]
    remedy: str


_LOOKS: Final = (
    _Look(
        "a uuid",
        re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
        "uuid",
    ),
    _Look("a time", re.compile(r"(?:19|20)\d\d-\d\d-\d\d|\b\d\d:\d\d:\d\d"), "time"),
    _Look(
        "a time", re.compile(r"(?<![\w.])(?:1[4-9]|2[01])\d{8}(?:\d{3})?(?!\w)"), "time"
    ),
    _Look(
        "a date",
        re.compile(
            r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? "
            r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* \d{1,2}\b"
            r"|\b\d{1,2}[./]\d{1,2}[./](?:19|20)\d\d"
        ),
        "date = '[A-Z][a-z]+ [0-9]{1,2},? [0-9]{4}'",
    ),
    _Look(
        "a temporary path",
        re.compile(r"(?:/private)?/(?:tmp|var/tmp|var/folders|dev/shm|run/user)/\S+"),
        "tmp = '/(tmp|var/tmp|var/folders|dev/shm|run/user)/[A-Za-z0-9_./-]+'",
    ),
    _Look(
        "a duration",
        re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|s|sec|seconds|µs|us)\b"),
        "duration = '[0-9.]+ ?(ms|s)'",
    ),
    _Look(
        "a port",
        re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\]|0\.0\.0\.0):\d{2,5}|port\W+\d+"),
        "port = '(?<=:)[0-9]{4,5}'",
    ),
    _Look(
        "a process id",
        re.compile(r"\b(?:pid|process(?: id)?)\W{1,3}\d+", re.IGNORECASE),
        "pid = '(?<=pid )[0-9]+'",
    ),
    _Look(
        "an id of hexadecimal digits",
        re.compile(
            r"(?<![0-9A-Za-z])(?=[0-9a-fx]*\d)(?=[0-9x]*[a-f])(?:0x)?[0-9a-f]{7,64}"
            r"(?![0-9A-Za-z])"
        ),
        "id = '[0-9a-f]{8,64}'",
    ),
)
_AROUND: Final = 16
"""Characters before and after a difference that tell what it is."""


def advice(
    live: str | None, recorded: str | None, normalisers: Normalisers
) -> str | None:
    """Say what the first difference of two texts looks like, if it is volatile.

    Args:
        live: what stands there now; None if nothing does.
        recorded: what stood there.
        normalisers: those in force.
    """
    if live is None or recorded is None:
        return None
    one, other = normalisers.normalised(live), normalisers.normalised(recorded)
    if one == other:
        return None
    mine, its = _surroundings(one, other), _surroundings(other, one)
    for look in _LOOKS:
        found, was = look.pattern.search(mine), look.pattern.search(its)
        if found is None or was is None or found.group() == was.group():
            continue
        if look.remedy in ("uuid", "time"):
            if look.remedy in normalisers.names:
                continue
            remedy = f'add "{look.remedy}" to `normalise`'
        else:
            remedy = f"declare it under [normalisers], for example {look.remedy}"
        return (
            f"it looks like {look.what}, which changes from run to run: {remedy} "
            "in scenario.toml"
        )
    return None


def _surroundings(text: str, other: str) -> str:
    """Return the words around the first place where a text differs from another."""
    shorter = min(len(text), len(other))
    at = next((n for n in range(shorter) if text[n] != other[n]), shorter)
    end = 0
    while end < shorter - at and text[-1 - end] == other[-1 - end]:
        end += 1
    first, last = at, max(at, len(text) - end)
    for word in _WORD.finditer(text):
        if word.start() <= at <= word.end():
            first = word.start()
        if word.start() <= last <= word.end():
            last = word.end()
    return text[max(0, first - _AROUND) : min(last, at + 200) + _AROUND]
