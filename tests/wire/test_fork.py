"""Packets between a driver and its template."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.session.errors import WireError
from nestling.wire.fork import (
    PACKET_CAP,
    Attach,
    Fork,
    Forked,
    ForkRefused,
    FromTemplate,
    Importing,
    TemplateReady,
    ToTemplate,
    Warm,
    WorkerExited,
    cut,
    decode_for_template,
    decode_from_template,
    encode_packet,
    startup_part,
)

FORK = Fork("w0", "nestling.worker", "my.agents", b"/\xff", {b"A": b"\xff", b"B": b""})

TO_TEMPLATE: list[ToTemplate] = [Warm(["a", "/b.py"], 13), Attach(), FORK]
FROM_TEMPLATE: list[FromTemplate] = [
    Importing("a"),
    TemplateReady({"a": "it does not import"}, None, 120),
    TemplateReady({"a": "it started a thread"}, "a", 0),
    Forked("w0", 4711),
    ForkRefused("w0", "code changed on disk: a.py", is_spent=True),
    WorkerExited(4711, 9, 10, 20, 30_000),
]


@pytest.mark.parametrize("packet", TO_TEMPLATE)
def test_what_a_driver_says_arrives(packet: ToTemplate) -> None:
    assert decode_for_template(encode_packet(packet)) == packet
    with pytest.raises(WireError):
        decode_from_template(encode_packet(packet))


@pytest.mark.parametrize("packet", FROM_TEMPLATE)
def test_what_a_template_says_arrives(packet: FromTemplate) -> None:
    assert decode_from_template(encode_packet(packet)) == packet
    with pytest.raises(WireError):
        decode_for_template(encode_packet(packet))


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    for decode in (decode_for_template, decode_from_template):
        try:
            packet = decode(data)
        except WireError:
            continue
        assert encode_packet(packet)


@pytest.mark.parametrize(
    "packet",
    [
        msgspec.structs.replace(FORK, environment={b"A": b"x" * PACKET_CAP}),
        msgspec.structs.replace(FORK, module="\ud83d"),
    ],
)
def test_what_no_packet_can_hold_is_refused(packet: Fork) -> None:
    with pytest.raises(WireError):
        encode_packet(packet)


@pytest.mark.parametrize("text", ["short", "x" * 5000, "\ud83d", "😀" * 3000])
def test_any_reason_fits_into_a_packet(text: str) -> None:
    packet = ForkRefused("w0", cut(text), is_spent=False)
    assert decode_from_template(encode_packet(packet)) == packet


def test_what_a_process_reads_when_it_starts() -> None:
    fixed = {
        "PYTHONPATH": "/a",
        "PYTHONHASHSEED": "0",
        "LD_PRELOAD": "x",
        "MALLOC_ARENA_MAX": "2",
        "VIRTUAL_ENV": "/v",
        "CONDA_PREFIX": "/c",
        "OMP_NUM_THREADS": "4",
        "LC_ALL": "C",
    }
    others = {"PATH": "/bin", "HOME": "/h", "TZ": "UTC", "LC_TIME": "C", "TMPDIR": "/t"}
    assert startup_part({**fixed, **others}) == fixed
