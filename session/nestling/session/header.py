"""The header of a session: storage facts that stand beside the log.

Line 1 of a file: ``{"type":"session","version":0,"id",…}``. ``seedLength`` says how
many leading events were inherited from the parent, counted in logical events; it is
stated, never inferred (see ``nestling.session.boundary``).
"""

from __future__ import annotations

from typing import Final

import msgspec

from nestling.session.errors import UnreadableError, VersionError
from nestling.session.jsontext import Json, JsonObject, is_int0, shown

FORMAT_VERSION: Final = 0

_OPTIONAL_STRINGS: Final = ("cwd", "parentSession", "origin", "agentPreset")
_RETIRED: Final = ("sandboxMode", "approvalPolicy")


class SpawnedBy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where in its parent a child was delegated.

    Attributes:
        context: ``fork`` with the parent's conversation, ``spawn`` without.
        block: position of the delegating tool call in the folded message.
        n: which delegation of that tool call, from 0; or, without a block, of the
            step's delegations by code.
        key: the name that code gave the delegation.
        call_id: the model's id of the delegating tool call.
    """

    turn: int
    step: int
    context: str
    block: int | None = None
    n: int = 0
    key: str | None = None
    call_id: str | None = msgspec.field(default=None, name="callId")


class Header(msgspec.Struct, frozen=True):
    """The header of one session.

    Attributes:
        id: the session's id.
        created_at: epoch milliseconds; never rewritten.
        fields: every other key of the line, as it stands there.
    """

    id: str
    created_at: int
    fields: JsonObject

    @property
    def parent_session(self) -> str | None:
        """The id of the session this one was delegated by, if any."""
        return self.fields.get("parentSession")

    @property
    def seed_length(self) -> int:
        """How many leading events were inherited; 0 where the header says nothing."""
        return int(self.fields.get("seedLength", 0))

    @property
    def seed_digest(self) -> str | None:
        """The digest of the inherited events (see ``nestling.session.digest``)."""
        return self.fields.get("seedDigest")

    @property
    def delegation_depth(self) -> int | None:
        """How many delegations lie between the root and this session, if stated."""
        return self.fields.get("delegationDepth")

    @property
    def spawned_by(self) -> SpawnedBy | None:
        """Where in its parent this session was delegated, if stated."""
        stated = self.fields.get("spawnedBy")
        return None if stated is None else _spawned_by(stated)

    def with_fields(self, **changes: Json) -> Header:
        """Return a copy with some fields set, or removed where the value is None."""
        fields = {**self.fields, **changes}
        kept = {key: value for key, value in fields.items() if value is not None}
        return Header(self.id, self.created_at, kept)

    def row(self) -> JsonObject:
        """Return the header as the JSON object of line 1."""
        return {
            "type": "session",
            "version": FORMAT_VERSION,
            "id": self.id,
            "createdAt": self.created_at,
            **self.fields,
        }


def header_from_row(row: JsonObject) -> Header:
    """Read a header leniently: what is absent has its default.

    A version that is absent means 0, as in the oldest recordings.

    Raises:
        VersionError: if it is of another version.
        UnreadableError: if the row is no session header, or a field that is present
            has the wrong type. The message names the field, not the file.
    """
    if row.get("type") != "session":
        raise UnreadableError(
            f"the first line must be a session header, found type {shown(row.get('type'))}"
        )
    version = row.get("version", FORMAT_VERSION)
    if type(version) is not int or version != FORMAT_VERSION:
        raise VersionError(_version_text(version))
    problem = _field_problem(row)
    if problem is not None:
        raise UnreadableError(f"header: {problem}")
    fields = {
        key: value
        for key, value in row.items()
        if key not in ("type", "version", "id", "createdAt")
    }
    return Header(row.get("id", ""), row.get("createdAt", 0), fields)


def _spawned_by(stated: JsonObject) -> SpawnedBy:
    return SpawnedBy(
        stated["turn"],
        stated["step"],
        stated["context"],
        stated.get("block"),
        stated.get("n", 0),
        stated.get("key"),
        stated.get("callId"),
    )


def _version_text(version: Json) -> str:
    newer = type(version) is int and version > FORMAT_VERSION
    advice = " (a newer Nestling may read it)" if newer else ""
    return (
        f"session format version {shown(version)} is unknown, "
        f"expected {FORMAT_VERSION}{advice}"
    )


def _field_problem(row: JsonObject) -> str | None:
    for key in _RETIRED:
        if key in row:
            return f"{key} is a retired field"
    if "id" in row and type(row["id"]) is not str:
        return f"id must be a string, found {shown(row['id'])}"
    for key in ("createdAt", "seedLength", "delegationDepth"):
        if key in row and not is_int0(row[key]):
            return f"{key} must be an integer >= 0, found {shown(row[key])}"
    for key in _OPTIONAL_STRINGS:
        if key in row and type(row[key]) is not str:
            return f"{key} must be a string, found {shown(row[key])}"
    if "seedDigest" in row and not _is_digest(row["seedDigest"]):
        return f"seedDigest must be 64 hex digits, found {shown(row['seedDigest'])}"
    return _spawned_by_problem(row["spawnedBy"]) if "spawnedBy" in row else None


def _is_digest(value: Json) -> bool:
    return (
        type(value) is str
        and len(value) == 64
        and set(value) <= set("0123456789abcdef")
    )


def _spawned_by_problem(value: Json) -> str | None:
    if type(value) is not dict:
        return f"spawnedBy must be an object, found {shown(value)}"
    for key in ("turn", "step", "block", "n"):
        is_absent = key not in value and key in ("block", "n")
        if not is_absent and not is_int0(value.get(key)):
            found = shown(value.get(key))
            return f"spawnedBy.{key} must be an integer >= 0, found {found}"
    for key in ("key", "callId"):
        if key in value and type(value[key]) is not str:
            return f"spawnedBy.{key} must be a string, found {shown(value[key])}"
    if value.get("context") not in ("fork", "spawn"):
        found = shown(value.get("context"))
        return f"spawnedBy.context must be fork or spawn, found {found}"
    if "block" in value and "key" in value:
        return "spawnedBy names both a block and a key, expected one"
    return None
