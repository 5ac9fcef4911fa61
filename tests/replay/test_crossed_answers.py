"""A worker that got a sibling's answer is caught, even where nobody folds it.

Chunks are logged by naming them, so the hub writes what it sent and not what arrived.
Where a message follows, its content tells; where the call fails, is cut or crashes,
only the checksum of what arrived does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from compose.trees import root_with_fact
from nestling.driver.instructions import Send
from nestling.harness.compose import Composer, Tree, spawn_call, text
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import Scenario
from nestling.harness.tape_runner import Choose, TapeRunner
from nestling.session.jsontext import dumps, loads
from nestling.wire.messages import Chunks
from support.replays import replayed, scenario_of, seeded

FIRST, SECOND = "/t2s1b0", "/t2s1b1"
ANSWERS: Final = {FIRST: "the left one", SECOND: "that is mine"}
"""Both are cut into as many pieces."""


def fails(child: Composer, answer: str) -> None:
    child.fails("SERVER", text(answer))
    child.end()


def crashes(child: Composer, answer: str) -> None:
    child.starts_saying(text(answer), chunks=3)
    child.crash()


def is_cut(child: Composer, answer: str) -> None:
    child.starts_saying(text(answer), chunks=3)
    child.abort("parent")


def says(child: Composer, answer: str) -> None:
    child.says(text(answer))
    child.end()


def twins(ending: Callable[[Composer, str], None]) -> Scenario:
    """Two children at one time, whose calls differ in what they stream."""
    root = root_with_fact()
    calls = root.says(*(spawn_call("try", "Same.") for _ in ANSWERS))
    root.calls(*calls)
    children = [root.spawn(call) for call in calls]
    for child, answer in zip(children, ANSWERS.values(), strict=True):
        child.turn()
        ending(child, answer)
    for child in children:
        root.returns(child)
    root.step()
    root.says(text("Well."))
    root.end()
    return scenario_of(Tree(root))


class Listening(TapeRunner):
    """Keeps what each session was served, message by message."""

    def __init__(self, director: ReplayDirector) -> None:
        super().__init__(director)
        self.served: dict[tuple[str, int], bytes] = {}

    def _deliver(self, send: Send) -> None:
        if isinstance(send.message, Chunks):
            path = self.hub.tree.of_launch(send.launch).path
            self.served[path, send.message.first] = send.body
        super()._deliver(send)


class Crossed(TapeRunner):
    """Hands each of two sessions what was meant for the other."""

    def __init__(
        self, director: ReplayDirector, choose: Choose, served: dict[str, bytes]
    ) -> None:
        super().__init__(director, choose)
        self._served = served

    def _deliver(self, send: Send) -> None:
        path = self.hub.tree.of_launch(send.launch).path
        if isinstance(send.message, Chunks) and path in self._served:
            send = send._replace(body=self._served[path])
        super()._deliver(send)


def served_to(scenario: Scenario) -> dict[str, bytes]:
    """What each of the two is served; it travels in one message."""
    runner = Listening(ReplayDirector(scenario))
    runner.run()
    served = {path: runner.served[path, 0] for path in ANSWERS}
    counts = [len(loads(body)) for body in served.values()]
    assert counts[0] == counts[1] > 2, "else the count tells, and not the checksum"
    return served


@pytest.mark.parametrize("ending", [fails, crashes, is_cut, says])
def test_crossed_answers_are_caught(ending: Callable[[Composer, str], None]) -> None:
    scenario = twins(ending)
    assert replayed(scenario).problems == []
    served = served_to(scenario)
    crossed = {FIRST: served[SECOND], SECOND: served[FIRST]}
    for seed in range(20):
        director = ReplayDirector(scenario)
        runner = Crossed(director, seeded(seed), crossed)
        runner.run()
        director.close()
        found = [(problem.kind, problem.path) for problem in director.ledger.problems]
        lost = [("worker-lost", FIRST), ("worker-lost", SECOND)]
        assert found == [*lost, ("log-differs", "/")]
        for problem in director.ledger.problems[:2]:
            assert "protocol: call 0: what arrived as chunks 0 to" in problem.message
            assert "is not what was sent" in problem.message


@pytest.mark.parametrize("ending", [fails, crashes, is_cut, says])
def test_the_same_bytes_by_another_way_are_right(
    ending: Callable[[Composer, str], None],
) -> None:
    scenario = twins(ending)
    director = ReplayDirector(scenario)
    Crossed(director, seeded(0), served_to(scenario)).run()
    director.close()
    assert director.ledger.problems == []


def test_chunks_that_say_the_same_in_other_bytes() -> None:
    """It is compared what crossed the wire, not what it means."""
    scenario = twins(fails)
    served = served_to(scenario)
    spaced = dumps(loads(served[FIRST])).replace(b'"index":', b'"index": ')
    director = ReplayDirector(scenario)
    Crossed(director, seeded(0), {FIRST: spaced}).run()
    assert director.ledger.problems[0].kind == "worker-lost"
