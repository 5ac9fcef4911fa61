"""The upload of a session's events: references, batches, acks, gaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.session.errors import WireError
from nestling.session.event import Event
from nestling.session.jsontext import Json, loads
from nestling.wire.messages import Events
from nestling.worker.upload import BATCH_BYTES, Upload
from support.session_logs import chunk_event, delta


def note(seq: int, text: str = "x") -> Event:
    return Event(seq, "note", 1000 + seq, {"text": text})


def chunk(seq: int) -> Event:
    return chunk_event(seq, delta("x"))


def sent(upload: Upload) -> list[tuple[int, int, Json]]:
    """What is taken now: first, count and the items of each batch."""
    return [(m.first, m.count, loads(body)) for m, body in upload.take()]


def ref(call: int, start: int, end: int) -> Json:
    return {"call": call, "from": start, "to": end, "crc": crc(call, end - 1)}


def crc(call: int, index: int) -> int:
    """A sum for each chunk of each call, as if each were a message of its own."""
    return 100 * call + index


def add_chunk(upload: Upload, seq: int, call: int, index: int) -> None:
    upload.add_chunk(chunk(seq), call, index, crc(call, index))


def row(seq: int, text: str = "x") -> Json:
    return {"type": "note", "data": {"text": text}, "time": 1000 + seq}


def test_events_are_sent_once_and_in_order() -> None:
    upload = Upload(3, 10)
    for seq in (10, 11):
        upload.add(note(seq))
    ((message, body),) = upload.take()
    assert message == Events(3, 10, 2)
    assert loads(body) == [row(10), row(11)]
    assert sent(upload) == []
    upload.add(note(12))
    assert sent(upload) == [(12, 1, [row(12)])]


def test_a_row_says_all_of_an_event_but_its_seq() -> None:
    upload = Upload(0, 0)
    upload.add(Event(0, "user/message", 5, {}, "append", [1], ignorable=True))
    (_, _, items) = sent(upload)[0]
    assert items == [
        {
            "type": "user/message",
            "data": {},
            "sourceEventSeqs": [1],
            "surfaceOp": "append",
            "ignorable": True,
            "time": 5,
        }
    ]


def test_runs_of_chunks_become_one_reference() -> None:
    upload = Upload(0, 0)
    for seq in range(3):
        add_chunk(upload, seq, 7, seq)
    upload.add(note(3))
    add_chunk(upload, 4, 7, 3)
    add_chunk(upload, 5, 8, 0)
    add_chunk(upload, 6, 8, 2)
    expected = [ref(7, 0, 3), row(3), ref(7, 3, 4), ref(8, 0, 1), ref(8, 2, 3)]
    assert sent(upload) == [(0, 7, expected)]


def test_a_reference_that_was_sent_does_not_grow() -> None:
    upload = Upload(0, 0)
    add_chunk(upload, 0, 0, 0)
    assert sent(upload) == [(0, 1, [ref(0, 0, 1)])]
    add_chunk(upload, 1, 0, 1)
    assert sent(upload) == [(1, 1, [ref(0, 1, 2)])]


def test_a_reference_that_was_sent_does_not_grow_when_it_is_sent_again() -> None:
    """The hub may have it already, and would see it straddle the end of its log."""
    upload = Upload(0, 0)
    add_chunk(upload, 0, 0, 0)
    list(upload.take())
    upload.rewind(0)
    add_chunk(upload, 1, 0, 1)
    assert sent(upload) == [(0, 2, [ref(0, 0, 1), ref(0, 1, 2)])]


def test_large_events_are_sent_in_several_batches() -> None:
    upload = Upload(0, 0)
    for seq in range(5):
        upload.add(note(seq, "y" * (BATCH_BYTES // 2)))
    assert [(first, count) for first, count, _ in sent(upload)] == [
        (0, 2),
        (2, 2),
        (4, 1),
    ]


# --- acks and gaps -------------------------------------------------------------


def filled(count: int = 4) -> Upload:
    upload = Upload(0, 2)
    for seq in range(2, 2 + count):
        upload.add(note(seq))
    list(upload.take())
    return upload


def test_what_is_durable_is_forgotten() -> None:
    upload = filled()
    upload.acknowledge(4)
    assert upload.durable == 4
    upload.rewind(4)
    assert sent(upload) == [(4, 2, [row(4), row(5)])]
    with pytest.raises(WireError, match="events from 3, kept are 4 to 6"):
        upload.rewind(3)


def test_an_ack_may_come_twice_or_late() -> None:
    upload = filled()
    for length in (5, 5, 3, 0):
        upload.acknowledge(length)
        assert upload.durable == 5
    upload.acknowledge(6)
    assert upload.durable == 6


def test_an_ack_of_the_future() -> None:
    upload = filled()
    with pytest.raises(WireError, match="an ack of 7 events, only 6 exist"):
        upload.acknowledge(7)
    assert upload.durable == 2


def test_a_gap_is_filled_from_where_it_begins() -> None:
    upload = filled()
    upload.rewind(3)
    assert sent(upload) == [(3, 3, [row(3), row(4), row(5)])]
    upload.rewind(6)
    assert sent(upload) == []
    with pytest.raises(WireError, match="events from 7, kept are 2 to 6"):
        upload.rewind(7)


def test_an_ack_in_the_middle_of_a_reference_keeps_it() -> None:
    upload = Upload(0, 0)
    for seq in range(4):
        add_chunk(upload, seq, 0, seq)
    list(upload.take())
    upload.acknowledge(2)
    upload.rewind(2)
    assert sent(upload) == [(0, 4, [ref(0, 0, 4)])]


STEPS = st.sampled_from(["note", "chunk", "take", "ack", "rewind"])


@given(st.lists(STEPS, max_size=40))
def test_every_event_is_sent_and_none_is_lost(steps: list[str]) -> None:
    """Whatever is asked again: batches are contiguous, and together they are all."""
    upload, end, index = Upload(0, 0), 0, 0
    received: dict[int, Json] = {}
    boundaries = {0}
    for step in [*steps, "rewind", "take"]:
        if step == "note":
            upload.add(note(end))
            end += 1
        elif step == "chunk":
            add_chunk(upload, end, 0, index)
            end, index = end + 1, index + 1
        elif step == "ack":
            upload.acknowledge(max(b for b in boundaries if b <= len(received)))
        elif step == "rewind":
            upload.rewind(upload.durable)
        else:
            for first, count, items in sent(upload):
                assert first in boundaries
                boundaries.add(first + count)
                seq = first
                for item in items:
                    size = item["to"] - item["from"] if "call" in item else 1
                    if "call" in item:
                        assert item["crc"] == crc(0, item["to"] - 1)
                    known = [n in received for n in range(seq, seq + size)]
                    assert all(known) or not any(known), "an item is taken whole"
                    for offset in range(size):
                        value = item["from"] + offset if "call" in item else item
                        assert received.setdefault(seq, value) == value
                        seq += 1
                assert seq == first + count
    assert sorted(received) == list(range(end))
