"""Twins: recorded subtrees that are equal but for ids and times.

It does not matter which of two twins a live session replays, so a pairing that could
go either way between them is no guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from nestling.harness.delegation import Delegation
from nestling.harness.lineage import Lineage
from nestling.session.jsontext import Json, JsonObject
from nestling.session.reading import Recording
from nestling.session.spawn_path import child_path

_TIME_KEYS: Final = frozenset({"createdAt", "updatedAt", "durationMs"})
# A shorter id may also be a word of the text, so it is renamed only where it is all
# of a string.
_DISTINCT_LENGTH: Final = 8


class Twins:
    """Compares subtrees of one lineage.

    Args:
        lineage: the tree.
        delegations: how each session came to be, known for every session *below*
            those compared; filled in while pairing goes from the leaves to the root.
    """

    def __init__(
        self, lineage: Lineage, delegations: Mapping[str, Delegation | None]
    ) -> None:
        self._lineage = lineage
        self._delegations = delegations
        self._forms: dict[str, list[Json]] = {}

    def are_equal(self, recordings: Sequence[Recording]) -> bool:
        """Tell whether all of these sessions have equal subtrees."""
        first, *others = (self._form(recording) for recording in recordings)
        return all(form == first for form in others)

    def _form(self, root: Recording) -> list[Json]:
        """Return what a subtree says, without ids and times."""
        known = self._forms.get(root.header.id)
        if known is None:
            subtree = list(self._subtree(root))
            content = [_content(path, recording) for path, recording in subtree]
            known = self._forms[root.header.id] = _renamed(content)
        return known

    def _subtree(self, root: Recording) -> Iterator[tuple[str, Recording]]:
        waiting = [("/", root)]
        while waiting:
            path, recording = waiting.pop()
            yield path, recording
            below = [
                (self._path(path, child), child)
                for child in self._lineage.children[recording.header.id]
            ]
            waiting.extend(sorted(below, key=lambda pair: pair[0], reverse=True))

    def _path(self, parent: str, child: Recording) -> str:
        delegation = self._delegations[child.header.id]
        if delegation is None:
            return f"{parent}/?"
        return child_path(parent, delegation.spawned_by)


def _content(path: str, recording: Recording) -> JsonObject:
    header = recording.header
    events = [_timeless(event.content()) for event in recording.events]
    fields = _timeless(header.fields)
    # The root of a subtree is not told apart by where it hangs, which its path says.
    spawned_by = fields.pop("spawnedBy", None)
    context = None if spawned_by is None else spawned_by["context"]
    return {
        "path": path,
        "id": header.id,
        "fields": fields,
        "context": context,
        "events": events,
    }


def _timeless(value: Json) -> Json:
    if type(value) is list:
        return [_timeless(item) for item in value]
    if type(value) is dict:
        return {
            key: 0 if key in _TIME_KEYS else _timeless(item)
            for key, item in value.items()
        }
    return value


# --- ids -----------------------------------------------------------------------


def _renamed(content: list[Json]) -> list[Json]:
    """Rename ids by the order they are first seen in, the same id to the same name."""
    names: dict[str, str] = {}
    for id_ in _ids(content):
        names.setdefault(id_, f"\0{len(names)}\0")
    distinct = sorted(
        (id_ for id_ in names if len(id_) >= _DISTINCT_LENGTH), key=len, reverse=True
    )
    pattern = re.compile("|".join(map(re.escape, distinct)) if distinct else "(?!)")
    renamed = _rename(content, names, pattern)
    return list(renamed)


def _ids(value: Json) -> Iterator[str]:
    if type(value) is list:
        for item in value:
            yield from _ids(item)
    elif type(value) is dict:
        for key, item in value.items():
            if type(item) is str and _names_an_id(key):
                yield item
            else:
                yield from _ids(item)


def _names_an_id(key: str) -> bool:
    return key == "id" or key == "parentSession" or key.endswith("Id")


def _rename(value: Json, names: Mapping[str, str], pattern: re.Pattern[str]) -> Json:
    if type(value) is str:
        whole = names.get(value)
        if whole is not None:
            return whole
        return pattern.sub(lambda match: names[match[0]], value)
    if type(value) is list:
        return [_rename(item, names, pattern) for item in value]
    if type(value) is dict:
        return {key: _rename(item, names, pattern) for key, item in value.items()}
    return value
