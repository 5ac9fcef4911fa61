"""Comparing a session's header, and what it inherited, with what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from nestling.harness.compare import first_difference
from nestling.session.event import Event
from nestling.session.header import Header


def are_equal(live: Sequence[Event], recorded: Sequence[Event]) -> bool:
    """Tell whether what a session begins with is what was recorded, ids included."""
    return all(
        one is other or one.content() == other.content()
        for one, other in zip(live, recorded, strict=False)
    )


def header_difference(
    live: Header, recorded: Header, left_out: AbstractSet[str]
) -> str | None:
    """Compare the header fields that the recording states, but for some."""
    if "seedLength" not in left_out and live.seed_length != recorded.seed_length:
        return (
            f"header: seedLength is {live.seed_length}, "
            f"recorded was {recorded.seed_length}"
        )
    live_row, recorded_row = (
        {key: value for key, value in header.row().items() if key not in left_out}
        for header in (live, recorded)
    )
    shared = {key: live_row[key] for key in recorded_row if key in live_row}
    difference = first_difference(shared, recorded_row)
    return None if difference is None else f"header: {difference}"
