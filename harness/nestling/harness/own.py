"""The own part of a recording: its boundary checked, what it inherited left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nestling.session import boundary
from nestling.session.errors import SeedError, UnreadableError
from nestling.session.event import Event
from nestling.session.reading import Recording
from nestling.session.shape import shape_problem

# What the boundary and the cutting of calls stand on. Everything else may have a
# retired shape: old recordings still replay by their chunks.
_FRAMES: Final = frozenset({"turn/start", "step/start", "assistant/chunk"})


def own_part(recording: Recording) -> Sequence[Event]:
    """Return the events that a recorded session did not inherit.

    Raises:
        UnreadableError: if a turn, step or chunk event is malformed, or the stated
            ``seedLength`` cannot be the boundary of this log.
    """
    for event in recording.events:
        if event.type in _FRAMES:
            require_shape(recording, event)
    seed_length = recording.header.seed_length
    try:
        boundary.check_boundary(recording.events, seed_length)
    except SeedError as error:
        raise UnreadableError(f"{recording.name}: {error}") from None
    return boundary.own_events(recording.events, seed_length)


def require_shape(recording: Recording, event: Event) -> None:
    """Check the data of an event that something is about to be read from.

    Raises:
        UnreadableError: naming the file, line and field.
    """
    problem = shape_problem(event)
    if problem is not None:
        raise UnreadableError(f"{recording.place(event.seq)}: {problem}")
