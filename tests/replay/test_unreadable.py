"""Recordings that cannot be replayed: one sentence when they are loaded or planned.

A worker must never be the first to notice: there it would be a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compose.trees import TREES, root_with_turn
from nestling.harness.compose import Composer, Tree, text
from nestling.harness.replay_director import ReplayDirector
from nestling.harness.scenario import build_scenario
from nestling.harness.scenario_io import load_scenario
from nestling.harness.support import hindrances
from nestling.session.chunk import is_finish
from nestling.session.errors import UnreadableError
from nestling.session.jsontext import Json, JsonObject
from nestling.session.reading import Recording
from support.logs import Ask, Log, recordings, text_chunks, write_folder
from support.replays import edited, once, recordings_of, replayed

Write = Callable[[Log], Log]


def header(**names: Json) -> Write:
    """Log a request header in the first turn."""
    config = {"provider": "p", "model": "m", **names}
    data = {"header": {"config": config}, "reason": "initial"}
    return lambda log: log.turn("hi").add("request/header", data).say("x").end()


def finished(reason: JsonObject) -> Write:
    """End a call by another reason."""
    chunks: list[JsonObject] = [
        *text_chunks("x", None),
        {"type": "finish", "reason": reason},
    ]
    said: list[JsonObject] = [{"type": "text", "text": "x"}]
    return lambda log: log.turn("hi").chunks(chunks).message(said).end()


def aborted(cause: Json, *, in_call: bool) -> Write:
    """Abort a turn by another cause, in the middle of a call or after it."""
    chunks = text_chunks("x", None if in_call else "stop")
    said: list[JsonObject] = [{"type": "text", "text": "x"}]
    return lambda log: (
        log.turn("hi").chunks(chunks).message(said).end("aborted", reason=cause)
    )


BAD: list[tuple[Write, str]] = [
    (header(provider="p" * 257), "config.provider must be a string of at most 256"),
    (header(model="m" * 100_000), 'whole characters, found "mmm'),
    (header(model="\ud800"), 'whole characters, found "\\ud800"'),
    (header(provider="x\udfffy"), 'whole characters, found "x\\udfffy"'),
    (header(provider=None), "whole characters, found null"),
    (finished({}), "reason of a finish chunk must have a kind"),
    (finished({"kind": 1}), "reason of a finish chunk must have a kind"),
    (finished({"kind": None, "failure": {}}), "must have a kind"),
    (aborted("user", in_call=True), "the cause of an abort must be an object"),
    (aborted("user", in_call=False), "the cause of an abort must be an object"),
    (aborted(None, in_call=True), "the cause of an abort must be an object"),
    (aborted(["user"], in_call=False), 'found {"kind":"aborted","reason":["user"]}'),
]


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(UnreadableError) as caught:
        act()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    message.encode()  # no half of a character is left in it
    return message


@pytest.mark.parametrize(("write", "problem"), BAD)
def test_a_recording_that_no_worker_should_see(
    write: Write, problem: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "bad", write(Log("root")))
    found = refusal(lambda: ReplayDirector(load_scenario(folder)))
    message = found.removeprefix(f"{folder}/")
    assert message.startswith("session.jsonl line ")
    assert problem in message
    log = write(Log("root"))
    assert refusal(lambda: replayed(build_scenario("x", recordings(log)))) == message


@pytest.mark.parametrize(("write", "problem"), BAD)
def test_a_child_that_no_worker_should_see(write: Write, problem: str) -> None:
    root = Log("root").turn("go").ask(Ask("hi", result="x")).say("done").end()
    child = write(root.child("child", 1))
    tree = recordings(root, child)
    message = refusal(lambda: replayed(build_scenario("x", tree)))
    assert message.startswith("session.1.jsonl line ")
    assert problem in message


def replays(recording: Recording) -> bool:
    scenario = build_scenario("good", [recording])
    return hindrances(scenario) == [] and replayed(scenario).problems == []


@pytest.mark.parametrize(
    ("provider", "model"), [("p" * 256, "😀" * 256), ("", ""), ("p/q", "\x00")]
)
def test_names_that_are_still_replayed(provider: str, model: str) -> None:
    root = Composer("root", 1000, provider=provider, model=model)
    root.turn("Begin.")
    root.says(text("OK"))
    root.end()
    (recording,) = recordings_of(Tree(root))
    assert replays(recording)


@pytest.mark.parametrize("kind", ["", "none-that-is-known", "\ud800"])
def test_any_kind_of_finish_is_replayed(kind: str) -> None:
    def change(content: JsonObject) -> JsonObject:
        if content["type"] == "assistant/chunk" and is_finish(content["data"]["chunk"]):
            content["data"]["chunk"]["reason"] = {"kind": kind}
        return content

    (recording,) = recordings_of(TREES["plain_answer"]())
    assert replays(edited(recording, change))


@pytest.mark.parametrize("cause", [{}, {"kind": "user", "more": [1]}, {"kind": None}])
@pytest.mark.parametrize("chunks", [0, 3])
def test_any_cause_of_an_abort_that_is_an_object(
    cause: JsonObject, chunks: int
) -> None:
    root = root_with_turn()
    root.starts_saying(text("Starting a task"), chunks=chunks)
    root.abort()
    (recording,) = recordings_of(Tree(root))

    def change(data: JsonObject) -> None:
        data["reason"]["reason"] = cause

    assert replays(edited(recording, once("turn/end", change)))


def test_an_override_whose_answer_does_not_finish_for_a_reason(
    tmp_path: Path,
) -> None:
    folder = write_folder(tmp_path / "bad", Log("root").answered("hi", "x"))
    entry = '{"kind":"chunks","chunks":[{"type":"finish","reason":{}}]}'
    (folder / "replay.override.json").write_text(f"[{entry}]")
    message = refusal(lambda: load_scenario(folder))
    assert "reason of a finish chunk must have a kind" in message


# --- what only looks wrong -----------------------------------------------------

SOURCES: list[Json] = [None, True, 7, 0.5, "model", [], [{}], {}, {"provider": 1}]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("has_header", [False, True])
def test_a_message_may_have_any_source(source: Json, has_header: bool) -> None:
    """It cannot come out as recorded, but nobody stumbles over it."""
    log = Log("root")
    if has_header:
        config = {"config": {"provider": "p", "model": "m"}}
        log.add("request/header", {"header": config})
    log.answered("hi", "x").answered("again", "y")
    for row in log.rows:
        if row["type"] == "assistant/message":
            row["data"]["message"]["source"] = source
    replay = replayed(build_scenario("odd", recordings(log)))
    assert replay.kinds == [("log-differs", "/")]
    assert "assistant/message: data.message.source" in replay.problems[0].message


@pytest.mark.parametrize("source", SOURCES)
def test_a_prompt_may_have_any_source(source: Json) -> None:

    def change(content: JsonObject) -> JsonObject:
        if content["type"] == "user/message":
            content["data"]["source"] = source
        return content

    tree = [
        edited(each, change) for each in recordings_of(TREES["parallel_children"]())
    ]
    bare = [
        each._replace(header=each.header.with_fields(seedDigest=None)) for each in tree
    ]
    assert replayed(build_scenario("odd", bare)).problems == []
