"""The recorded call that is most like a request for which there is no answer.

A hint for people, computed only after something was found wrong. Requests are compared
by their words: of the system prompt, of the tools, of the first and the last message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from nestling.harness.normalise import Normalisers
from nestling.harness.pairing import first_prompt
from nestling.harness.scenario import RecordedSession
from nestling.session.event import Event
from nestling.session.jsontext import Json, dumps
from nestling.session.request import Request
from nestling.session.surface import Surface

_WEIGHTS: Final = (0.2, 0.1, 0.3, 0.4)
"""Of system prompt, tools, first message, last message."""
_MOST_CALLS: Final = 5000
"""So many recorded calls are looked at."""
_WORDS: Final = re.compile(r"\w+")


class Nearest(NamedTuple):
    """The recorded call that is nearest to what was asked for.

    Attributes:
        path: the spawn path of its session.
        call: which of the session's calls, from 1.
        similarity: from 0, nothing in common, to 1.
    """

    path: str
    call: int
    similarity: float

    def __str__(self) -> str:
        # It is no answer to what was asked, however few of the words are others.
        percent = min(round(self.similarity * 100), 99)
        return f"nearest recorded: call {self.call} of {self.path} ({percent} % alike)"


Words = tuple[AbstractSet[str], ...]


def nearest_call(
    request: Request, sessions: Iterable[RecordedSession], normalisers: Normalisers
) -> Nearest | None:
    """Return the recorded call whose request is most like another one.

    Args:
        request: the other one.
        sessions: where to look.
        normalisers: those in force.
    """
    words = _words(request.system, request.tools, request.messages, normalisers)
    found = [
        Nearest(path, number, round(_similarity(words, its), 3))
        for path, number, its in _recorded(sessions, normalisers)
    ]
    return max(found, key=lambda each: each.similarity, default=None)


def nearest_task(prompt: str, sessions: Iterable[RecordedSession]) -> Nearest | None:
    """Return the first call of the recorded child whose task is most like a prompt."""
    words = _set_of(prompt)
    found = [
        Nearest(session.path, 1, round(_alike(words, _set_of(task)), 3))
        for session in sessions
        if session.path is not None
        and session.delegation is not None
        and (task := first_prompt(session.own_events)) is not None
    ]
    return max(found, key=lambda each: each.similarity, default=None)


def _recorded(
    sessions: Iterable[RecordedSession], normalisers: Normalisers
) -> Iterator[tuple[str, int, Words]]:
    left = _MOST_CALLS
    for session in sessions:
        places = [call.place for call in session.script[: max(left, 0)]]
        left -= len(places)
        starts = [place.first_seq for place in places if place is not None]
        if session.path is not None:
            numbered = enumerate(
                _prefixes(session.recording.events, starts, normalisers), start=1
            )
            yield from ((session.path, number, words) for number, words in numbered)


def _prefixes(
    events: Sequence[Event], starts: Sequence[int], normalisers: Normalisers
) -> Iterator[Words]:
    """Yield the words of the requests that some prefixes of a log lead to."""
    surface, done = Surface(), 0
    system: Json = None
    tools: Json = None
    for start in starts:
        for event in events[done:start]:
            surface.append(event)
            if event.type == "request/header":
                header = event.data["header"]
                system, tools = header.get("system"), header.get("tools")
        done = start
        ends = [events[seq] for seq in (*surface.nodes[:1], *surface.nodes[-1:])]
        messages = [e.data.get("message", e.data) for e in ends]
        yield _words(system, tools, messages, normalisers)


def _words(
    system: Json, tools: Json, messages: Sequence[Json], normalisers: Normalisers
) -> Words:
    ends = [message.get("content") for message in (*messages[:1], *messages[-1:])]
    return tuple(
        _set_of(normalisers.normalised(dumps(part).decode("utf-8")))
        for part in (system, tools, *ends)
    )


def _set_of(text: str) -> AbstractSet[str]:
    return frozenset(_WORDS.findall(text))


def _similarity(one: Words, other: Words) -> float:
    pairs = zip(_WEIGHTS, one, other, strict=False)
    return sum(weight * _alike(mine, its) for weight, mine, its in pairs)


def _alike(one: AbstractSet[str], other: AbstractSet[str]) -> float:
    both = len(one | other)
    return len(one & other) / both if both else 1.0
