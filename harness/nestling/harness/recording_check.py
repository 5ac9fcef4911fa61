"""Whether a recording replays: in one thread, without processes."""

from __future__ import annotations

from nestling.harness.ledger import Problem
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario
from nestling.harness.support import hindrances
from nestling.harness.tape_runner import TapeRunner


def problems_of_replay(scenario: Scenario) -> list[Problem]:
    """Replay a recording as a tape, and return what was wrong."""
    hindered = hindrances(scenario)
    if hindered:
        return hindered
    director = ReplayDirector(scenario)
    runner = TapeRunner(director)
    runner.run()
    director.close()
    return director.ledger.problems
