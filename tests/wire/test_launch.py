"""The launch spec survives its line, and nothing else passes for one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.session.errors import WireError
from nestling.wire.launch import LaunchSpec, decode_launch, encode_launch
from nestling.wire.messages import PROTOCOL

SPEC = LaunchSpec(PROTOCOL, "ipc:///tmp/x/hub", "w1", "secret", b"\xff\0\n" * 5, 42)


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(encode_launch(SPEC)), **fields}).encode() + b"\n"


def test_round_trip_is_one_line() -> None:
    line = encode_launch(SPEC)
    assert line.index(b"\n") == len(line) - 1
    assert decode_launch(line) == SPEC
    assert decode_launch(changed()) == SPEC


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        b"\xff\n",
        b"[" * 4000 + b"\n",
        encode_launch(SPEC)[:-1],
        encode_launch(SPEC)[:-2] + b"\n",
        encode_launch(SPEC) * 2,
        b" " * 5000 + encode_launch(SPEC),
        changed(extra=1),
        changed(protocol="1"),
        changed(user=""),
        changed(user=None),
        changed(token=""),
        changed(token="t" * 256),
        changed(parent_pid=-1),
        changed(endpoint="e" * 257),
        changed(routing_id=""),
        changed(routing_id="not base64!"),
    ],
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(WireError, match="launch spec"):
        decode_launch(line)


def test_another_protocol_is_named() -> None:
    with pytest.raises(WireError, match="protocol 9, expected 2"):
        decode_launch(changed(protocol=9))


def test_a_routing_id_of_zeromqs_own_kind_is_refused() -> None:
    with pytest.raises(WireError, match="zero byte"):
        decode_launch(changed(routing_id="AAECAwQ="))


def test_what_could_not_be_read_is_not_written() -> None:
    with pytest.raises(WireError):
        encode_launch(LaunchSpec(PROTOCOL, "ipc:///x", "u", "t", b"\0abc", 1))


def test_secrets_do_not_show() -> None:
    assert "secret" not in repr(SPEC)
    assert "routing_id" not in f"{SPEC}"


@given(st.binary(max_size=200))
def test_arbitrary_lines_decode_or_are_refused(line: bytes) -> None:
    with pytest.raises(WireError):
        decode_launch(line + b"\n")
