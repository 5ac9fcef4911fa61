"""Keeping a recording steady: what is equal stays as it was written.

A tree that was run anew has new times and ids, and maybe another prompt. Its logs are
aligned with those that are kept: what the loop made (the skeleton, see ``compare``) one
to one, and the inputs between two of its events as a sequence. An event that is equal
under the normalisers is written as it was kept, with its time and every value in it; what
differs is written fresh, but the uuids and the like in it are those of the kept recording
where they are known to stand for the same. Ids of messages are made from their places in
the log: where something is inserted, those after it are others, as they will be in the
next replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import msgspec

from nestling.driver.exits import Log
from nestling.driver.live_director import STARTED_AS
from nestling.harness.compare import SKELETON
from nestling.harness.normalise import Normalisers, Value
from nestling.session.digest import seed_digest
from nestling.session.event import Event, event_from_content
from nestling.session.header import Header
from nestling.session.jsontext import Json, JsonObject, canonical
from nestling.session.reading import Recording
from nestling.session.spawn_path import sort_key


def steadied(
    fresh: Mapping[str, Log],
    kept: Mapping[str, Recording],
    normalisers: Normalisers,
    *,
    is_same_tree: bool = False,
) -> dict[str, Log]:
    """Return the logs of a tree, written as they were kept where they are equal.

    Args:
        fresh: what the tree has left, by spawn path.
        kept: the recording that there is, likewise.
        normalisers: those in force.
        is_same_tree: whether the skeletons are known to be equal; then they are kept as
            they are, placeholders and all.
    """
    ordered = sorted(fresh, key=sort_key)
    parts = {
        path: _Part(fresh[path], kept.get(path), normalisers, is_same_tree=is_same_tree)
        for path in ordered
    }
    spelling = _Spelling(normalisers)
    if not all(spelling.learn(part) for part in parts.values()):
        # One value stood for two: what each stands for cannot be told, so all are fresh.
        if normalisers.names:
            exact = Normalisers(())
            return steadied(fresh, kept, exact, is_same_tree=is_same_tree)
        spelling = _Spelling(normalisers)
    path_of = {log.header.id: path for path, log in fresh.items()}
    made: dict[str, Log] = {}
    for path in ordered:
        parent = path_of.get(fresh[path].header.parent_session or "")
        seed = [] if parent is None or parent == path else made[parent].events
        made[path] = parts[path].written(seed, spelling)
    return made


class _Pair(NamedTuple):
    """An event of the fresh log, and the kept one in whose place it stands."""

    fresh: Event
    kept: Event | None
    is_equal: bool


class _Part:
    """One session: its own events, aligned with those that are kept."""

    def __init__(
        self,
        fresh: Log,
        kept: Recording | None,
        normalisers: Normalisers,
        *,
        is_same_tree: bool,
    ) -> None:
        self._log = fresh
        self._normalisers = normalisers
        own = fresh.events[fresh.header.seed_length :]
        self.pairs = [_Pair(event, None, is_equal=False) for event in own]
        self._kept_header: Header | None = None
        if kept is None:
            return
        kept_own = kept.events[kept.header.seed_length :]
        if self._is_aligned(own, kept_own, is_same=is_same_tree):
            self.pairs = list(self._aligned(own, kept_own))
            self._kept_header = kept.header

    def _is_aligned(
        self, own: Sequence[Event], kept: Sequence[Event], *, is_same: bool
    ) -> bool:
        mine, others = ([e for e in each if e.type in SKELETON] for each in (own, kept))
        if [event.type for event in mine] != [event.type for event in others]:
            return False
        return is_same or all(map(self._is_equal, mine, others))

    def _is_equal(self, one: Event, other: Event) -> bool:
        return self._key(one) == self._key(other)

    def _key(self, event: Event) -> bytes:
        content = _without_ids(event)
        if event.type not in SKELETON:  # what a model said is quoted
            content = self._normalisers.normalised_json(content)
        return canonical(content)

    def _aligned(self, own: Sequence[Event], kept: Sequence[Event]) -> Iterator[_Pair]:
        rest, others = iter(_segments(own)), iter(_segments(kept))
        for (inputs, event), (kept_inputs, other) in zip(rest, others, strict=True):
            yield from self._inputs(inputs, kept_inputs)
            if event is not None and other is not None:
                yield _Pair(event, other, is_equal=True)

    def _inputs(self, mine: Sequence[Event], kept: Sequence[Event]) -> Iterator[_Pair]:
        keys, others = ([self._key(event) for event in each] for each in (mine, kept))
        matcher = SequenceMatcher(None, others, keys, autojunk=False)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes():
            old = list(kept[i1:i2])
            for number, event in enumerate(mine[j1:j2]):
                stood = old[number] if number < len(old) else None
                if stood is not None and stood.type != event.type:
                    stood = None
                yield _Pair(event, stood, is_equal=tag == "equal")

    # --- writing -----------------------------------------------------------------

    def written(self, parent: Sequence[Event], spelling: _Spelling) -> Log:
        header = self._log.header
        length = header.seed_length
        events = list(parent[:length])
        for pair in self.pairs:
            before = events[-1].time if events else 0
            events.append(_written(pair, len(events), before, spelling))
        return Log(self._header(events[:length]), events)

    def _header(self, seed: Sequence[Event]) -> Header:
        header = self._log.header.with_fields(**{STARTED_AS: None})
        if header.seed_digest is not None:
            header = header.with_fields(seedDigest=seed_digest(seed))
        kept = self._kept_header
        if kept is None:
            return header
        return Header(header.id, kept.created_at, header.fields)


def _written(
    pair: _Pair,
    seq: int,
    before: int,
    spelling: _Spelling,
) -> Event:
    if pair.is_equal and pair.kept is not None:
        ids = dict(zip(_ids(pair.kept), _ids(pair.fresh), strict=True))
        return msgspec.structs.replace(
            pair.kept,
            seq=seq,  # and whatever else comes from a place in the log
            data=_with_ids(pair.kept.content(), ids)["data"],
            surface_op=pair.fresh.surface_op,
            source_event_seqs=pair.fresh.source_event_seqs,
        )
    content = spelling.respelled(pair.fresh.content())
    time = pair.fresh.time
    if pair.kept is not None:
        time = pair.kept.time
    elif spelling.has_kept:
        time = before  # the log keeps its own clock
    return event_from_content(content, seq, time)


class _Spelling:
    """How values of the fresh run were spelled in the kept recording."""

    def __init__(self, normalisers: Normalisers) -> None:
        self.has_kept = False
        self._normalisers = normalisers
        self._kept: dict[tuple[str, str], str] = {}
        self._fresh: dict[tuple[str, str], str] = {}

    def learn(self, part: _Part) -> bool:
        """Take in what is equal; tell whether each value stands for one other."""
        for fresh, kept, is_equal in part.pairs:
            self.has_kept |= kept is not None
            if not is_equal or kept is None or fresh.type in SKELETON:
                continue
            mine, others = (list(self._values(each.data)) for each in (fresh, kept))
            for one, other in zip(mine, others, strict=True):
                key, back = (one.name, one.text), (other.name, other.text)
                if self._kept.setdefault(key, other.text) != other.text:
                    return False
                if self._fresh.setdefault(back, one.text) != one.text:
                    return False
        return True

    def _values(self, value: Json) -> Iterator[Value]:
        if type(value) is str:
            yield from self._normalisers.values(value)
        elif type(value) is list:
            for item in value:
                yield from self._values(item)
        elif type(value) is dict:
            for key in sorted(value):
                yield from self._values(value[key])

    def respelled(self, value: Json) -> Json:
        """Return a value with what is known to have another spelling in it."""
        if type(value) is str:
            return "".join(map(self._piece, self._normalisers.pieces(value)))
        if type(value) is list:
            return [self.respelled(item) for item in value]
        if type(value) is dict:
            return {key: self.respelled(item) for key, item in value.items()}
        return value

    def _piece(self, piece: str | Value) -> str:
        if isinstance(piece, Value):
            return self._kept.get((piece.name, piece.text), piece.text)
        return piece


# --- events ------------------------------------------------------------------------


def _segments(events: Sequence[Event]) -> Iterator[tuple[list[Event], Event | None]]:
    """Yield the inputs before each event of the skeleton, and that; last, the rest."""
    inputs: list[Event] = []
    for event in events:
        if event.type in SKELETON:
            yield inputs, event
            inputs = []
        else:
            inputs.append(event)
    yield inputs, None


_RETRY = "retryId"


def _ids(event: Event) -> list[str]:
    """Return the ids that the loop made up for an event."""
    data = event.data
    if type(data) is not dict:
        return []
    message = data.get("message") if event.type != "user/message" else data
    found = [message.get("id")] if type(message) is dict else []
    return [each for each in [*found, data.get(_RETRY)] if type(each) is str]


def _without_ids(event: Event) -> JsonObject:
    """Return what an event says, without ids and without places in its log."""
    content = _with_ids(event.content(), dict.fromkeys(_ids(event), ""))
    content.pop("sourceEventSeqs", None)
    if type(event.surface_op) is dict:
        content["surfaceOp"] = event.surface_op["op"]
    return content


def _with_ids(content: JsonObject, ids: Mapping[str, str]) -> JsonObject:
    data = content["data"]
    if type(data) is not dict:
        return dict(content)
    changed = dict(data)
    if type(changed.get(_RETRY)) is str:
        changed[_RETRY] = ids.get(changed[_RETRY], changed[_RETRY])
    if content["type"] == "user/message":
        changed = _named(changed, ids)
    elif type(changed.get("message")) is dict:
        changed["message"] = _named(changed["message"], ids)
    return {**content, "data": changed}


def _named(message: JsonObject, ids: Mapping[str, str]) -> JsonObject:
    id_ = message.get("id")
    return {**message, "id": ids.get(id_, id_)} if type(id_) is str else message
