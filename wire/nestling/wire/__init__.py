"""What crosses processes: messages, frames, credit and admission.

The sockets are in `nestling.wire.socket_io`, which is not imported here: a process
that only needs the messages does not pay for ZeroMQ.
"""

from __future__ import annotations

from nestling.wire.admission import Admission, parse_peer_pid
from nestling.wire.codec import (
    create_parts,
    decode_for_hub,
    decode_for_worker,
    encode,
)
from nestling.wire.credit import Refill, Window
from nestling.wire.launch import LaunchSpec, decode_launch, encode_launch
from nestling.wire.messages import PROTOCOL, ToHub, ToWorker

__all__ = [
    "PROTOCOL",
    "Admission",
    "LaunchSpec",
    "Refill",
    "ToHub",
    "ToWorker",
    "Window",
    "create_parts",
    "decode_for_hub",
    "decode_for_worker",
    "decode_launch",
    "encode",
    "encode_launch",
    "parse_peer_pid",
]
