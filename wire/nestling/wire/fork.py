"""What a driver and its template process say to each other, over private socket pairs.

One packet a message, descriptors beside it where noted. Over the first pair, which the
template is started with, the driver says what to import and attaches one channel for
each of its hubs; over a channel a hub asks for forks, and the template answers each
with a process or a refusal and reports every exit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from nestling.session.errors import WireError
from nestling.wire.launch import OFFLINE
from nestling.wire.messages import Natural

PACKET_CAP: Final = 64 * 1024
"""No packet is longer, in bytes."""
FORK_FDS: Final = 2
"""So many descriptors come with a ``Fork``; one with an ``Attach`` or a ``Forked``."""

_T = TypeVar("_T")
Text: TypeAlias = Annotated[str, Meta(max_length=8192)]

_STARTUP: Final = ("PYTHON", "LD_", "MALLOC_")
_STARTUP_NAMES: Final = (
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "LC_ALL",
    "LC_CTYPE",
    "LANG",
    OFFLINE,
)
_STARTUP_END: Final = "_NUM_THREADS"


class _Packet(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What all packets have in common."""


class Warm(_Packet, frozen=True, tag="warm"):
    """Import agent modules. The first packet of all.

    Attributes:
        modules: their references, in the order in which they are imported.
        seconds: how long that may take.
    """

    modules: list[Text]
    seconds: Annotated[int, Meta(gt=0)]


class Attach(_Packet, frozen=True, tag="attach"):
    """Serve a hub. Descriptor: its channel."""


class Fork(_Packet, frozen=True, tag="fork"):
    """Fork a worker. Descriptors: its log, and its lifeline with its launch spec in it.

    Attributes:
        launch: what the fork is called in the answer.
        entry: the module that it runs as its program.
        module: the agent module that it is for; "" for none.
        directory: its working directory.
        environment: the whole of its environment.
    """

    launch: Text
    entry: Text
    module: Text
    directory: bytes
    environment: dict[bytes, bytes]


class Terminate(_Packet, frozen=True, tag="terminate"):
    """Send SIGTERM to the group of a worker of this channel, if it has not ended."""

    pid: Natural


class Importing(_Packet, frozen=True, tag="importing"):
    """The template begins to import an agent module, which may be its end."""

    module: Text


class TemplateReady(_Packet, frozen=True, tag="ready"):
    """The template has imported what it was told to and serves this channel.

    Attributes:
        refused: why no worker is forked for a module, by module.
        spoilt_by: the module that made the template useless for every other one, if
            one did; those after it were not imported.
        milliseconds: how long the imports took.
    """

    refused: dict[Text, Text]
    spoilt_by: Text | None
    milliseconds: Natural


class Forked(_Packet, frozen=True, tag="forked"):
    """The worker runs. Descriptor: its pidfd."""

    launch: Text
    pid: Natural


class ForkRefused(_Packet, frozen=True, tag="refused"):
    """The template does not fork this one.

    Attributes:
        launch: which.
        reason: why.
        is_spent: whether it will fork none any more.
    """

    launch: Text
    reason: Text
    is_spent: bool


class WorkerExited(_Packet, frozen=True, tag="exited"):
    """A worker has ended and was reaped; of what it started nothing is left.

    Attributes:
        pid: which.
        status: the wait status, as ``os.waitstatus_to_exitcode`` takes it; None if
            somebody else has reaped it.
        user_ms: CPU time it spent, milliseconds.
        system_ms: the same, in the kernel.
        max_rss_kb: the most memory it had, KiB.
        swept: how many processes it had left behind, which were ended.
        unkillable: what of it could not be ended in time.
    """

    pid: Natural
    status: Natural | None
    user_ms: Natural
    system_ms: Natural
    max_rss_kb: Natural
    swept: Natural = 0
    unkillable: list[Text] = []


ToTemplate: TypeAlias = Warm | Attach | Fork | Terminate
FromTemplate: TypeAlias = (
    Importing | TemplateReady | Forked | ForkRefused | WorkerExited
)

_encoder: Final = msgspec.msgpack.Encoder()
_to_template: Final = msgspec.msgpack.Decoder(ToTemplate)
_from_template: Final = msgspec.msgpack.Decoder(FromTemplate)


def encode_packet(packet: ToTemplate | FromTemplate) -> bytes:
    """Write a packet.

    Raises:
        WireError: if it is too long for one, or holds text that is not Unicode.
    """
    try:
        data = _encoder.encode(packet)
    except ValueError as error:
        raise WireError(f"a packet that cannot be sent: {error}") from None
    if len(data) > PACKET_CAP:
        raise WireError(f"a packet of {len(data)} bytes, expected at most {PACKET_CAP}")
    return data


def decode_for_template(data: bytes) -> ToTemplate:
    """Read a packet of the driver.

    Raises:
        WireError: if it is none.
    """
    return _decoded(data, _to_template)


def decode_from_template(data: bytes) -> FromTemplate:
    """Read a packet of the template.

    Raises:
        WireError: if it is none.
    """
    return _decoded(data, _from_template)


def _decoded(data: bytes, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a bad packet of {len(data)} bytes: {error}") from None


def cut(text: str) -> str:
    """Return a text that a packet can hold: what is too long is cut."""
    shown = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return shown if len(shown) <= 2000 else f"{shown[:2000]}…"


def startup_part(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process reads once, when it starts.

    A fork cannot be given others than its template was started with.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in _STARTUP_NAMES
        or name.startswith(_STARTUP)
        or name.endswith(_STARTUP_END)
    }
