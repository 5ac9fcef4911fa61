"""A session in an SQLite store: what its columns hold, and back again.

Texts are bytes in both directions. Every Python text has a form as bytes, also one that
holds half a character (a model may cut an emoji in two); and what another program wrote
that is no UTF-8 at all is then a bad row, not an error of the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from nestling.session.errors import JsonDomainError, StoreError, UnreadableError
from nestling.session.event import Event
from nestling.session.header import Header, header_from_row
from nestling.session.jsontext import Json, JsonObject, dumps, is_int0, loads, shown
from nestling.session.packing import is_packed_type
from nestling.session.reading import events_from_row
from nestling.session.torn_tail import Row, placed

Columns: TypeAlias = Sequence[Any]
"""The values of one row: integers, bytes for texts, None."""

_PLAIN: Final = {
    "id": "id",
    "version": "version",
    "createdAt": "created_at",
    "cwd": "cwd",
    "parentSession": "parent_session",
    "seedLength": "seed_length",
    "seedDigest": "seed_digest",
    "origin": "origin",
    "delegationDepth": "delegation_depth",
    "agentPreset": "agent_preset",
}
"""The header's keys whose values are columns as they are."""

_HEADER_KEYS: Final = (
    "id", "version", "createdAt", "cwd", "parentSession", "seedLength", "seedDigest",
    "spawnedBy", "origin", "delegationDepth", "agentPreset",
)  # fmt: skip
"""The header's keys in the order of the columns; ``other_fields`` follows."""

_APPEND: Final = "append"


def text_bytes(text: str) -> bytes:
    """Return a text as it is stored."""
    return text.encode("utf-8", "surrogatepass")


def bytes_text(value: object, column: str) -> str:
    """Return a stored text.

    Raises:
        UnreadableError: naming the column, if it holds no text.
    """
    if type(value) is not bytes:
        raise UnreadableError(f"{column} must be a text, found {value!r:.80}")
    try:
        return value.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"{column}: byte {error.start} is no UTF-8, expected a text in UTF-8"
        ) from None


# --- headers -------------------------------------------------------------------


def header_values(header: Header) -> dict[str, int | bytes | None]:
    """Return the values of a header's columns by their names."""
    rest = header.row()
    del rest["type"]
    values: dict[str, int | bytes | None] = {}
    for key, column in _PLAIN.items():
        value = rest.pop(key, None)
        values[column] = text_bytes(value) if isinstance(value, str) else value
    spawned_by = rest.pop("spawnedBy", None)
    values["spawned_by"] = None if spawned_by is None else dumps(spawned_by)
    values["other_fields"] = dumps(rest) if rest else None
    return values


def header_from_columns(columns: Columns) -> Header:
    """Return the header that stands in a row's columns, in the order of the table.

    Raises:
        VersionError: if it is of another version.
        UnreadableError: if a column holds what no header can; the message names it.
    """
    *stated, other_fields = columns
    row: JsonObject = {"type": "session"}
    for key, value in zip(_HEADER_KEYS, stated, strict=True):
        if key == "spawnedBy" and value is not None:
            row[key] = _json(value, "spawned_by")
        elif type(value) is bytes:
            row[key] = bytes_text(value, _PLAIN[key])
        elif value is not None:
            row[key] = value
    if other_fields is not None:
        row.update(_other_fields(other_fields))
    return header_from_row(row)


def _other_fields(value: object) -> JsonObject:
    fields = _json(value, "other_fields")
    if type(fields) is not dict:
        raise UnreadableError(
            f"other_fields must be a JSON object, found {shown(fields)}"
        )
    for key in ("type", *_HEADER_KEYS):
        if key in fields:
            raise UnreadableError(f"other_fields holds {key}, which has its own column")
    return fields


def revision_token(incarnation: object, revision: object) -> str:
    """Return a session's revision as ``Backend`` knows it.

    Raises:
        UnreadableError: if the row cannot be told from others.
    """
    token = bytes_text(incarnation, "incarnation")
    if not token:
        raise UnreadableError("incarnation is empty, expected a random text")
    if not is_int0(revision):
        raise UnreadableError(f"revision must be an integer >= 0, found {revision!r}")
    return f"sqlite:{token}:{revision}"


# --- events --------------------------------------------------------------------


def event_rows(
    session_id: str, events: Iterable[Event], next_seq: int
) -> Iterator[tuple[bytes | int | None, ...]]:
    """Yield the columns of each event's row.

    Args:
        session_id: whose they are.
        events: in order.
        next_seq: the seq that the first one must have.

    Raises:
        StoreError: if a seq does not follow, or no reader would take a type back.
    """
    key = text_bytes(session_id)
    for seq, event in enumerate(events, start=next_seq):
        if event.seq != seq:
            raise StoreError(f"found an event of seq {event.seq}, expected {seq}")
        if is_packed_type(event.type):
            raise StoreError(
                f"event {seq} has the type {event.type}, the name of a packed row"
            )
        sources = event.source_event_seqs
        yield (
            key,
            seq,
            text_bytes(event.type),
            event.time,
            dumps(event.data),
            None if sources is None else dumps(sources),
            _operation_bytes(event.surface_op),
            1 if event.ignorable else None,
        )


def _operation_bytes(operation: str | JsonObject | None) -> bytes | None:
    # A plain word is easier to ask for than a JSON string. No other JSON looks like it.
    if operation is None:
        return None
    return _APPEND.encode() if operation == _APPEND else dumps(operation)


def stored_row(columns: Columns) -> Row:
    """Return one row for ``sound_events``; its mark is its seq."""
    seq = columns[0]
    return Row(seq, f"event row {seq}", partial(_row_object, columns))


def _row_object(columns: Columns) -> JsonObject:
    seq, kind, time, data, sources, operation, ignorable = columns
    row: JsonObject = {
        "type": bytes_text(kind, "type"),
        "seq": seq,
        "time": time,
        "data": _json(data, "data"),
    }
    if sources is not None:
        row["sourceEventSeqs"] = _json(sources, "source_event_seqs")
    if operation is not None:
        is_plain = operation == _APPEND.encode()
        row["surfaceOp"] = _APPEND if is_plain else _json(operation, "surface_op")
    if ignorable is not None:
        row["ignorable"] = True if ignorable == 1 else ignorable
    return row


def _json(value: object, column: str) -> Json:
    if type(value) is not bytes:
        raise UnreadableError(f"{column} must be a text, found {value!r:.80}")
    try:
        return loads(value)
    except JsonDomainError as error:
        raise UnreadableError(f"{column}: {error}") from None


def check_row(columns: Columns) -> None:
    """Check that a row can be read as the event of its seq.

    Raises:
        UnreadableError: if it cannot.
    """
    row = stored_row(columns)
    events_from_row(placed(row.load()), row.mark)
