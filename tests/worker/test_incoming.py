"""The answer to a call as it arrives, and where it is cut."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.session.errors import WireError
from nestling.session.jsontext import JsonObject, dumps
from nestling.worker.incoming import IncomingCall
from support.session_logs import delta

CAUSE: JsonObject = {"kind": "user"}


def call_with(count: int) -> IncomingCall:
    call = IncomingCall(4, "turn")
    arrive(call, 0, count)
    return call


def arrive(call: IncomingCall, first: int, count: int) -> bytes:
    """Let chunks arrive, each of which says its number; return their message."""
    chunks = [delta(str(first + n)) for n in range(count)]
    text = dumps(chunks)
    call.receive(first, chunks, text)
    return text


def taken(call: IncomingCall) -> list[str]:
    """Take all that may be taken now."""
    texts = []
    while (chunk := call.take()) is not None:
        texts.append(chunk["text"])
    return texts


def test_chunks_are_taken_in_order() -> None:
    call = call_with(2)
    arrive(call, 2, 1)
    assert taken(call) == ["0", "1", "2"]
    assert (call.taken, call.is_over, call.is_cut) == (3, False, False)
    call.end(3)
    assert call.is_over


def test_a_call_is_over_once_all_is_taken() -> None:
    call = call_with(2)
    call.end(2, {"message": "m", "code": "c"})
    assert [call.is_over, len(taken(call)), call.is_over] == [False, 2, True]
    assert call.failure == {"message": "m", "code": "c"}


@pytest.mark.parametrize("first", [0, 1, 3])
def test_chunks_that_do_not_continue(first: int) -> None:
    call = call_with(2)
    with pytest.raises(WireError, match=f"call 4: chunks from {first}, expected 2"):
        arrive(call, first, 1)


def test_chunks_or_an_end_after_the_end() -> None:
    call = call_with(1)
    call.end(1)
    with pytest.raises(WireError, match="call 4: chunks from 1"):
        arrive(call, 1, 1)
    with pytest.raises(WireError, match="call 4 ends after 1 chunks"):
        call.end(1)


@pytest.mark.parametrize("total", [0, 1, 3])
def test_an_end_after_another_number_of_chunks(total: int) -> None:
    with pytest.raises(WireError, match=f"call 4 ends after {total} chunks, 2 came"):
        call_with(2).end(total)


def test_the_sum_of_what_was_taken_is_of_whole_messages() -> None:
    call = IncomingCall(0, "turn")
    first, second = arrive(call, 0, 2), arrive(call, 2, 1)
    sums = []
    while call.take() is not None:
        sums.append(call.sum_taken)
    assert sums == [crc32(first), crc32(first), crc32(first + second)]


# --- cuts ----------------------------------------------------------------------


@pytest.mark.parametrize("after", range(4))
def test_exactly_so_many_chunks_are_taken(after: int) -> None:
    call = call_with(3)
    call.cut(after, CAUSE)
    assert call.is_cut == (after == 0)
    assert taken(call) == ["0", "1", "2"][:after]
    assert call.is_cut
    assert call.cut_cause == CAUSE
    assert not call.is_over


def test_a_cut_may_come_before_its_chunks() -> None:
    call = IncomingCall(0, "turn")
    call.cut(2, CAUSE)
    assert not call.is_cut
    arrive(call, 0, 1)
    assert taken(call) == ["0"]
    assert not call.is_cut
    arrive(call, 1, 2)
    assert taken(call) == ["1"]
    assert call.is_cut


def test_a_cut_beyond_the_end_comes_too_late() -> None:
    call = call_with(2)
    call.cut(5, CAUSE)
    call.end(2)
    assert taken(call) == ["0", "1"]
    assert (call.is_cut, call.is_over) == (False, True)


def test_a_cut_that_names_no_place_is_now() -> None:
    call = call_with(3)
    call.take()
    call.cut(None, CAUSE)
    assert call.is_cut
    assert taken(call) == []
    assert call.taken == 1


def test_what_was_taken_cannot_be_cut_off() -> None:
    call = call_with(3)
    taken(call)
    call.cut(1, CAUSE)
    assert (call.is_cut, call.taken) == (True, 3)


@given(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 12))
def test_a_cut_is_at_the_same_place_however_chunks_arrive(
    sizes: list[int], after: int
) -> None:
    call, first, texts = IncomingCall(0, "turn"), 0, list[str]()
    call.cut(after, CAUSE)
    for size in sizes:
        arrive(call, first, size)
        first += size
        texts += taken(call)
    assert texts == [str(n) for n in range(min(first, after))]
    assert call.is_cut == (first >= after)
