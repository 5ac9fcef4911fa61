"""One answered call: batches, windows, and what the worker says it logged."""

from __future__ import annotations

from itertools import accumulate
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.driver.director import Answer, CallRequest, EncodedChunks
from nestling.driver.streams import MESSAGE_BYTES, OpenCall
from nestling.session.errors import WireError
from nestling.session.jsontext import JsonObject, loads
from nestling.wire.credit import Refill, Window
from support.session_logs import delta


def opened(*chunks: JsonObject, size: int = 1 << 18, frames: int = 64) -> OpenCall:
    request = CallRequest("root", 5, "turn", "p", "m", 2, 3)
    return OpenCall(request, Answer(EncodedChunks(chunks)), Window(size, frames))


def test_all_at_once() -> None:
    call = opened(delta("a"), delta("b"))
    batch = call.next_batch(7)
    assert batch is not None
    assert (batch.first, batch.length) == (0, 2)
    assert loads(batch.body) == [delta("a"), delta("b")]
    assert call.is_served
    assert call.next_batch(7) is None


def test_nothing_to_serve() -> None:
    call = opened()
    assert call.is_served
    assert call.next_batch(7) is None


def test_a_message_is_closed_once_it_is_large() -> None:
    big = delta("x" * (MESSAGE_BYTES // 2))
    call = opened(*[big] * 5, size=1 << 30)
    sizes = []
    while (batch := call.next_batch(7)) is not None:
        sizes.append(batch.length)
    assert sizes == [2, 2, 1]


def test_a_chunk_larger_than_any_window_goes_through() -> None:
    call = opened(delta("x" * 100), delta("y"), size=1, frames=9)
    batch = call.next_batch(7)
    assert batch is not None
    assert batch.length == 1
    assert call.window.bytes < 0
    assert call.next_batch(7) is None
    call.window.grant(len(batch.body), 1)
    assert call.next_batch(7) is not None


def test_chunks_have_the_time_they_were_served_at() -> None:
    call = opened(delta("a"), delta("b"), delta("c"), size=1, frames=9)
    bodies = []
    for now in (7, 8, 9):
        batch = call.next_batch(now)
        assert batch is not None
        bodies.append(batch.body)
        call.window.grant(len(batch.body), 1)
    sums = list(accumulate(bodies, lambda crc, body: crc32(body, crc), initial=0))
    events = call.logged_events(0, 2, sums[2], 40)
    events += call.logged_events(2, 3, sums[3], 50)
    assert [event.row() for event in events] == [
        {
            "type": "assistant/chunk",
            "seq": seq,
            "time": time,
            "data": {"turn": 2, "step": 3, "chunk": delta(text)},
        }
        for seq, time, text in ((40, 7, "a"), (41, 8, "b"), (50, 9, "c"))
    ]


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 3), (1, 2), (2, 1), (-1, 1)])
def test_chunks_that_cannot_have_been_logged(start: int, end: int) -> None:
    call = opened(delta("a"), delta("b"))
    batch = call.next_batch(7)
    assert batch is not None
    crc = crc32(batch.body)
    with pytest.raises(WireError, match=f"call 5: chunks {start} to {end} were logged"):
        call.logged_events(start, end, crc, 40)
    assert len(call.logged_events(0, 2, crc, 40)) == 2


def test_other_bytes_than_were_sent() -> None:
    call = opened(delta("a"), delta("b"))
    batch = call.next_batch(7)
    assert batch is not None
    for crc in (0, crc32(batch.body) ^ 1, crc32(batch.body[:-1])):
        with pytest.raises(WireError, match="call 5: what arrived as chunks 0 to 1 is"):
            call.logged_events(0, 1, crc, 40)
    assert len(call.logged_events(0, 1, crc32(batch.body), 40)) == 1


@given(
    st.lists(st.integers(0, 60), max_size=30),
    st.integers(1, 200),
    st.integers(1, 4),
)
def test_the_two_sides_never_wait_for_each_other(
    sizes: list[int], window: int, frames: int
) -> None:
    """A sender with this window and a receiver that gives back go through with it."""
    chunks = [delta("x" * size) for size in sizes]
    call, refill = opened(*chunks, size=window, frames=frames), Refill(window, frames)
    received: list[JsonObject] = []
    while not call.is_served:
        batch = call.next_batch(0)
        assert batch is not None, "both wait"
        while batch is not None:
            assert batch.first == len(received)
            received += loads(batch.body)
            grant = refill.consumed(len(batch.body))
            if grant is not None:
                call.window.grant(*grant)
                break
            batch = call.next_batch(0)
    assert received == chunks
