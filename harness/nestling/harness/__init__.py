"""Recording, replay and comparison of agent trees.

The names below are what users of the harness need; each is loaded when it is asked for,
so that the command line pays only for what it runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nestling.harness.casting_io import cast_of as cast_of
    from nestling.harness.compose_stream import fork_call as fork_call
    from nestling.harness.compose_stream import reasoning as reasoning
    from nestling.harness.compose_stream import spawn_call as spawn_call
    from nestling.harness.compose_stream import text as text
    from nestling.harness.compose_stream import tool_call as tool_call
    from nestling.harness.gates_io import Gate as Gate
    from nestling.harness.leaks_io import LeakError as LeakError
    from nestling.harness.leaks_io import no_leaks as no_leaks
    from nestling.harness.ledger import Problem as Problem
    from nestling.harness.normalise import Normalisers as Normalisers
    from nestling.harness.owned_clock_io import OwnedClock as OwnedClock
    from nestling.harness.record_io import record as record
    from nestling.harness.record_report import RecordReport as RecordReport
    from nestling.harness.refresh_io import refresh as refresh
    from nestling.harness.refresh_report import RefreshReport as RefreshReport
    from nestling.harness.replay_director import Cast as Cast
    from nestling.harness.replay_io import replay as replay
    from nestling.harness.replay_report import ReplayReport as ReplayReport
    from nestling.harness.replayer_io import Replayer as Replayer
    from nestling.harness.saving_io import save_scenario as save_scenario
    from nestling.harness.scenario import Scenario as Scenario
    from nestling.harness.scenario_io import load_scenario as load_scenario
    from nestling.harness.scripted_answer import Answer as Answer
    from nestling.harness.scripted_answer import last_user_text as last_user_text
    from nestling.harness.scripted_model_io import ScriptedModel as ScriptedModel

_HOMES = {
    "Answer": "harness.scripted_answer",
    "Cast": "harness.replay_director",
    "Gate": "harness.gates_io",
    "LeakError": "harness.leaks_io",
    "OwnedClock": "harness.owned_clock_io",
    "Normalisers": "harness.normalise",
    "Problem": "harness.ledger",
    "RecordReport": "harness.record_report",
    "RefreshReport": "harness.refresh_report",
    "ReplayReport": "harness.replay_report",
    "Replayer": "harness.replayer_io",
    "Scenario": "harness.scenario",
    "ScriptedModel": "harness.scripted_model_io",
    "cast_of": "harness.casting_io",
    "fork_call": "harness.compose_stream",
    "last_user_text": "harness.scripted_answer",
    "load_scenario": "harness.scenario_io",
    "no_leaks": "harness.leaks_io",
    "reasoning": "harness.compose_stream",
    "record": "harness.record_io",
    "refresh": "harness.refresh_io",
    "replay": "harness.replay_io",
    "save_scenario": "harness.saving_io",
    "spawn_call": "harness.compose_stream",
    "text": "harness.compose_stream",
    "tool_call": "harness.compose_stream",
}

__all__ = [
    "Answer",
    "Cast",
    "Gate",
    "LeakError",
    "Normalisers",
    "OwnedClock",
    "Problem",
    "RecordReport",
    "RefreshReport",
    "ReplayReport",
    "Replayer",
    "Scenario",
    "ScriptedModel",
    "cast_of",
    "fork_call",
    "last_user_text",
    "load_scenario",
    "no_leaks",
    "reasoning",
    "record",
    "refresh",
    "replay",
    "save_scenario",
    "spawn_call",
    "text",
    "tool_call",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"nestling.{_HOMES[name]}"), name)
