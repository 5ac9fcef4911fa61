"""A whole small session, played in memory, so that forks find everything in its place.

What a process does for the first time costs it more than the second time: decoders are
made, bytecode is specialised, caches fill. In a fork each of these also copies a page
that it would else share. So the template does it all before it forks. Pure: nothing is
sent, opened or started.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Final

from nestling.session.jsontext import JsonObject, dumps
from nestling.wire.codec import decode_for_worker, encode
from nestling.wire.launch import LaunchSpec, decode_launch, encode_launch
from nestling.wire.messages import (
    PROTOCOL,
    Ack,
    Chunks,
    Close,
    Create,
    End,
    Hello,
    ToWorker,
    Welcome,
)
from nestling.worker.endpoint import Endpoint, Pilot
from nestling.worker.tape import (
    Call,
    Input,
    Item,
    Message,
    StepEnd,
    StepStart,
    TurnEnd,
    TurnStart,
    encode_tape,
)

TIMES: Final = 12
"""Bytecode is specialised after it has run about so often."""
TAPE: Final = "tape"

_TITLE: Final[JsonObject] = {"type": "title", "data": {"title": "A rehearsal"}}
_ANSWER: Final[list[JsonObject]] = [
    {"type": "block-start", "index": 0, "blockType": "text"},
    {"type": "text-delta", "index": 0, "text": "yes"},
    {"type": "block-end", "index": 0, "block": {"type": "text", "text": "yes"}},
    {"type": "finish", "reason": {"kind": "stop"}},
]


def rehearse(
    pilot_for: Callable[[Endpoint, Create, bytes], Pilot], times: int = TIMES
) -> None:
    """Play a session of one turn and one call, from its launch to its goodbye.

    Raises:
        WireError: if the two sides do not understand each other.
    """
    for _ in range(times):
        spec = LaunchSpec(PROTOCOL, "ipc:///none", "w0", "token", b"\1", 1)
        decode_launch(encode_launch(spec))
        encode(Hello(PROTOCOL, "0", 1))
        endpoint = Endpoint(pilot_for, lambda: 0)
        for said, body in _by_the_hub():
            endpoint.handle(*decode_for_worker(encode(said, body)))
            for answer in endpoint.outbox:
                encode(*answer)
            endpoint.outbox.clear()


def _by_the_hub() -> Iterator[tuple[ToWorker, bytes]]:
    header, tape = b"{}", _tape()
    yield Welcome(PROTOCOL), b""
    nothing = hashlib.sha256(b"").digest()
    yield Create(0, TAPE, 0, nothing, len(header), 0, len(tape)), header + tape
    yield Chunks(0, 0, 0, len(_ANSWER)), dumps(list(_ANSWER))
    yield End(0, 0, len(_ANSWER)), b""
    yield Ack(0, 5), b""
    yield Close(0), b""


def _tape() -> bytes:
    items: list[Item] = [TurnStart(1), StepStart(1, 1), Input(_TITLE), Call()]
    return encode_tape([*items, Message("m1"), StepEnd(), TurnEnd()])
