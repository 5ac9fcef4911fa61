"""The seed boundary: where what a session inherited ends and its own events begin.

``seedLength`` counts logical events, after packed rows are unpacked, and is stated in
the header. Reading it any other way (from the seed's size, from the place of
``session/end-seed``, in lines of the file) makes a child replay its parent's answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nestling.session.errors import SeedError
from nestling.session.event import Event
from nestling.session.shape import shape_problem
from nestling.session.turns import tracked

_STARTS: Final = frozenset({"turn/start", "step/start"})


def own_events(events: Sequence[Event], seed_length: int) -> Sequence[Event]:
    """Return the events that a session did not inherit."""
    return events[seed_length:]


def check_seed(seed: Sequence[Event]) -> None:
    """Check that a session may start with `seed`.

    Raises:
        SeedError: if a turn is open at its end, its seqs are not contiguous, or the
            start of a turn or step is malformed.
    """
    for position, event in enumerate(seed):
        if event.seq != position:
            raise SeedError(f"seed event {position} has seq {event.seq}")
        problem = shape_problem(event) if event.type in _STARTS else None
        if problem is not None:
            raise SeedError(f"seed event {position}: {problem}")
    turn = tracked(seed).turn
    if turn is not None:
        raise SeedError(
            f"the {len(seed)} inherited events leave turn {turn} open, "
            "expected them to end between turns"
        )


def check_boundary(events: Sequence[Event], seed_length: int) -> None:
    """Check that a recording can have inherited its first `seed_length` events.

    Raises:
        SeedError: if the log is shorter, or the boundary lies inside a call or turn.
    """
    if seed_length > len(events):
        raise SeedError(
            f"seedLength {seed_length} is beyond the log, "
            f"expected at most its {len(events)} events"
        )
    if _is_inside_call(events, seed_length):
        place = events[seed_length].data
        raise SeedError(
            f"seedLength {seed_length} lies inside the model call of "
            f"turn {place['turn']}, step {place['step']}, expected between turns"
        )
    check_seed(events[:seed_length])


def _is_inside_call(events: Sequence[Event], boundary: int) -> bool:
    if not 0 < boundary < len(events):
        return False
    before, after = events[boundary - 1], events[boundary]
    if not _is_chunk(before) or not _is_chunk(after):
        return False
    same_place = all(before.data[key] == after.data[key] for key in ("turn", "step"))
    return same_place and before.data["chunk"].get("type") != "finish"


def _is_chunk(event: Event) -> bool:
    return event.type == "assistant/chunk" and shape_problem(event) is None
