"""Every message says what it is, survives the wire, and is bounded."""

from __future__ import annotations

from typing import Any, get_args

import msgpack
import msgspec
import pytest

from nestling.session.errors import WireError
from nestling.wire import messages as m
from nestling.wire.codec import decode_for_hub, decode_for_worker, encode

HASH = bytes(range(32))
BIG = 2**53 - 1

TO_HUB: list[m.ToHub] = [
    m.Hello(protocol=m.PROTOCOL, build="0.1.0", pid=1),
    m.Ready(1, 0),
    m.Events(1, 0, BIG),
    m.Stream(1, 2, "turn", "openai", "gpt", 1, 2, HASH, 9, 262144, 64),
    m.Stream(1, 2, "summary", "p" * 256, "é" * 256, 1, 2, HASH, 9, 1, 1),
    m.Credit(1, 2, 131072, 32),
    m.Delegate(1, 2, 1, 0, 0, None, "fork", 12),
    m.Delegate(1, 2, 1, None, 3, "a key", "spawn", 12),
    m.Tool(1, 2, 1, 0, 12),
    m.Result(1, 12),
    m.Beat(1, 0),
    m.Bye(1, "done"),
    m.Bye(1, "seed-refused"),
    m.Bye(1, "loop-refused"),
    m.Bye(1, "failed"),
]
TO_WORKER: list[m.ToWorker] = [
    m.Welcome(1),
    m.Create(0, "𝄞" * 1024, 5, HASH, 1, 2, 3),
    m.Ack(1, 2),
    m.Nack(1, 2),
    m.Chunks(1, 2, 0, 50),
    m.End(1, 2, 50),
    m.Fail(1, 2, 50),
    m.Settled(1, 2, 3, 0, 1, None),
    m.Settled(1, 2, 3, None, 1, "k"),
    m.ToolResult(1, 2, 3, 4),
    m.Prompt(1),
    m.Cancel(1, None, None),
    m.Cancel(1, 2, 0),
    m.Close(1),
]
HUB_KINDS = "hello ready events stream credit delegate tool result beat bye"
WORKER_KINDS = (
    "welcome create ack nack chunks end fail settled tool-result prompt cancel close"
)


def kinds(union: Any) -> list[object]:
    return [cls.__struct_config__.tag for cls in get_args(union)]


def test_the_kinds_are_those_of_the_design() -> None:
    assert kinds(m.ToHub) == HUB_KINDS.split()
    assert kinds(m.ToWorker) == WORKER_KINDS.split()


def test_the_samples_cover_every_kind() -> None:
    assert {type(x) for x in TO_HUB} == set(get_args(m.ToHub))
    assert {type(x) for x in TO_WORKER} == set(get_args(m.ToWorker))


@pytest.mark.parametrize("message", TO_HUB, ids=repr)
@pytest.mark.parametrize("body", [b"", b"[]"])
def test_round_trip_to_the_hub(message: m.ToHub, body: bytes) -> None:
    assert decode_for_hub(encode(message, body)) == (message, body)


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("body", [b"", b"[]"])
def test_round_trip_to_a_worker(message: m.ToWorker, body: bytes) -> None:
    assert decode_for_worker(encode(message, body)) == (message, body)


def test_no_side_takes_what_is_meant_for_the_other() -> None:
    for to_hub in TO_HUB:
        with pytest.raises(WireError, match="expected one of ack, cancel"):
            decode_for_worker(encode(to_hub))
    for to_worker in TO_WORKER:
        with pytest.raises(WireError, match="expected one of beat, bye"):
            decode_for_hub(encode(to_worker))


def test_messages_are_frozen() -> None:
    with pytest.raises(AttributeError):
        m.Ack(1, 2).length = 3  # type: ignore[misc]  # what is tested


BAD: list[tuple[m.ToHub | m.ToWorker, str, object]] = [
    (m.Ack(1, 2), "length", -1),
    (m.Ack(1, 2), "length", BIG + 1),
    (m.Ack(1, 2), "length", True),
    (m.Ack(1, 2), "length", 1.0),
    (m.Ack(1, 2), "length", "1"),
    (m.Ack(1, 2), "sid", None),
    (m.Create(0, "a", 5, HASH, 1, 2, 3), "agent", "a" * 1025),
    (m.Create(0, "a", 5, HASH, 1, 2, 3), "sha256", HASH[:31]),
    (TO_HUB[3], "digest", b""),
    (TO_HUB[3], "digest", HASH + b"x"),
    (TO_HUB[3], "digest", "QUFB" * 10 + "QUE="),
    (TO_HUB[3], "provider", "p" * 257),
    (TO_HUB[3], "model", b"m"),
    (TO_HUB[3], "purpose", "title"),
    (TO_HUB[6], "key", "k" * 257),
    (TO_HUB[6], "context", "thread"),
    (TO_HUB[0], "build", "b" * 257),
    (m.Bye(1, "done"), "reason", "tired"),
]


@pytest.mark.parametrize(("message", "field", "value"), BAD)
def test_a_field_out_of_bounds_neither_comes_in_nor_goes_out(
    message: m.ToHub | m.ToWorker, field: str, value: object
) -> None:
    bad = msgspec.structs.replace(message, **{field: value})
    with pytest.raises(WireError, match="cannot be sent"):
        encode(bad)
    fields = msgspec.to_builtins(bad, builtin_types=(bytes,))
    decode = decode_for_hub if isinstance(message, m.ToHub) else decode_for_worker
    with pytest.raises(WireError, match=r"bad '|within limits"):
        decode([msgpack.packb(fields)])


def test_no_field_may_be_missing_or_one_too_many() -> None:
    for fields in (["ack", 1], ["ack", 1, 2, 3]):
        with pytest.raises(WireError, match="a bad 'ack' message"):
            decode_for_worker([msgpack.packb(fields)])
