"""A parent with very many children: the work for it grows as their number does.

It is counted, not timed: each further child must cost as many lines of Python as the
ones before it, where a loop within a loop would cost more and more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pytest

from nestling.harness import pairing as pairing_module
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import build_scenario
from nestling.harness.support import hindrances
from nestling.harness.tool_calls import ToolCall
from nestling.session import digest as digest_module
from nestling.session.digest import seed_digest
from nestling.session.errors import UnreadableError
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject
from nestling.session.reading import Recording
from support.growth import lines_of
from support.logs import Ask, Log, recordings

MANY: Final = 800


def family(
    count: int, tool: str, *, is_stated: bool = True, prompt: str = "work {}"
) -> Sequence[Recording]:
    """A parent that delegated so many times in one message, and its children."""
    root = Log("root").answered("hi", "hello")
    asks = [Ask(prompt.format(n), tool) for n in range(count)]
    root.turn("go")
    length = len(root.rows) - 3
    seed = root.recording().events[:length]
    digest = seed_digest(seed)
    is_fork = tool == "subagent_fork"
    children = []
    for n, ask in enumerate(asks):
        stated = {"turn": 2, "step": 1, "block": n + 1}
        header: JsonObject = {}
        if is_stated:
            header["spawnedBy"] = {**stated, "context": "fork" if is_fork else "spawn"}
        if is_fork:
            header |= {"seedLength": length, "seedDigest": digest}
        child = root.child(f"c{n}", n, **header)
        if is_fork:
            child.rows = root.rows[:length]
            child._turn = 1
            child.add("session/end-seed", {})
        children.append(child.answered(ask.prompt, "done"))
    root.ask(*asks).say("done").end()
    return recordings(root, *children)


FAMILIES: dict[str, Callable[[int], Sequence[Recording]]] = {
    "forks": lambda count: family(count, "subagent_fork"),
    "spawns": lambda count: family(count, "subagent"),
    "silent forks": lambda count: family(count, "subagent_fork", is_stated=False),
    "silent spawns": lambda count: family(count, "subagent", is_stated=False),
    "silent twins": lambda count: family(
        count, "subagent", is_stated=False, prompt="work"
    ),
}


def work(tree: Sequence[Recording]) -> None:
    """All that is done before a replay starts."""
    scenario = build_scenario("many", tree)
    assert hindrances(scenario) == []
    director = ReplayDirector(scenario)
    assert len(director.ledger.accounts) == len(tree)


def growth(act: Callable[[int], object]) -> float:
    """How much more a further child costs among many than among few."""
    few, more, many = (lines_of(partial(act, count)) for count in (60, 120, 240))
    return ((many - more) / 120) / ((more - few) / 60)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_further_child_is_no_more_work_than_the_first(name: str) -> None:
    trees = {count: FAMILIES[name](count) for count in (60, 120, 240)}
    work(trees[60])  # what is made once is made
    assert growth(lambda count: work(trees[count])) < 1.01


def test_the_smallest_loop_within_a_loop_would_be_seen() -> None:
    """Half a line for each pair, in the work that is done for the tree above."""
    tree = {count: FAMILIES["spawns"](count) for count in (60, 120, 240)}

    def act(count: int) -> None:
        work(tree[count])
        for n in range(count):
            for _ in range(n):
                pass

    assert growth(act) > 1.02


def counted(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> Callable[[], int]:
    """Count the calls of a function."""
    function = getattr(owner, name)
    calls: list[None] = []

    def call(*args: Any) -> Any:
        calls.append(None)
        return function(*args)

    monkeypatch.setattr(owner, name, call)
    return lambda: len(calls)


def test_what_800_forks_inherit_is_hashed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = family(MANY, "subagent_fork")
    hashed = counted(monkeypatch, digest_module, "_line")
    build_scenario("many", tree)
    assert hashed() == tree[1].header.seed_length == 8


def test_forks_of_many_lengths_are_hashed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However they are ordered by age."""
    root = Log("root")
    children = []
    for n in range(20):
        root.answered("hi", "hello").turn("go").ask(Ask(f"{n}", "subagent_fork"))
        root.say("x").end()
    events = root.recording().events
    ends = [event.seq + 1 for event in events if event.type == "turn/end"]
    for n, length in enumerate(ends[0::2]):
        place = {"turn": 2 * n + 2, "step": 1, "block": 1, "context": "fork"}
        child = root.child(f"c{n}", 100 - n, seedLength=length, spawnedBy=place)
        child.rows = [event.row() for event in events[:length]]
        child._turn = 2 * n + 1
        child.digested().add("session/end-seed", {})
        children.append(child.answered(f"{n}", "done"))
    tree = recordings(root, *children)
    hashed = counted(monkeypatch, digest_module, "_line")
    build_scenario("many", tree)
    assert hashed() == max(ends[0::2])


def test_a_child_that_inherited_something_else_is_hashed_itself() -> None:
    """Values that Python takes for equal and a digest does not."""
    root = Log("root").add("note", {"n": 1}).answered("hi", "hello")
    child = root.fork("child", 1).digested().answered("work", "done")
    child.rows[0] = {**child.rows[0], "data": {"n": True}}
    root.turn("go").ask(Ask("work", "subagent_fork")).say("done").end()
    with pytest.raises(
        UnreadableError, match=r"seedDigest is \w+, but its first 9 events"
    ):
        build_scenario("tree", recordings(root, child))


def test_the_calls_of_800_silent_children_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = family(MANY, "subagent", is_stated=False)
    parsed = counted(monkeypatch, ToolCall, "_parsed")
    asked = counted(monkeypatch, pairing_module._Family, "_may_have_started")
    scenario = build_scenario("many", tree)
    # Once for the prompt, once for whether it was to run in the background.
    assert (parsed(), asked()) == (2 * MANY, MANY)
    assert [each.path for each in scenario.sessions[1:]] == [
        f"/t2s1b{n + 1}" for n in range(MANY)
    ]


def test_the_parent_of_800_children_is_read_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree = family(MANY, "subagent")
    taken: list[Event] = []
    collector = sys.modules["nestling.harness.tool_calls"]._Collector
    take = collector.take

    def noted(self: Any, event: Event) -> None:
        taken.append(event)
        take(self, event)

    monkeypatch.setattr(collector, "take", noted)
    work(tree)
    own = sum(len(recording.events) for recording in tree)
    assert len(taken) < 4 * own
