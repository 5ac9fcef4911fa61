"""The seed digest, against an independent implementation."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.session.digest import PrefixDigest, seed_digest
from nestling.session.errors import SeedError
from nestling.session.event import Event
from nestling.session.log import SessionLog
from nestling.session.reading import read_events
from nestling.session.writing import encode_projected, encode_rows
from support.session_logs import LogWriter, delta, finish

# sha256 of nothing, and of one line that is written out here.
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
_LINE = b'{"data":{"a":"\\u00e9\\ud83d","n":2},"ignorable":true,"type":"x/y"}\n'


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return [_whole(item) for item in value] if isinstance(value, list) else value


def _reference(rows: list[Any]) -> str:
    """The rule of the design, over the rows of a file."""
    digest = hashlib.sha256()
    for row in rows:
        content = {key: row[key] for key in row if key not in ("seq", "time")}
        line = json.dumps(_whole(content), sort_keys=True, separators=(",", ":"))
        digest.update(line.encode("ascii") + b"\n")
    return digest.hexdigest()


def _log() -> list[Event]:
    log = LogWriter()
    log.user("é\ud83d")
    log.answered_turn("q\U0001f600", "a")
    log.add("x/y", {"b": 1.0, "a": [1.5, None, -2.0]}, ignorable=True)
    log.start_turn()
    log.start_step()
    log.chunks(*[delta(text) for text in "abc"], finish())
    log.add("tool/result", {}, surfaceOp={"op": "replace"}, sourceEventSeqs=[0, 3])
    return log.events


def test_known_digests() -> None:
    assert seed_digest([]) == _EMPTY
    event = Event(7, "x/y", 99, {"n": 2.0, "a": "é\ud83d"}, ignorable=True)
    assert seed_digest([event]) == hashlib.sha256(_LINE).hexdigest()


def test_it_agrees_with_the_rule() -> None:
    events = _log()
    assert seed_digest(events) == _reference([event.row() for event in events])


def test_place_time_and_packing_do_not_count() -> None:
    events = _log()
    moved = [Event(e.seq + 5, e.type, 0, e.data, e.surface_op, e.source_event_seqs,
                   e.ignorable) for e in events]  # fmt: skip
    assert seed_digest(moved) == seed_digest(events)
    for encode in (encode_rows, encode_projected):
        read = read_events(b"header\n" + encode(events), "f")
        assert seed_digest(read) == seed_digest(events)


@pytest.mark.parametrize(
    "other",
    [
        Event(0, "y", 0, {"a": 1}),
        Event(0, "x", 0, {"a": 2}),
        Event(0, "x", 0, {"a": True}),
        Event(0, "x", 0, {"a": 1}, "append"),
        Event(0, "x", 0, {"a": 1}, None, []),
        Event(0, "x", 0, {"a": 1}, ignorable=True),
    ],
)
def test_everything_else_counts(other: Event) -> None:
    assert seed_digest([other]) != seed_digest([Event(0, "x", 0, {"a": 1})])


def test_events_do_not_run_into_each_other() -> None:
    a, b = Event(0, "x", 0, 1), Event(1, "x", 0, 2)
    assert len({seed_digest([a, b]), seed_digest([b, a]), seed_digest([a])}) == 3


@given(st.lists(st.integers(0, 17), max_size=12))
@settings(max_examples=100, deadline=None)
def test_prefixes_are_right_in_any_order(lengths: list[int]) -> None:
    events = _log()
    assert len(events) == 17
    digest = PrefixDigest(events)
    for length in lengths:
        assert digest.at(length) == seed_digest(events[:length])


def test_a_growing_log() -> None:
    grown: list[Event] = []
    digest = PrefixDigest(grown)
    for event in _log():
        grown.append(event)
        assert digest.at(len(grown)) == seed_digest(grown)
    assert digest.at(0) == _EMPTY


def test_a_session_log_knows_the_digests_of_its_prefixes() -> None:
    log = SessionLog()
    for number in range(3):
        log.add({"type": "x", "data": number}, 0)
        assert log.prefix_digest(len(log)) == seed_digest(log.events)
    assert log.prefix_digest(1) == seed_digest(log.events[:1])


@pytest.mark.parametrize("length", [-1, 18])
def test_a_prefix_that_is_not_there_is_refused(length: int) -> None:
    """Else a log that grows afterwards would get the digest of other events."""
    digest = PrefixDigest(_log())
    with pytest.raises(SeedError, match="beyond the log of 17 events"):
        digest.at(length)
