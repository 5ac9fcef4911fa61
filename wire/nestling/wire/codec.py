"""Frames on the wire: `[header] [body frame …]`.

The header is one message of `nestling.wire.messages` in MessagePack; the body is
opaque bytes, cut into frames only to keep each of them small. Everything a peer
sends comes in through `decode_for_hub` or `decode_for_worker`.

Guarantees:

- Any list of byte strings either decodes to a valid message or raises `WireError`.
- What `encode` lets out, the other side's decoder lets in.
- A body of one frame is handed on as the object it came in as, not copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, get_args

import msgpack
import msgspec

from nestling.session.errors import WireError
from nestling.session.jsontext import Json, dumps
from nestling.wire.messages import Create, Message, ToHub, ToWorker

#: Bodies are cut into frames of this many bytes.
FRAME_BYTES: Final = 256 * 1024
#: No frame from a peer may be larger, in bytes.
FRAME_CAP: Final = 1024 * 1024
#: No header may be larger, in bytes.
HEADER_CAP: Final = 64 * 1024
#: No body may be larger, in bytes, all frames together.
MAX_BODY: Final = 64 * 1024 * 1024
#: What is said in one event, prompt or chunk may be no larger, in bytes of JSON.
LARGEST_VALUE: Final = MAX_BODY // 2
#: No message may have more frames, header included.
MAX_FRAMES: Final = 1 + MAX_BODY // FRAME_BYTES

_M = TypeVar("_M", bound=Message)

# Bytes stay bytes; without this msgspec would take base64 text for them.
_BUILTIN: Final = (bytes,)
# A header is one flat array: no maps, no extension types. The longest text is an
# agent reference of 1024 characters, at most four bytes each.
_LIMITS: Final[Mapping[str, Any]] = {
    "raw": False,
    "max_array_len": 16,
    "max_map_len": 0,
    "max_str_len": 4096,
    "max_bin_len": 64,
    "max_ext_len": 0,
}


def _kinds(union: Any, base: type[_M]) -> dict[object, type[_M]]:
    """Map the kind strings of a union of messages to their classes."""
    return {cls.__struct_config__.tag: cls for cls in get_args(union)}


_TO_HUB: Final = _kinds(ToHub, Message)
_TO_WORKER: Final = _kinds(ToWorker, Message)


def size_problem(value: Json) -> str | None:
    """Say that a JSON value is too large to be sent, if it is."""
    size = len(dumps(value))
    if size <= LARGEST_VALUE:
        return None
    return f"{size} bytes of JSON, at most {LARGEST_VALUE} can be sent"


def encode(message: ToHub | ToWorker, body: bytes = b"") -> list[bytes]:
    """Return the frames of a message: its header, then its body if it has one.

    Args:
        message: what to say.
        body: at most `MAX_BODY` bytes.

    Raises:
        WireError: a field or the body is outside the bounds that the peer checks.
    """
    fields = msgspec.to_builtins(message, builtin_types=_BUILTIN)
    try:
        msgspec.convert(fields, type(message), builtin_types=_BUILTIN)
        header: bytes = msgpack.packb(fields)
    except ValueError as error:
        kind = type(message).__struct_config__.tag
        raise WireError(f"a {kind!r} message cannot be sent: {error}") from error
    return [header, *_cut(body)]


def _cut(body: bytes) -> list[bytes]:
    size = len(body)
    if size > MAX_BODY:
        raise WireError(f"a body of {size} bytes, expected at most {MAX_BODY}")
    if size <= FRAME_BYTES:
        return [body] if size else []
    return [body[at : at + FRAME_BYTES] for at in range(0, size, FRAME_BYTES)]


def decode_for_hub(frames: Sequence[bytes]) -> tuple[ToHub, bytes]:
    """Return the message and body that a worker sent.

    Args:
        frames: the frames behind the routing id.

    Raises:
        WireError: the frames are not a message that a worker may send.
    """
    header, body = _split(frames)
    message: ToHub = _header(header, _TO_HUB)  # type: ignore[assignment]  # the table
    return message, body


def decode_for_worker(frames: Sequence[bytes]) -> tuple[ToWorker, bytes]:
    """Return the message and body that the hub sent.

    Args:
        frames: all frames of the message.

    Raises:
        WireError: the frames are not a message that a hub may send.
    """
    header, body = _split(frames)
    message: ToWorker = _header(header, _TO_WORKER)  # type: ignore[assignment]  # same
    return message, body


def create_parts(message: Create, body: bytes) -> tuple[bytes, bytes, bytes]:
    """Cut the body of a `create` into header JSON, seed JSONL and tape JSON.

    Raises:
        WireError: the sizes in the message do not add up to the body's.
    """
    seed_at = message.header_size
    tape_at = seed_at + message.seed_size
    total = tape_at + message.brief_size
    if total != len(body):
        raise WireError(f"a 'create' body of {len(body)} bytes, expected {total}")
    return body[:seed_at], body[seed_at:tape_at], body[tape_at:]


def _split(frames: Sequence[bytes]) -> tuple[bytes, bytes]:
    count = len(frames)
    if not 1 <= count <= MAX_FRAMES:
        raise WireError(f"{count} frames, expected 1 to {MAX_FRAMES}")
    header = frames[0]
    if len(header) > HEADER_CAP:
        raise WireError(f"a header of {len(header)} bytes, at most {HEADER_CAP}")
    if count == 1:
        return header, b""
    return header, _join(frames[1:])


def _join(frames: Sequence[bytes]) -> bytes:
    largest = max(map(len, frames))
    if largest > FRAME_CAP:
        raise WireError(f"a frame of {largest} bytes, expected at most {FRAME_CAP}")
    total = sum(map(len, frames))
    if total > MAX_BODY:
        raise WireError(f"a body of {total} bytes, expected at most {MAX_BODY}")
    # Joining one bytes object gives that object, not a copy.
    return b"".join(frames)


def _header(header: bytes, kinds: Mapping[object, type[_M]]) -> _M:
    fields = _unpack(header)
    kind = fields[0] if isinstance(fields, list) and fields else None
    cls = kinds.get(kind) if isinstance(kind, str) else None
    if cls is None:
        known = ", ".join(sorted(map(str, kinds)))
        raise WireError(f"a message of kind {_shown(kind)}, expected one of {known}")
    try:
        return msgspec.convert(fields, cls, builtin_types=_BUILTIN)
    except msgspec.ValidationError as error:
        raise WireError(f"a bad {kind!r} message: {error}") from error


def _unpack(header: bytes) -> object:
    try:
        return msgpack.unpackb(header, **_LIMITS)
    except (ValueError, RecursionError) as error:
        # msgpack's own errors, and those of text decoding, are all ValueErrors.
        raise WireError(
            f"a header that is not MessagePack within limits: {error}"
        ) from error


def _shown(value: object) -> str:
    """Return a peer's value as text short enough for an error message."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
