"""A worker dies, or the run is ended, after every single message of a tree.

Whatever the moment: the run comes to its end, every log is balanced, a parent is told
of an error and never of an empty success, and no child outlives its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest

from compose.trees import TREES
from nestling.driver.director import Settlement, Stop
from nestling.driver.exits import Exit
from nestling.driver.hub_session import HubSession, State
from nestling.driver.instructions import Abort, Exited, HubEvent
from nestling.harness.crashes import is_closing_result
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario
from nestling.harness.tape_runner import Choose, TapeRunner
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject
from support.replays import contents, recorded_contents, scenario_of, seeded


class Lenient(ReplayDirector):
    """Answers from the recording, and lets everything else happen live."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.settled: dict[str, Settlement] = {}

    def on_events(self, session_id: str, events: Sequence[Event]) -> Stop | None:
        return None

    def on_settled(self, session_id: str, settlement: Settlement) -> JsonObject | None:
        path = self.plan_of(session_id).session.path
        assert path is not None
        assert path not in self.settled, "a session settles once"
        self.settled[path] = settlement
        return None


class Fault(TapeRunner):
    """Does something once, after the hub has been told of so many things."""

    def __init__(
        self,
        director: ReplayDirector,
        at: int,
        fault: Callable[[Fault], None],
        choose: Choose = lambda _: 0,
    ) -> None:
        super().__init__(director, choose)
        self.told = 0
        self._at = at
        self._fault = fault

    def _tell_hub(self, event: HubEvent) -> None:
        super()._tell_hub(event)
        self.told += 1
        if self.told == self._at:
            self._fault(self)

    def kill(self, launch: str) -> None:
        """End a worker, if it lives, as the kernel would."""
        self._kill(launch)

    def silence(self, launch: str) -> None:
        """End a worker and lose what it had said and the hub had not yet read."""
        if launch in self._workers:
            self._lines[f"from {launch}"].clear()
            self._kill(launch)

    def abort(self) -> None:
        """End the run."""
        self._tell_hub(Abort("that is enough"))


def of_worker(
    how: Callable[[Fault, str], None], launch: str
) -> Callable[[Fault], None]:
    """Return the fault that one worker suffers."""
    return lambda runner: how(runner, launch)


def nothing(_: Fault) -> None:
    """Let it run."""


def sessions(runner: TapeRunner) -> Iterator[HubSession]:
    return iter(runner.hub.tree)


def check_ended(runner: TapeRunner, director: Lenient) -> None:
    assert runner.hub.waiting() == []
    for session in sessions(runner):
        assert session.state is State.REAPED
        assert session.durable == session.persisted == len(session.log)
        assert session.log.turns.turn is None
        types = [event.type for event in session.log.events]
        assert types.count("turn/start") == types.count("turn/end")
        assert types.count("step/start") == types.count("step/end")
        assert session.path in director.settled
        parent = session.parent
        if parent is not None and director.settled[parent.path].ended_by != "itself":
            settled = director.settled[session.path]
            assert settled.ended_by in ("itself", "abort", "death")


def check_results(runner: TapeRunner, director: Lenient) -> None:
    """What parents were told of their children fits how those ended."""
    for session in sessions(runner):
        if session.parentage is None:
            continue
        parent, _, call_id = session.parentage
        settled = director.settled[session.path]
        (told,) = (
            event
            for event in parent.log.events
            if event.type == "tool/result"
            and event.data["message"]["source"]["callId"] == call_id
        )
        if is_closing_result(told):  # the parent was gone before it was told
            assert director.settled[parent.path].ended_by != "itself"
            continue
        result = told.data["message"]["content"][0]
        if settled.ended_by == "itself":
            assert result["isError"] == (settled.outcome.stop_reason != "completed")
        else:
            assert result["isError"] is True
            assert result["content"], "a death is told of in words"


NAMES = ["spawn_and_fork", "parallel_children", "nested_forks"]


def run(
    name: str, at: int, fault: Callable[[Fault], None], choose: Choose = lambda _: 0
) -> tuple[Fault, Lenient]:
    director = Lenient(scenario(name))
    runner = Fault(director, at, fault, choose)
    runner.run()
    return runner, director


@cache
def scenario(name: str) -> Scenario:
    return scenario_of(TREES[name]())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", [Fault.kill, Fault.silence])
