"""Recording, replay and comparison of agent trees.

The names below are what users of the harness need; each is loaded when it is asked for,
so that the command line pays only for what it runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nestling.harness.ledger import Problem as Problem
    from nestling.harness.replay_io import replay as replay
    from nestling.harness.replay_report import ReplayReport as ReplayReport
    from nestling.harness.scenario import Scenario as Scenario
    from nestling.harness.scenario_io import load_scenario as load_scenario

_HOMES = {
    "Problem": "ledger",
    "ReplayReport": "replay_report",
    "Scenario": "scenario",
    "load_scenario": "scenario_io",
    "replay": "replay_io",
}

__all__ = ["Problem", "ReplayReport", "Scenario", "load_scenario", "replay"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
