"""Comparing a live event with the recorded one.

A tape replay takes ids and headers verbatim, so the two must be equal in everything
but their times. With an agent they may differ in what normalisers find. The words of a repair's results are not compared: each system has its
own, and their codes say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from nestling.harness.crashes import is_unknown
from nestling.harness.matching import Matcher
from nestling.harness.volatile import advice
from nestling.session.event import Event
from nestling.session.jsontext import Json, JsonObject, canonical, dumps, shown

SKELETON: Final = frozenset(
    {
        "turn/start",
        "turn/end",
        "step/start",
        "step/end",
        "assistant/chunk",
        "assistant/message",
        "tool/call",
        "session/end-seed",
    }
)
"""What the loop makes of what a model says, and where own events begin; the rest is what
a model is told."""


class Difference(NamedTuple):
    """The first place where two JSON values differ."""

    place: str
    live: str
    recorded: str

    def __str__(self) -> str:
        where = self.place or "everything"
        return f"{where} is {self.live}, recorded was {self.recorded}"


def event_difference(
    live: Event,
    recorded: Event,
    matcher: Matcher | None = None,
    place_of: Sequence[int | None] | None = None,
) -> str | None:
    """Say how a live event differs from the recorded one; None if it does not.

    Args:
        live: the live one.
        recorded: the other.
        matcher: what is the same; nothing but what is equal by default.
        place_of: where each live event stands in the recorded log, if inputs are missing
            there or new. Ids that are made from places do not count then.
    """
    if live.type != recorded.type:
        return f"it is {live.type}, recorded was {recorded.type}"
    mine, other = _comparable(live), _comparable(recorded)
    if place_of is not None:
        mine, other = _moved(mine, place_of), _moved(other, None)
    if matcher is None:
        difference = first_difference(mine, other)
        return None if difference is None else f"{live.type}: {difference}"
    if live.type in SKELETON and mine == other and dumps(mine) == dumps(other):
        return None  # what a model said is quoted: it tells nothing of ids
    problem = matcher.difference(mine, other)
    if problem is None:
        return None
    normalised = matcher.normalisers.normalised_json
    difference = first_difference(normalised(mine), normalised(other))
    if difference is None:
        return f"{live.type}: {problem}" if problem else None
    hint = advice(difference.live, difference.recorded, matcher.normalisers)
    more = "" if hint is None else f"; {hint}"
    return f"{live.type}: {difference}{more}"


def _moved(content: JsonObject, place_of: Sequence[int | None] | None) -> JsonObject:
    """Return a content without what follows from the places of events in its log.

    Ids of messages are made from their places; who answered follows from an input.
    """
    data, kind = content["data"], content["type"]
    if kind == "user/message":
        data = _without(data, "id")
    elif kind == "tool/result":
        data = {**data, "message": _without(data["message"], "id")}
    elif kind == "assistant/message":
        data = {**data, "message": _without(data["message"], "id", "source")}
    elif kind.startswith("llm/retry"):
        data = _without(data, "retryId")
    moved = {**content, "data": data}
    if place_of is not None:
        sources, operation = moved.get("sourceEventSeqs"), moved.get("surfaceOp")
        if sources is not None:
            moved["sourceEventSeqs"] = [place_of[seq] for seq in sources]
        if type(operation) is dict:
            ends = {key: place_of[operation[key]] for key in ("start", "end")}
            moved["surfaceOp"] = {**operation, **ends}
    return moved


def _without(data: JsonObject, *keys: str) -> JsonObject:
    return {key: value for key, value in data.items() if key not in keys}


def _comparable(event: Event) -> JsonObject:
    content = event.content()
    if not is_unknown(event):
        return content
    data = event.data
    block = {**data["message"]["content"][0], "content": "(the repair's own words)"}
    message = {**data["message"], "content": [block]}
    return {**content, "data": {**data, "message": message}}


def first_difference(live: Json, recorded: Json) -> Difference | None:
    """Find the first place where two JSON values differ as JSON; None if equal."""
    if live == recorded and dumps(live) == dumps(recorded):
        return None
    if canonical(live) == canonical(recorded):
        return None
    return _descend(live, recorded, "")


def _descend(live: Json, recorded: Json, place: str) -> Difference:
    if type(live) is dict and type(recorded) is dict:
        for key in [*recorded, *(key for key in live if key not in recorded)]:
            if key not in live or key not in recorded:
                there = f"{place}.{key}" if place else key
                return Difference(there, _shown_of(live, key), _shown_of(recorded, key))
            if canonical(live[key]) != canonical(recorded[key]):
                there = f"{place}.{key}" if place else key
                return _descend(live[key], recorded[key], there)
    if type(live) is list and type(recorded) is list and _are_long(live, recorded):
        for index, (one, other) in enumerate(zip(live, recorded, strict=False)):
            if canonical(one) != canonical(other):
                return _descend(one, other, f"{place}[{index}]")
        lengths = len(live), len(recorded)
        return Difference(f"the length of {place}", *map(str, lengths))
    return Difference(place, shown(live), shown(recorded))


def _are_long(live: list[Json], recorded: list[Json]) -> bool:
    """Tell whether lists are better compared item by item than shown whole."""
    if len(live) == len(recorded):
        return True
    return any(type(item) is dict for item in (*live, *recorded))


def _shown_of(value: JsonObject, key: str) -> str:
    return shown(value[key]) if key in value else "absent"
