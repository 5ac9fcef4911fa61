"""Checksums of a call's chunks, message by message."""

from __future__ import annotations

from zlib import crc32

import pytest

from nestling.wire.chunk_sums import ChunkSums

BODIES = [b"[1,2]", b"[3]", b"[4,5,6]"]


def sums_of(*bodies: bytes) -> ChunkSums:
    sums, count = ChunkSums(), 0
    for body in bodies:
        count += body.count(b",") + 1
        sums.add(count, body)
    return sums


@pytest.mark.parametrize(
    ("count", "messages"), [(1, 1), (2, 1), (3, 2), (4, 3), (5, 3), (6, 3)]
)
def test_a_sum_is_of_all_messages_up_to_the_one_with_the_last_chunk(
    count: int, messages: int
) -> None:
    assert sums_of(*BODIES).at(count) == crc32(b"".join(BODIES[:messages]))


def test_a_sum_does_not_change_when_more_arrives() -> None:
    sums = sums_of(*BODIES[:2])
    before = [sums.at(count) for count in (1, 2, 3)]
    sums.add(6, BODIES[2])
    assert [sums.at(count) for count in (1, 2, 3)] == before


def test_the_order_of_messages_counts() -> None:
    assert sums_of(b"[1]", b"[2]").at(2) != sums_of(b"[2]", b"[1]").at(2)


def test_chunks_that_have_not_come_have_no_sum() -> None:
    with pytest.raises(IndexError):
        sums_of(*BODIES).at(7)
    with pytest.raises(IndexError):
        ChunkSums().at(1)
