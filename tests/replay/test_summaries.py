"""Summaries: their calls are answered from the script and compared like any other."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from nestling.harness.compose import Composer, Tree, text
from nestling.harness.scenario import Scenario
from nestling.harness.scripts import ScriptCall
from nestling.session.jsontext import JsonObject
from support.replays import replayed, scenario_of

SUMMARY = "They greeted each other."
USAGE: JsonObject = {"inputTokens": 9, "outputTokens": 4}


@pytest.fixture
def scenario() -> Scenario:
    """A session that condensed its first turn in the second."""
    root = Composer("root", 1000)
    root.turn("Hello.")
    root.says(text("Hello."))
    root.end()
    root.turn("Go on.")
    first = next(e.seq for e in root.log.events if e.type == "user/message")
    root.add("compaction/start", {"compactionId": "c", "turn": 2})
    told = {"rawOutput": [{"type": "text", "text": SUMMARY}], "usage": USAGE}
    place = {"shadowedRange": {"start": first, "end": first}, "shadowedSeqs": [first]}
    summary = {"compactionId": "c", "summary": told["rawOutput"], **told, **place}
    root.add("compaction/summary", {**summary, "llmStreamCall": True})
    root.add("compaction/end", {"compactionId": "c", "turn": 2})
    root.says(text("Gladly."))
    root.end()
    return scenario_of(Tree(root))


def with_answer(scenario: Scenario, chunks: Sequence[JsonObject]) -> Scenario:
    root = scenario.root
    script = [
        msgspec.structs.replace(
            call, entry=msgspec.structs.replace(call.entry, chunks=tuple(chunks))
        )
        if call.purpose == "summary"
        else call
        for call in root.script
    ]
    changed = msgspec.structs.replace(root, script=tuple(script))
    return Scenario(scenario.name, (changed,))


def summary_of(scenario: Scenario) -> ScriptCall:
    (call,) = (call for call in scenario.root.script if call.purpose == "summary")
    return call


def test_a_summary_is_a_call_of_its_own(scenario: Scenario) -> None:
    replay = replayed(scenario)
    assert replay.problems == []
    assert replay.account("/").served == len(scenario.root.script) == 3


def test_another_answer_is_noticed(scenario: Scenario) -> None:
    ends = [dict(chunk) for chunk in summary_of(scenario).entry.chunks]
    for chunk in ends:
        if chunk["type"] == "block-end":
            chunk["block"] = {"type": "text", "text": "Something else."}
    replay = replayed(with_answer(scenario, ends))
    assert replay.kinds == [("log-differs", "/")]
    assert "compaction/summary: data.rawOutput[0].text" in replay.problems[0].message


def test_no_answer_is_noticed(scenario: Scenario) -> None:
    replay = replayed(with_answer(scenario, []))
    assert replay.kinds == [("log-differs", "/")]


def test_another_usage_is_noticed(scenario: Scenario) -> None:
    chunks = [c for c in summary_of(scenario).entry.chunks if c["type"] != "usage"]
    replay = replayed(with_answer(scenario, chunks))
    assert replay.kinds == [("log-differs", "/")]
    assert "data.usage is absent" in replay.problems[0].message
