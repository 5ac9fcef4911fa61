"""Packed rows: runs of delta chunks that share one line of a file.

Storage only: everything else counts and sees unpacked, logical events. Rules: a row
packs at least ``MIN_RUN`` consecutive deltas of one kind, turn, step and block; for
tool calls also of one id and name. ``dt`` holds the differences of their times.
Packing is done per append batch, so a flush boundary splits a run and rows on disk
are never rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from nestling.session.errors import UnreadableError
from nestling.session.event import Event
from nestling.session.jsontext import (
    MAX_SAFE_INTEGER,
    Json,
    JsonObject,
    is_int0,
    is_safe_int,
)

MIN_RUN: Final = 3


class _Tag(NamedTuple):
    """One kind of packed row: the chunk it packs and the names of its parts."""

    row_type: str
    chunk_type: str
    members: str
    text_key: str


_TAGS: Final = (
    _Tag("text-chunks", "text-delta", "texts", "text"),
    _Tag("reasoning-chunks", "reasoning-delta", "texts", "text"),
    _Tag("tool-call-chunks", "tool-call-delta", "args", "argumentsDelta"),
)
_BY_ROW: Final = {tag.row_type: tag for tag in _TAGS}
_BY_CHUNK: Final = {tag.chunk_type: tag for tag in _TAGS}

_RunKey: TypeAlias = tuple[Json, ...]
_NUMBERS: Final = frozenset({int, float})
_DATA_KEYS: Final = frozenset({"turn", "step", "chunk"})
_CHUNK_KEYS: Final = {
    "texts": ({"type", "index", "text"},),
    "args": (
        {"type", "index", "id", "argumentsDelta"},
        {"type", "index", "id", "name", "argumentsDelta"},
    ),
}
"""Which keys a delta that can be packed has, by its tag's members."""


def is_packed(row: JsonObject) -> bool:
    """Tell whether a row of a file is a packed one."""
    return row.get("type") in _BY_ROW


def is_packed_type(kind: str) -> bool:
    """Tell whether a packed row is called that, so that no event can be."""
    return kind in _BY_ROW


# --- unpacking -----------------------------------------------------------------


def unpack(row: JsonObject, next_seq: int) -> list[Event]:
    """Return the logical events that a packed row stands for.

    Args:
        row: a row for which ``is_packed`` holds; projected rows lack `seq0`/`time0`.
        next_seq: the seq of the row's first member if the row does not say.

    Raises:
        UnreadableError: if the row is malformed; the message does not name a place.
    """
    tag = _BY_ROW[row["type"]]
    seq0, time0 = row.get("seq0", next_seq), row.get("time0", 0)
    problem = _envelope_problem(row, seq0, time0) or _data_problem(tag, row.get("data"))
    if problem is None:
        times = _member_times(time0, row["data"]["dt"])
        last_seq = seq0 + len(times) - 1
        if not all(is_safe_int(time) for time in times) or not is_int0(last_seq):
            problem = "member times must stay safe integers"
    if problem is not None:
        raise UnreadableError(f"malformed {tag.row_type} row: {problem}")
    return list(_members(tag, row["data"], seq0, times))


def _envelope_problem(row: JsonObject, seq0: Json, time0: Json) -> str | None:
    extra = row.keys() - {"type", "seq0", "time0", "data"}
    if extra:
        return f"unexpected key {min(extra)!r}"
    if not is_int0(seq0):
        return f"seq0 must be a safe integer >= 0, found {seq0!r}"
    if not is_safe_int(time0):
        return f"time0 must be a safe integer, found {time0!r}"
    return None


def _data_problem(tag: _Tag, data: Json) -> str | None:
    if type(data) is not dict:
        return "data must be an object"
    required = {"turn", "step", "index", "dt", tag.members}
    optional = {"name"} if tag.members == "args" else set()
    required |= {"id"} if tag.members == "args" else set()
    missing, extra = required - data.keys(), data.keys() - required - optional
    if missing or extra:
        return f"data must have exactly {', '.join(sorted(required))}"
    if not all(type(data[key]) in (int, float) for key in ("turn", "step", "index")):
        return "turn, step and index must be numbers"
    if not all(type(data[key]) is str for key in data.keys() & {"id", "name"}):
        return "id and name must be strings"
    return _members_problem(data[tag.members], data["dt"], tag.members)


