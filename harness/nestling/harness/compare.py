"""Comparing a live event with the recorded one.

A tape replay takes ids and headers verbatim, so the two must be equal in everything
but their times. The words of a repair's results are not compared: each system has its
own, and their codes say the same.
"""

from __future__ import annotations

from typing import NamedTuple

from nestling.harness.crashes import is_unknown
from nestling.session.event import Event
from nestling.session.jsontext import Json, JsonObject, canonical, dumps, shown


class Difference(NamedTuple):
    """The first place where two JSON values differ."""

    place: str
    live: str
    recorded: str

    def __str__(self) -> str:
        where = self.place or "everything"
        return f"{where} is {self.live}, recorded was {self.recorded}"


def event_difference(live: Event, recorded: Event) -> str | None:
    """Say how a live event differs from the recorded one; None if it does not."""
    if live.type != recorded.type:
        return f"it is {live.type}, recorded was {recorded.type}"
    difference = first_difference(_comparable(live), _comparable(recorded))
    return None if difference is None else f"{live.type}: {difference}"


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
