"""The agent behind ``Turn.ask``: one call, no tools."""

from __future__ import annotations

from nestling.worker.turn import Turn


async def side_call(turn: Turn) -> None:
    """Put the prompt to the model that the options name."""
    await turn.stream(
        model=turn.options["model"],
        system=turn.options["system"],
        options=turn.options["options"],
    )
