"""The torn tail: where the sound rows of a stored session end.

A crash leaves at most a cut-off end behind. So the first row that cannot be read, or
that does not continue the seqs, bounds what is kept; unless a ``turn/end`` can be read
at it or behind it: then a turn was committed after the bad row, and what is damaged is
not the tail. That is never repaired (source: the format's rules for its logs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from nestling.session.errors import CorruptError, UnreadableError
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject, shown
from nestling.session.packing import is_packed
from nestling.session.reading import events_from_row
from nestling.session.store_backend import Tail


class Row(NamedTuple):
    """One stored row.

    Attributes:
        mark: where it begins, in the backend's own measure.
        place: names it in errors.
        load: returns its JSON object, or raises ``UnreadableError``.
    """

    mark: int
    place: str
    load: Callable[[], JsonObject]


def sound_events(
    rows: Iterable[Row], first_seq: int = 0
) -> tuple[list[Event], Tail | None]:
    """Return the sound events, and what stands behind them.

    Args:
        rows: in the order of storage.
        first_seq: the seq that the first row must have.

    Raises:
        CorruptError: if a later ``turn/end`` shows that committed rows are damaged.
    """
    events: list[Event] = []
    tail: Tail | None = None
    for row in rows:
        value = problem = None
        try:
            value = row.load()
            if tail is None:
                events += events_from_row(placed(value), first_seq + len(events))
                continue
        except UnreadableError as error:
            problem = str(error)
        if tail is None:
            tail = Tail(row.mark, f"{row.place}: {problem}")
        if value is not None and value.get("type") == "turn/end":
            raise CorruptError(
                f"{tail.problem}; a turn ends at {row.place}, so this is no torn tail "
                "but damage, and nothing was changed"
            )
    return events, tail


def placed(row: JsonObject) -> JsonObject:
    """Return a row that says its place and time, as every stored one does.

    Raises:
        UnreadableError: if it does not: only a recording may leave them out.
    """
    keys = ("seq0", "time0") if is_packed(row) else ("seq", "time")
    for key in keys:
        if key not in row:
            raise UnreadableError(f"{shown(row.get('type'))} has no {key}")
    return row