def _members_problem(members: Json, dt: Json, name: str) -> str | None:
    if type(members) is not list or not members:
        return f"{name} must be a non-empty string array"
    if not all(type(member) is str for member in members):
        return f"{name} must be a non-empty string array"
    if type(dt) is not list or not all(is_safe_int(gap) for gap in dt):
        return "dt must be an array of safe integers"
    if len(dt) != len(members) - 1:
        return f"dt must have {len(members) - 1} entries, found {len(dt)}"
    return None


def _member_times(time0: int, gaps: list[int]) -> list[int]:
    times = [time0]
    for gap in gaps:
        times.append(times[-1] + gap)
    return times


def _members(
    tag: _Tag, data: JsonObject, seq0: int, times: list[int]
) -> Iterator[Event]:
    head: JsonObject = {"type": tag.chunk_type, "index": data["index"]}
    head.update({key: data[key] for key in ("id", "name") if key in data})
    place = {"turn": data["turn"], "step": data["step"]}
    for offset, (text, time) in enumerate(zip(data[tag.members], times, strict=True)):
        chunk = {**head, tag.text_key: text}
        yield Event(seq0 + offset, "assistant/chunk", time, {**place, "chunk": chunk})


# --- packing -------------------------------------------------------------------


def pack(events: Iterable[Event]) -> Iterator[JsonObject]:
    """Yield the rows of one append batch, with runs of deltas packed."""
    run: list[Event] = []
    key: _RunKey | None = None
    for event in events:
        found = _run_key(event)
        if key is not None and key == found and _follows(run[-1], event):
            run.append(event)
            continue
        yield from _rows(run, key)
        run, key = [event], found
    yield from _rows(run, key)


def _rows(run: list[Event], key: _RunKey | None) -> Iterator[JsonObject]:
    if len(run) < MIN_RUN or key is None:
        yield from (event.row() for event in run)
        return
    first = run[0].data["chunk"]
    tag = _BY_CHUNK[first["type"]]
    data: JsonObject = {
        "turn": run[0].data["turn"],
        "step": run[0].data["step"],
        "index": first["index"],
        "dt": [b.time - a.time for a, b in pairwise(run)],
    }
    data.update({key: first[key] for key in ("id", "name") if key in first})
    data[tag.members] = [event.data["chunk"][tag.text_key] for event in run]
    yield {"type": tag.row_type, "seq0": run[0].seq, "time0": run[0].time, "data": data}


def _follows(last: Event, event: Event) -> bool:
    is_next = event.seq == last.seq + 1
    return is_next and abs(event.time - last.time) <= MAX_SAFE_INTEGER


def _run_key(event: Event) -> _RunKey | None:
    """Return what all events of a row have in common; None if this fits in no row.

    Every event that is stored comes by here, so nothing is built that is not needed.
    """
    data = event.data
    if (
        event.type != "assistant/chunk"
        or event.surface_op is not None
        or event.source_event_seqs is not None
        or event.ignorable
        or type(data) is not dict
        or data.keys() != _DATA_KEYS
    ):
        return None
    turn, step, chunk = data["turn"], data["step"], data["chunk"]
    if type(chunk) is not dict or type(chunk.get("type")) is not str:
        return None
    tag = _BY_CHUNK.get(chunk["type"])
    if tag is None or chunk.keys() not in _CHUNK_KEYS[tag.members]:
        return None
    index, call_id, name = chunk["index"], chunk.get("id", ""), chunk.get("name", "")
    # The types matter: 1 == 1.0 == True in Python, but they are not the same JSON.
    kinds = type(turn), type(step), type(index)
    if not _NUMBERS.issuperset(kinds):
        return None
    if not type(chunk[tag.text_key]) is type(call_id) is type(name) is str:
        return None
    return (tag, turn, step, index, kinds, call_id, name if "name" in chunk else None)
