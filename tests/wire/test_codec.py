"""Arbitrary frames either decode or raise WireError; every limit holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nestling.session.errors import WireError
from nestling.wire import codec
from nestling.wire.codec import (
    FRAME_BYTES,
    FRAME_CAP,
    MAX_BODY,
    MAX_FRAMES,
    create_parts,
    decode_for_hub,
    decode_for_worker,
    encode,
)
from nestling.wire.messages import Ack, Bye, Create, Events

Decode = Callable[[list[bytes]], tuple[object, bytes]]
BOTH: list[Decode] = [decode_for_hub, decode_for_worker]
ACK = encode(Ack(1, 2))[0]

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=40)
    | st.sampled_from(["ack", "hello", "stream", "bye", "cancel", "done"]),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=3)
    ),
)
headers = st.binary(max_size=200) | anything.map(msgpack.packb)


def decodes_or_refuses(frames: list[bytes]) -> None:
    for decode in BOTH:
        try:
            message, body = decode(frames)
        except WireError:
            continue
        assert encode(message, body)  # type: ignore[arg-type]  # it came in


@given(st.lists(st.binary(max_size=100), max_size=4))
@example([])
@example([b""])
@example([b"", b"body"])
@example([b"\xc1"])
@example([b"\x91" * 2000 + b"\xc0"])
@example([b"\x91" * 60000])
@example([b"\x81\x91\xc0\xc0"])
@example([b"\xdd\xff\xff\xff\xff"])
@example([b"\xdf\xff\xff\xff\xff"])
@example([b"\xd6\xff\0\0\0\0"])
@example([b"\xc7\x00\x05"])
@example([b"\x93\xa3ack\xc7\x00\x05\x01"])
@example([b"\x91\xa1\xff"])
@example([b"\x91\x91\xa3ack"])
@example([b"\x80"])
@example([ACK + b"\xc0"])
@example([ACK[:-1]])
def test_arbitrary_bytes_decode_or_are_refused(frames: list[bytes]) -> None:
    decodes_or_refuses(frames)


@given(headers, st.lists(st.binary(max_size=20), max_size=2))
def test_arbitrary_values_decode_or_are_refused(header: bytes, body: Any) -> None:
    decodes_or_refuses([header, *body])


@given(
    st.sampled_from(["ack", "hello", "stream", "create", "bye", "delegate"]),
    st.lists(anything, max_size=12),
)
def test_known_kinds_with_any_fields_decode_or_are_refused(
    kind: str, fields: list[object]
) -> None:
    decodes_or_refuses([msgpack.packb([kind, *fields])])


@pytest.mark.parametrize("size", [0, 1, FRAME_BYTES, FRAME_BYTES + 1, 3 * FRAME_BYTES])
def test_a_body_is_cut_into_frames(size: int) -> None:
    body = b"x" * size
    frames = encode(Events(1, 0, 1), body)
    assert [len(f) for f in frames[1:-1]] == [FRAME_BYTES] * (len(frames) - 2)
    assert all(0 < len(f) <= FRAME_BYTES for f in frames)
    assert decode_for_hub(frames) == (Events(1, 0, 1), body)


def test_one_body_frame_is_not_copied() -> None:
    body = bytes(1000)
    frames = encode(Events(1, 0, 1), body)
    assert frames[1] is body
    assert decode_for_hub(frames)[1] is body


def test_the_largest_body_goes_through_and_one_byte_more_does_not() -> None:
    largest = bytes(MAX_BODY)
    frames = encode(Bye(1, "done"), largest)
    assert len(frames) == MAX_FRAMES
    assert decode_for_hub(frames)[1] == largest
    with pytest.raises(WireError, match="a body of 67108865 bytes"):
        encode(Bye(1, "done"), largest + b"x")


@pytest.mark.parametrize("decode", BOTH)
def test_limits_of_what_comes_in(decode: Decode) -> None:
    cap = bytes(FRAME_CAP)
    with pytest.raises(WireError, match="0 frames"):
        decode([])
    with pytest.raises(WireError, match="a header of 65537 bytes"):
        decode([bytes(65537)])
    with pytest.raises(WireError, match="a frame of 1048577 bytes"):
        decode([b"", cap + b"x"])
    with pytest.raises(WireError, match="a frame of 1048577 bytes"):
        decode([b"", b"", cap + b"x"])
    with pytest.raises(WireError, match="a body of 67108865 bytes"):
        decode([b"", *[cap] * 64, b"x"])
    with pytest.raises(WireError, match="258 frames"):
        decode([b""] * (MAX_FRAMES + 1))


def test_a_frame_at_the_cap_comes_in() -> None:
    frames = [ACK, bytes(FRAME_CAP)]
    assert decode_for_worker(frames)[1] is frames[1]


OVER_A_LIMIT = pytest.mark.parametrize(
    "header",
    [
        msgpack.packb(["ack", 1, msgpack.Timestamp(1)]),
        msgpack.packb(["ack", 1, {"a": 1}]),
        msgpack.packb(["x"] * 17),
        msgpack.packb(["x" * 4097]),
        msgpack.packb([b"x" * 65]),
    ],
    ids=["extension", "map", "array", "text", "bytes"],
)


@OVER_A_LIMIT
def test_limits_of_the_header_hold_before_it_is_typed(header: bytes) -> None:
    with pytest.raises(WireError, match="not MessagePack within limits"):
        decode_for_worker([header])


@pytest.mark.parametrize("kind", ["nope", "", None, 1, ["ack"], b"ack", "x" * 200])
def test_an_unknown_kind_is_named(kind: object) -> None:
    with pytest.raises(WireError, match="a message of kind") as caught:
        decode_for_worker([msgpack.packb([kind, 1, 2])])
    assert len(str(caught.value)) < 250


def test_text_that_is_not_unicode_does_not_go_out() -> None:
    with pytest.raises(WireError, match="'create' message cannot be sent"):
        encode(Create(1, "\ud800", 0, bytes(32), 0, 0, 0))


def test_the_body_of_a_create_is_cut_by_its_sizes() -> None:
    message = Create(1, "a", 2, bytes(32), 2, 4, 3)
    assert create_parts(message, b"{}a\nb\n[1]") == (b"{}", b"a\nb\n", b"[1]")
    for body in (b"{}a\nb\n[1", b"{}a\nb\n[1]]", b""):
        with pytest.raises(WireError, match="expected 9"):
            create_parts(message, body)


def test_the_frame_cap_leaves_room_for_our_own_frames() -> None:
    assert codec.FRAME_BYTES <= codec.FRAME_CAP
    assert codec.HEADER_CAP <= codec.FRAME_CAP
