"""What a worker is told at its launch, over a descriptor that it inherits.

Never through its arguments or environment: other processes can read those.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from nestling.session.errors import WireError
from nestling.wire.messages import PROTOCOL, Natural

#: No launch spec is longer, in bytes, newline included.
LAUNCH_CAP: Final = 4096

#: The variable in a worker's environment that keeps it off the network.
OFFLINE: Final = "NESTLING_OFFLINE"


class LaunchSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a worker connects, and as whom.

    Args:
        protocol: the version of the wire that the hub speaks.
        endpoint: the hub's `ipc://` endpoint.
        user: the name of this launch, for admission.
        token: the secret that admits it, once.
        routing_id: 1 to 255 random bytes that do not start with a zero byte, which
            ZeroMQ keeps for ids of its own making.
        parent_pid: the process whose death ends the worker.
    """

    protocol: Natural
    endpoint: Annotated[str, Meta(min_length=1, max_length=256)]
    user: Annotated[str, Meta(min_length=1, max_length=255)]
    token: Annotated[str, Meta(min_length=1, max_length=255)]
    routing_id: Annotated[bytes, Meta(min_length=1, max_length=255)]
    parent_pid: Natural

    def __repr__(self) -> str:
        # The token and the routing id must not reach a log.
        return f"LaunchSpec(endpoint={self.endpoint!r}, user={self.user!r})"


def encode_launch(spec: LaunchSpec) -> bytes:
    """Return the spec as one line of JSON.

    Raises:
        WireError: `decode_launch` would refuse it.
    """
    line = msgspec.json.encode(spec) + b"\n"
    decode_launch(line)
    return line


def decode_launch(line: bytes) -> LaunchSpec:
    """Return the spec that `line` holds.

    Args:
        line: all that came over the descriptor, its newline included.

    Raises:
        WireError: it is cut off, not a launch spec, or of another protocol.
    """
    if len(line) > LAUNCH_CAP or not line.endswith(b"\n"):
        raise WireError(
            f"a launch spec of {len(line)} bytes, expected one line of at most "
            f"{LAUNCH_CAP}"
        )
    try:
        spec = msgspec.json.decode(line, type=LaunchSpec)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a bad launch spec: {error}") from error
    _check(spec)
    return spec


def _check(spec: LaunchSpec) -> None:
    if spec.protocol != PROTOCOL:
        raise WireError(f"protocol {spec.protocol}, expected {PROTOCOL}")
    if spec.routing_id[:1] == b"\0":
        raise WireError("a routing id that starts with a zero byte")
