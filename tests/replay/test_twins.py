"""Siblings with equal requests: only their place says which answer is whose."""

from __future__ import annotations

import pytest

from compose.trees import finished, root_with_fact
from nestling.harness.compose import Tree, fork_call, spawn_call, text
from nestling.harness.scenario import Scenario
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import outcome
from support.replays import Replay, live_contents, replayed, scenario_of, seeded

FIRST, SECOND = "/t2s1b1", "/t2s1b2"


def twins(tool: str, first: str, second: str) -> Scenario:
    """Two children that differ in nothing but what the model answered them."""
    call = {"spawn": spawn_call, "fork": fork_call}[tool]
    root = root_with_fact()
    calls = root.says(text("Both."), call("twin", "Same."), call("twin", "Same."))
    root.calls(*calls)
    children = [getattr(root, tool)(each) for each in calls]
    for child, answer in zip(children, (first, second), strict=True):
        finished(child, answer)
    for child in children:
        root.returns(child)
    root.step()
    root.says(text("Done."))
    root.end()
    return scenario_of(Tree(root))


def outputs(replay: Replay) -> dict[str, str]:
    """What each session came to, told from its live log."""
    texts = {}
    for session in replay.runner.hub.tree:
        own = session.log.events[session.seed_length :]
        texts[session.path] = outcome(own).text
    return texts


def result_texts(replay: Replay) -> list[str]:
    """What the parent was told, in the order of its log."""
    results = [e for e in live_contents(replay)["/"] if e["type"] == "tool/result"]
    blocks: list[JsonObject] = [e["data"]["message"]["content"][0] for e in results]
    return [block["content"][0]["text"] for block in blocks]


@pytest.mark.parametrize("tool", ["spawn", "fork"])
def test_each_twin_says_what_it_said(tool: str) -> None:
    recorded = twins(tool, "ALPHA", "BETA")
    for seed in range(40):
        replay = replayed(recorded, seeded(seed))
        assert replay.problems == []
        assert outputs(replay) == {"/": "Done.", FIRST: "ALPHA", SECOND: "BETA"}
        assert result_texts(replay) == ["ALPHA", "BETA"]


@pytest.mark.parametrize("tool", ["spawn", "fork"])
def test_swapped_answers_swap_exactly_the_outputs(tool: str) -> None:
    one = replayed(twins(tool, "ALPHA", "BETA"), seeded(3))
    other = replayed(twins(tool, "BETA", "ALPHA"), seeded(3))
    assert one.problems == other.problems == []
    assert outputs(other) == {"/": "Done.", FIRST: "BETA", SECOND: "ALPHA"}
    assert result_texts(other) == ["BETA", "ALPHA"]
    differing = {
        path: [
            (mine["type"], mine["data"].get("chunk", {}).get("type"))
            for mine, theirs in zip(logs, live_contents(other)[path], strict=False)
            if mine != theirs
        ]
        for path, logs in live_contents(one).items()
    }
    # The deltas need not be as many; all that is told of an answer is told of here.
    kinds = {kind for logs in differing.values() for kind, _ in logs}
    assert {"assistant/chunk", "assistant/message", "tool/result"} <= kinds
    assert [kind for kind, _ in differing["/"]] == ["tool/result", "tool/result"]


def test_twin_forks_inherit_equal_seeds() -> None:
    replay = replayed(twins("fork", "ALPHA", "BETA"))
    first, second = (replay.runner.logs()[path] for path in (FIRST, SECOND))
    length = replay.account(FIRST).seed_length
    assert length
    assert length == replay.account(SECOND).seed_length
    assert [e.row() for e in first[:length]] == [e.row() for e in second[:length]]
    # Neither has its own delegation before its eyes (A5, A6).
    assert not any(e.type == "tool/call" for e in first[:length])
