"""A keeper, who reads the gauge."""

from __future__ import annotations

from nestling.worker import Agent, RetryPolicy, tool

METRES = {"north": 4, "south": 7}


@tool
def read_gauge(basin: str) -> str:
    """Read the gauge of a basin."""
    return f"{METRES[basin]} m"


keeper = Agent(
    "scripted/harbour",
    system="You keep the harbour's gauges.",
    tools=[read_gauge],
    retry=RetryPolicy(base_ms=20),
)
