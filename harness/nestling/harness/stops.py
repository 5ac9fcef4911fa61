"""Where a session that an agent plays is stopped, and where it waits for that."""

from __future__ import annotations

from nestling.driver.director import Stops


def holds_of(stops: Stops) -> tuple[int, ...]:
    """Return the lengths of its log at which a session waits to be stopped."""
    cancels = {stop.length for stop in stops.cancels}
    return tuple(sorted(cancels | {stop.length for stop in stops.kills}))


def shifted(stops: Stops, by: int) -> Stops:
    """Return stops at logs that are longer by so many events."""
    return Stops(
        tuple(stop._replace(length=stop.length + by) for stop in stops.cancels),
        tuple(stop._replace(length=stop.length + by) for stop in stops.kills),
    )
