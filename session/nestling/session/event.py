"""Events: the entries of a session's log, and their rows in a file.

A row is ``{type, seq, time, data, surfaceOp?, sourceEventSeqs?, ignorable?}``.
Recordings may be *projected*: without ``seq`` and ``time``, which a reader fills in.
"""

from __future__ import annotations

from typing import Final

import msgspec

from nestling.session.jsontext import Json, JsonObject

SURFACE_TYPES: Final = frozenset({"user/message", "assistant/message", "tool/result"})
"""The event types that put something before the model's eyes."""

ROW_KEYS: Final = frozenset(
    {"type", "seq", "time", "data", "surfaceOp", "sourceEventSeqs", "ignorable"}
)


# Not tracked by the garbage collector: JSON cannot refer back to its event, and logs of
# many events are what it would look through again and again.
class Event(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One logical event of a session.

    Attributes:
        seq: position in the session's log, from 0.
        time: epoch milliseconds; may go backwards.
        surface_op: ``"append"``, or ``{"op": "replace", "start", "end"}``; None for
            the types that do not touch the surface.
        source_event_seqs: the events this one was made from.
        ignorable: a reader that does not know the type may skip the event.
    """

    seq: int
    type: str
    time: int
    data: Json
    surface_op: str | JsonObject | None = None
    source_event_seqs: list[int] | None = None
    ignorable: bool = False

    def row(self) -> JsonObject:
        """Return the event as the JSON object of its row in a file."""
        row: JsonObject = {
            "type": self.type,
            "seq": self.seq,
            "time": self.time,
            "data": self.data,
        }
        row.update(self.surface_fields())
        return row

    def content(self) -> JsonObject:
        """Return what the event says, without its place and time.

        This is what digests are taken over and what comparisons compare.
        """
        return {"type": self.type, "data": self.data, **self.surface_fields()}

    def surface_fields(self) -> JsonObject:
        """Return the optional envelope keys that are present, in the format's order."""
        fields: JsonObject = {}
        if self.source_event_seqs is not None:
            fields["sourceEventSeqs"] = self.source_event_seqs
        if self.surface_op is not None:
            fields["surfaceOp"] = self.surface_op
        if self.ignorable:
            fields["ignorable"] = True
        return fields


def event_from_content(content: JsonObject, seq: int, time: int) -> Event:
    """Build an event from its content (see ``Event.content``), a place and a time."""
    return Event(
        seq,
        content["type"],
        time,
        content["data"],
        content.get("surfaceOp"),
        content.get("sourceEventSeqs"),
        content.get("ignorable", False),
    )