def test_any_worker_dies_at_any_time(
    name: str, how: Callable[[Fault, str], None]
) -> None:
    whole, _ = run(name, 0, nothing)
    recorded = recorded_contents(scenario(name))
    launches = [session.launch for session in sessions(whole)]
    died = 0
    # A large tree is tried at every third moment, and not the same for each worker.
    stride = 1 if len(launches) < 4 else 3
    for first, launch in enumerate(launches, start=1):
        for at in range(first, whole.told + 1, stride):
            runner, director = run(name, at, of_worker(how, launch))
            assert runner.stalled == []
            check_ended(runner, director)
            check_results(runner, director)
            deaths = [
                path
                for path, settled in director.settled.items()
                if settled.ended_by == "death"
            ]
            assert len(deaths) <= 1
            died += len(deaths)
            for path in deaths:
                settled = director.settled[path]
                assert settled.outcome.stop_reason == "error"
                assert "SIGKILL" in str(settled.diagnostic)
            for path, log in runner.logs().items() if not deaths else ():
                assert contents(log) == recorded[path]
    assert died > whole.told / 3 / stride


@pytest.mark.parametrize("name", NAMES)
def test_the_children_of_the_dead_are_ended(name: str) -> None:
    for at in range(1, 400):
        runner, director = run(name, at, lambda r: r.kill("w0"), seeded(at))
        check_ended(runner, director)
        check_results(runner, director)
        if director.settled["/"].ended_by == "itself":
            break
        for path, settled in director.settled.items():
            if path != "/":
                assert settled.ended_by in ("itself", "abort")
    assert at > 20


@pytest.mark.parametrize("name", NAMES)
def test_an_abort_at_any_time(name: str) -> None:
    whole, _ = run(name, 0, nothing)
    for at in range(1, whole.told + 1):
        runner, director = run(name, at, Fault.abort, seeded(at))
        assert runner.stalled == []
        check_ended(runner, director)
        check_results(runner, director)
        kinds = {settled.ended_by for settled in director.settled.values()}
        assert kinds <= {"itself", "abort"}
        if at < whole.told / 2:
            assert director.settled["/"].ended_by == "abort"


def test_an_abort_before_anything_happened() -> None:
    director = Lenient(scenario("plain_answer"))
    runner = TapeRunner(director)
    runner._obey(runner.hub.start(runner._now()))
    runner._tell_hub(Abort("at once"))
    runner._tell_hub(Abort("and again"))
    while not runner._is_done:
        name = min(name for name, line in runner._lines.items() if line)
        runner._happen(runner._lines[name].popleft())
    check_ended(runner, director)
    assert director.settled["/"].ended_by == "abort"
    assert director.settled["/"].diagnostic == "at once (SIGKILL)"


def test_every_worker_dies_at_once() -> None:
    def kill_all(runner: Fault) -> None:
        for launch in list(runner._workers):
            runner.kill(launch)

    for at in range(1, 150, 2):
        runner, director = run("nested_forks", at, kill_all, seeded(at))
        check_ended(runner, director)
        check_results(runner, director)


# --- what a strict replay makes of it ------------------------------------------


@pytest.mark.parametrize("at", range(2, 70))
def test_a_death_is_told_of_as_a_lost_worker(at: int) -> None:
    director = ReplayDirector(scenario("spawn_and_fork"))
    runner = Fault(director, at, lambda r: r.kill("w1"))
    runner.run()
    director.close()
    problems = director.ledger.problems
    first = [(p.kind, p.path) for p in problems[:1]]
    assert first in ([], [("worker-lost", "/t2s1b1")])
    if problems:
        assert "SIGKILL" in problems[0].message
        # What a live parent was told of it was not recorded.
        assert ("log-differs", "/") in [(p.kind, p.path) for p in problems]


def test_a_recorded_death_at_another_place_is_a_lost_worker() -> None:
    director = ReplayDirector(scenario("crashed_tool"))
    runner = Fault(director, 5, lambda r: r._exit("w0", Exit(1, None)))
    runner.run()
    director.close()
    (problem,) = director.ledger.problems
    assert (problem.kind, problem.path) == ("worker-lost", "/")
    assert "exit code 1" in problem.message


def test_a_worker_that_is_killed_twice_is_gone_once() -> None:
    def twice(runner: Fault) -> None:
        runner.kill("w0")
        runner.kill("w0")
        lines = runner._lines["from w0"]
        assert sum(isinstance(each, Exited) for each in lines) == 1

    runner, director = run("plain_answer", 4, twice)
    check_ended(runner, director)
