"""Choosing who runs a scenario again: its own agent, another one, or tape agents."""

from __future__ import annotations

import os
from pathlib import Path

from nestling.harness.replay_director import Cast
from nestling.harness.scenario_config_io import load_config
from nestling.harness.scenario_io import CONFIG_NAME
from nestling.session.errors import UnreadableError
from nestling.wire.agent_reference import TAPE, absolute, parse_reference


def cast_of(path: Path | str, agent: str | None = None) -> Cast | None:
    """Return who runs a scenario again; None for tape agents.

    Args:
        path: the scenario's.
        agent: ``tape``; or the reference of another agent than the scenario's own; or
            None for that, or for tape agents if it has none.

    Raises:
        UnreadableError: if ``scenario.toml`` is not readable, or is needed and missing.
        AgentReferenceError: if a reference is none.
    """
    path = Path(path)
    if agent == TAPE:
        return None
    config = load_config(path)
    if agent is None:
        return None if config is None else config.cast(folder=path)
    reference = str(absolute(parse_reference(agent), os.getcwd()))
    if config is None:
        raise UnreadableError(
            f"{path}: found no {CONFIG_NAME}, which says what an agent is told; "
            "expected one, or --agent tape"
        )
    return config.cast(reference, path)
