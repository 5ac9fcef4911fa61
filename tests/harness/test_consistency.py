"""A recorded call whose deltas and blocks say different things."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from compose.trees import TREES
from nestling.harness.consistency import drifts
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import build_scenario
from nestling.session.jsontext import JsonObject
from support.replays import edited, once, recordings_of, replayed, scenario_of
from support.session_logs import call_block, delta, finish, text_block


def end(block: JsonObject, index: int = 0) -> JsonObject:
    return {"type": "block-end", "index": index, "block": block}


def written(text: str, index: int = 0) -> JsonObject:
    kind = {"type": "tool-call-delta", "index": index, "id": "c"}
    return {**kind, "argumentsDelta": text}


REASONING = {"type": "reasoning", "text": "hm"}
START = {"type": "block-start", "index": 0, "blockType": "text"}

AGREE: list[Sequence[JsonObject]] = [
    [],
    [finish()],
    [delta("never closed")],
    [end(text_block("without deltas"))],
    [START, delta("a"), delta("b"), end(text_block("ab")), finish()],
    [delta("", 0), end(text_block(""))],
    [delta("hm", 0, "reasoning-delta"), end(REASONING)],
    [written("{"), written("}"), end(call_block("c"))],
    # Two halves of a character that were cut apart.
    [delta("\ud83d"), delta("\ude00"), end(text_block("😀"))],
    [delta("\ud83d"), end(text_block("\ud83d"))],
    # Blocks side by side, and an index that is used again.
    [delta("a", 0), delta("b", 1), end(text_block("b"), 1), end(text_block("a"))],
    [delta("a"), end(text_block("a")), delta("b"), end(text_block("b"))],
    # A name comes once, or not at all; an end that was not announced; one that is cut.
    [written("{"), {**written("}"), "name": "bash"}, end(call_block("c"))],
    [{**written("{}"), "id": "", "name": ""}, end(call_block("c"))],
    [end(call_block("c")), finish("tool-calls")],
    [end(call_block("c")), finish("stop")],
    [end(text_block("a")), finish("tool-calls")],
    [{**START, "blockType": "tool-call"}, written("{"), finish("tool-calls")],
    [end(call_block("c")), finish("max-tokens")],
    [delta("half"), finish("max-tokens")],
    [end(call_block("c")), finish("error")],
    [end(call_block("c"))],
    # A block of another kind says nothing that deltas could add up to.
    [delta("a"), end({"type": "image", "data": "x"})],
    [delta("a"), end({"type": "text", "text": 7})],
]
DIFFER: list[tuple[Sequence[JsonObject], list[str]]] = [
    ([delta("a"), end(text_block("b"))], ['block 0: the deltas add up to "a", its end says "b"']),
    ([delta("a"), end(text_block(""))], ['block 0: the deltas add up to "a", its end says ""']),
    ([delta("ab"), delta("c"), end(text_block("ab"))], ['block 0: the deltas add up to "abc", its end says "ab"']),
    ([delta("h", 0, "reasoning-delta"), end(REASONING)], ['block 0: the deltas add up to "h", its end says "hm"']),
    ([written("{"), end(call_block("c"))], ['block 0: the deltas add up to "{", its end says "{}"']),
    ([delta("\ud83d"), end(text_block("😀"))], ['block 0: the deltas add up to "\\ud83d", its end says "😀"']),
    ([{**START, "blockType": "reasoning"}, delta("a"), end(text_block("a"))], ['block 0: its block-start has the type "reasoning", its end "text"']),
    ([{**START, "blockType": "x"}, end({"type": "image"})], ['block 0: its block-start has the type "x", its end "image"']),
    ([delta("a"), delta("b", 0, "reasoning-delta"), end(text_block("ab"))], ['block 0: its reasoning-delta has the type "reasoning", its end "text"']),
    ([written("{"), written("}"), end(call_block("d"))], ['block 0: its tool-call-delta has the id "c", its end "d"']),
    ([{**written("{}"), "name": "sh"}, end(call_block("c"))], ['block 0: its tool-call-delta has the name "sh", its end "bash"']),
    (
        [delta("a", 0), delta("b", 3), end(text_block("x"), 3), end(text_block("y"))],
        ['block 3: the deltas add up to "b", its end says "x"', 'block 0: the deltas add up to "a", its end says "y"'],
    ),
]  # fmt: skip


@pytest.mark.parametrize("chunks", AGREE)
def test_calls_that_say_one_thing(chunks: Sequence[JsonObject]) -> None:
    assert list(drifts(chunks)) == []


@pytest.mark.parametrize(("chunks", "found"), DIFFER)
def test_calls_that_say_two_things(
    chunks: Sequence[JsonObject], found: list[str]
) -> None:
    assert list(drifts(chunks)) == found


def test_texts_of_any_length_are_shown_shortened() -> None:
    (found,) = drifts([delta("a" * 100_000), end(text_block("b" * 100_000))])
    assert len(found) < 350


def with_changed(
    name: str, path: str, kind: str, change: Callable[[JsonObject], None]
) -> ReplayDirector:
    """Replay a recording in which the last chunk of a kind was changed by itself."""
    recordings = recordings_of(TREES[name]())
    scenario = build_scenario("was", recordings)
    recorded = scenario.by_path[path].recording
    chunks = [e.data["chunk"] for e in recorded.events if e.type == "assistant/chunk"]
    last = max(n for n, chunk in enumerate(chunks) if chunk["type"] == kind)

    def change_chunk(data: JsonObject) -> None:
        change(data["chunk"])

    changed = edited(recorded, once("assistant/chunk", change_chunk, last))
    tree = [changed if each.name == recorded.name else each for each in recordings]
    replay = replayed(build_scenario("edited", tree))
    assert replay.runner.stalled == []
    return replay.director


@pytest.mark.parametrize(("path", "call"), [("/", 4), ("/t2s1b1", 1), ("/t2s2b1", 1)])
def test_a_delta_that_was_changed_alone_is_noticed(path: str, call: int) -> None:
    """Its message, and all that a replay compares, is as it was."""

    def change(chunk: JsonObject) -> None:
        chunk["text"] += "!"

    director = with_changed("spawn_and_fork", path, "text-delta", change)
    (problem,) = director.ledger.problems
    assert (problem.kind, problem.path) == ("drift", path)
    assert problem.message.startswith(f"recorded call {call}, block 0: the deltas add")
    account = director.ledger.accounts[path]
    assert not account.is_different, "its log came out as recorded"


CHANGES: dict[str, JsonObject] = {
    "block-start": {"blockType": "reasoning"},
    "tool-call-delta": {"id": "another"},
}


@pytest.mark.parametrize("kind", [*CHANGES, "name"])
def test_a_chunk_that_was_changed_alone_is_noticed(kind: str) -> None:
    change = CHANGES.get(kind, {"name": "another"})
    chunk = kind if kind in CHANGES else "tool-call-delta"
    director = with_changed(
        "spawn_and_fork", "/", chunk, lambda chunk: chunk.update(change)
    )
    kinds = {(problem.kind, problem.path) for problem in director.ledger.problems}
    assert ("drift", "/") in kinds


@pytest.mark.parametrize("name", TREES)
def test_no_composed_call_drifts(name: str) -> None:
    for session in scenario_of(TREES[name]()).sessions:
        for call in session.script:
            assert list(drifts(call.entry.chunks)) == []
