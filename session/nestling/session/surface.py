"""The surface: the part of a log that a model sees, in order.

The log is the truth and only grows; the surface is an ordered list of seqs folded
from it. ``append`` pushes an event's seq; ``{"op": "replace", "start", "end"}`` swaps
an inclusive range of current nodes for the new event (a compaction does this).
"""

from __future__ import annotations

import hashlib
from typing import Final

from nestling.session.errors import AppendError
from nestling.session.event import SURFACE_TYPES, Event
from nestling.session.jsontext import Json, JsonObject, canonical, is_int0
from nestling.session.shape import shape_problem

EMPTY_DIGEST: Final = hashlib.sha256().digest()


class Surface:
    """The surface of one session, kept up to date as events are appended.

    Attributes:
        nodes: the seqs of its messages, in the order in which the model sees them.
        route: the provider and model that the last request header names.
    """

    def __init__(self) -> None:
        self.nodes: list[int] = []
        self._digests: dict[int, bytes] = {}
        self._header_digest = EMPTY_DIGEST
        self.route = ("", "")

    def check(self, event: Event) -> None:
        """Check the surface fields of an event that is about to be appended.

        Raises:
            AppendError: if they are missing, misplaced, or point at what is not
                there.
        """
        if event.type not in SURFACE_TYPES:
            if event.surface_op is not None or event.source_event_seqs is not None:
                raise AppendError(f"{event.type} must not have surface fields")
            return
        operation = event.surface_op
        if operation is None:
            raise AppendError(f"{event.type} must have a surfaceOp")
        _check_sources(event)
        if operation == "append":
            return
        self._check_replacement(event, operation)

    def _replaced_slice(self, operation: str | JsonObject) -> slice:
        start, end = _replaced_range(operation)
        if start not in self.nodes or end not in self.nodes:
            raise AppendError(f"surfaceOp replaces {start}..{end}, not on the surface")
        first, last = self.nodes.index(start), self.nodes.index(end)
        if first > last:
            raise AppendError(f"surfaceOp replaces {start}..{end} in reverse order")
        return slice(first, last + 1)

    def _check_replacement(self, event: Event, operation: str | JsonObject) -> None:
        shadowed = set(self.nodes[self._replaced_slice(operation)])
        missing = shadowed - set(event.source_event_seqs or ())
        if missing:
            raise AppendError(
                f"surfaceOp replaces event {min(missing)}, "
                "which sourceEventSeqs does not cite"
            )

    def append(self, event: Event) -> None:
        """Take in an event that ``check`` accepted, now or when it was written.

        Raises:
            AppendError: if it replaces what is not on the surface.
        """
        if event.type == "request/header":
            self._header_digest = hashlib.sha256(canonical(event.data)).digest()
            self.route = _route(event)
        operation = event.surface_op
        if operation is None:
            return
        end = len(self.nodes)
        shadowed = slice(end, end)
        if operation != "append":
            shadowed = self._replaced_slice(operation)
        for seq in self.nodes[shadowed]:
            del self._digests[seq]
        self.nodes[shadowed] = [event.seq]
        self._digests[event.seq] = hashlib.sha256(canonical(event.content())).digest()

    def request_digest(self) -> bytes:
        """Return 32 bytes that stand for the request this log leads to now.

        sha256 over the digest of the last request header and the digests of the
        surface's messages in order. Two logs with equal digests rebuild the same
        request, so none needs to cross the wire.
        """
        parts = [self._header_digest]
        parts.extend(self._digests[seq] for seq in self.nodes)
        return hashlib.sha256(b"".join(parts)).digest()


def _route(event: Event) -> tuple[str, str]:
    """Return where a request header sends requests; nowhere if it is malformed."""
    if shape_problem(event) is not None:
        return "", ""
    config = event.data["header"]["config"]
    return config["provider"], config["model"]


def _check_sources(event: Event) -> None:
    sources = event.source_event_seqs
    if sources is None:
        return
    if type(sources) is not list or not all(
        is_int0(seq) and seq < event.seq for seq in sources
    ):
        raise AppendError(
            f"sourceEventSeqs must be earlier events than {event.seq}, found {sources}"
        )
    if len(set(sources)) != len(sources):
        raise AppendError(f"sourceEventSeqs names an event twice: {sources}")
    if not sources and event.type != "assistant/message":
        raise AppendError(f"sourceEventSeqs of {event.type} must not be empty")


def is_replacement(operation: Json) -> bool:
    """Tell whether a surfaceOp is a well-formed replacement."""
    return (
        type(operation) is dict
        and operation.keys() == {"op", "start", "end"}
        and operation["op"] == "replace"
        and is_int0(operation["start"])
        and is_int0(operation["end"])
    )


def _replaced_range(operation: str | JsonObject) -> tuple[int, int]:
    if isinstance(operation, str) or not is_replacement(operation):
        raise AppendError(
            f"surfaceOp must be 'append' or a replacement, found {operation!r}"
        )
    return operation["start"], operation["end"]
