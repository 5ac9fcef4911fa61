"""The header: its fields, its defaults, and where a child was delegated."""

from __future__ import annotations

from typing import Any

import pytest

from nestling.session.errors import UnreadableError
from nestling.session.header import Header, SpawnedBy, header_from_row
from nestling.session.jsontext import JsonObject, loads
from nestling.session.writing import encode_header

_FULL: JsonObject = {
    "type": "session", "version": 0, "id": "s", "createdAt": 5, "cwd": "/w",
    "parentSession": "p", "seedLength": 7, "seedDigest": "0" * 64,
    "origin": "subagent", "delegationDepth": 1, "agentPreset": "a", "later": [1],
    "spawnedBy": {"turn": 2, "step": 1, "block": 3, "callId": "c", "context": "fork"},
}  # fmt: skip


def test_every_key_survives_in_order() -> None:
    header = header_from_row(_FULL)
    assert header.row() == _FULL
    assert list(header.row()) == list(_FULL)
    line = encode_header(header)
    assert line.endswith(b"}\n")
    assert loads(line) == _FULL


def test_the_named_fields() -> None:
    header = header_from_row(_FULL)
    assert (header.id, header.created_at) == ("s", 5)
    assert header.parent_session == "p"
    assert header.seed_length == 7
    assert header.seed_digest == "0" * 64
    assert header.delegation_depth == 1
    assert header.spawned_by == SpawnedBy(2, 1, "fork", block=3, call_id="c")


def test_what_is_absent_has_its_default() -> None:
    header = header_from_row({"type": "session"})
    assert (header.id, header.created_at, header.seed_length) == ("", 0, 0)
    assert header.parent_session is None
    assert header.seed_digest is None
    assert header.delegation_depth is None
    assert header.spawned_by is None


def test_fields_are_changed_and_removed_in_a_copy() -> None:
    header = header_from_row(_FULL)
    changed = header.with_fields(seedLength=None, cwd="/v", later=0)
    assert changed.seed_length == 0
    assert "seedLength" not in changed.row()
    assert changed.fields["cwd"] == "/v"
    assert changed.fields["later"] == 0
    assert header.row() == _FULL
    assert Header("s", 1, {}).with_fields(seedLength=0).row()["seedLength"] == 0


@pytest.mark.parametrize(
    "spawned_by",
    [
        None,
        [],
        "x",
        {},
        {"turn": 1, "step": 1},
        {"turn": 1, "step": 1, "context": "both"},
        {"turn": "1", "step": 1, "context": "fork"},
        {"turn": True, "step": 1, "context": "fork"},
        {"turn": -1, "step": 1, "context": "fork"},
        {"turn": 1, "step": 1, "context": "fork", "block": -1},
        {"turn": 1, "step": 1, "context": "fork", "n": -1},
        {"turn": 1, "step": 1, "context": "fork", "n": None},
        {"turn": 1, "step": 1, "context": "fork", "key": 1},
        {"turn": 1, "step": 1, "context": "fork", "callId": 1},
        {"turn": 1, "step": 1, "context": "fork", "block": 0, "key": "k"},
        {"turn": 1, "step": 1, "context": "\ud800"},
    ],
)
def test_a_bad_spawned_by_is_refused(spawned_by: Any) -> None:
    with pytest.raises(UnreadableError, match=r"^header: spawnedBy"):
        header_from_row({"type": "session", "spawnedBy": spawned_by})


@pytest.mark.parametrize("digest", ["0123456789abcdef" * 4, "f" * 64])
def test_a_seed_digest_is_any_64_hex_digits(digest: str) -> None:
    header = header_from_row({"type": "session", "seedDigest": digest})
    assert header.seed_digest == digest


def test_a_first_delegation_has_the_number_0() -> None:
    stated = {"turn": 1, "step": 1, "context": "fork"}
    header = header_from_row({"type": "session", "spawnedBy": stated})
    assert header.spawned_by == SpawnedBy(1, 1, "fork", None, 0, None, None)


def test_a_header_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        header_from_row(_FULL).id = "other"  # type: ignore[misc]


def test_a_key_may_hold_a_lone_surrogate() -> None:
    stated = {"turn": 1, "step": 1, "context": "fork", "key": "\ud800"}
    header = header_from_row({"type": "session", "spawnedBy": stated})
    assert header.spawned_by == SpawnedBy(1, 1, "fork", key="\ud800")


@pytest.mark.parametrize(
    "digest", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, 0, None]
)
def test_a_bad_seed_digest_is_refused(digest: Any) -> None:
    with pytest.raises(UnreadableError, match="seedDigest must be 64 hex digits"):
        header_from_row({"type": "session", "seedDigest": digest})
