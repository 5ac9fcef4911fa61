"""Loading scenarios: what is accepted, and every kind of bad input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nestling.harness.scenario import build_scenario
from nestling.harness.scenario_io import load_scenario
from nestling.session.digest import seed_digest
from nestling.session.errors import UnreadableError
from support.logs import Ask, Log, recordings, text_chunks, write_folder


def _refusal(path: Path) -> str:
    with pytest.raises(UnreadableError) as caught:
        load_scenario(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def _tree() -> tuple[Log, Log, Log]:
    root = Log("root").answered("remember", "ok")
    fork = root.fork("fork", 2).answered("recall", "it").digested()
    root.turn("go").ask(Ask("work"), Ask("recall", "subagent_fork")).say("done").end()
    return root, Log("child", 1, parentSession="root").answered("work", "ok"), fork


# --- accepted ------------------------------------------------------------------


def test_a_folder(tmp_path: Path) -> None:
    scenario = load_scenario(write_folder(tmp_path / "mixed", *_tree()))
    assert scenario.name == "mixed"
    assert [(s.id, s.path, s.kind) for s in scenario.sessions] == [
        ("root", "/", "root"),
        ("child", "/t2s1b1", "spawn"),
        ("fork", "/t2s1b2", "fork"),
    ]
    fork = scenario.by_path["/t2s1b2"]
    assert fork.seed_length == 8
    assert fork.own_events[0].type == "session/end-seed"


def test_files_of_other_kinds_are_ignored(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, *_tree())
    (folder / "session.expected.jsonl").write_text("{")
    (folder / "input.json").write_text("{")
    assert len(load_scenario(folder).sessions) == 3


def test_a_single_root_log(tmp_path: Path) -> None:
    write_folder(tmp_path, *_tree())
    (session,) = load_scenario(tmp_path / "session.jsonl").sessions
    assert (session.path, session.kind) == ("/", "root")


def test_a_single_log_of_a_child_has_no_path(tmp_path: Path) -> None:
    write_folder(tmp_path, *_tree())
    (session,) = load_scenario(tmp_path / "session.2.jsonl").sessions
    assert (session.path, session.kind, len(session.script)) == (None, "fork", 1)
    assert session.is_foreign


def test_a_log_that_is_only_a_header(tmp_path: Path) -> None:
    scenario = load_scenario(write_folder(tmp_path, Log("s")))
    assert scenario.root.script == ()


def test_loose_logs_have_an_order_and_no_paths(tmp_path: Path) -> None:
    logs = [Log("r", 9), Log("B", 2), Log("same", 1, seedLength=0), Log("a", 2)]
    scenario = load_scenario(write_folder(tmp_path, *logs, Log("same", 1)))
    found = [(s.id, s.path, s.kind) for s in scenario.sessions]
    assert found == [
        ("r", None, "root"),
        ("same", None, "spawn"),
        ("same", None, "spawn"),
        ("a", None, "spawn"),
        ("B", None, "spawn"),
    ]
    assert scenario.by_id["same"] is scenario.sessions[1]


def test_the_override_is_the_roots(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, *_tree())
    (folder / "replay.override.json").write_text('[{"kind": "hang"}]')
    kinds = [
        [call.entry.kind for call in session.script]
        for session in load_scenario(folder).sessions
    ]
    assert kinds == [["hang"], ["chunks"], ["chunks"]]


# --- folders and files ---------------------------------------------------------


def test_what_is_not_there(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in _refusal(tmp_path / "none")
    assert "session.jsonl" in _refusal(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    assert "no such" in _refusal(tmp_path / "file" / "below")
    assert "null" in _refusal(tmp_path / "a\0b")


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "session.jsonl").write_bytes(b"\n \n")
    assert "session.jsonl is empty" in _refusal(tmp_path)
    assert "session.jsonl is empty" in _refusal(tmp_path / "session.jsonl")


def test_only_children(tmp_path: Path) -> None:
    (tmp_path / "session.1.jsonl").write_bytes(Log("s").text())
    assert "expected session.jsonl" in _refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("session.2.jsonl", "session.1.jsonl"),
        ("session.0.jsonl", "session.0.jsonl"),
        ("session.01.jsonl", "session.01.jsonl"),
        (f"session.{'9' * 50}.jsonl", "9999"),
    ],
)
def test_badly_numbered_children(tmp_path: Path, name: str, fact: str) -> None:
    write_folder(tmp_path, Log("s"))
    (tmp_path / name).write_bytes(Log("c", parentSession="s").text())
    assert fact in _refusal(tmp_path)


def _directory(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


@pytest.mark.parametrize("make", [_directory, _pipe, _loop, _dangling])
@pytest.mark.parametrize("name", ["session.jsonl", "replay.override.json"])
def test_what_is_no_file(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    if name != "session.jsonl":
        write_folder(tmp_path, Log("s"))
    make(tmp_path / name)
    assert name in _refusal(tmp_path)


def test_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "loop" in _refusal(tmp_path / "loop")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "s", Log("s"))
    (folder / "session.jsonl").chmod(0)
    assert "session.jsonl" in _refusal(folder)
    folder.chmod(0)
    try:
        assert "Permission denied" in _refusal(folder)
    finally:
        folder.chmod(0o700)


# --- lines ---------------------------------------------------------------------

HEADER = b'{"type":"session","version":0,"id":"s","createdAt":5}\n'
PACKED = (
    b'{"type":"text-chunks","data":{"turn":1,"step":1,"index":0,"dt":[1],"texts":%s}}'
)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (HEADER + b"{bad\n", ("line 2", "not JSON")),
        (HEADER + b"[1]\n", ("line 2", "JSON object", "an array")),
        (HEADER + b"\xff\n", ("line 2", "UTF-8")),
        (HEADER + b'\n\n{"data":1}\n', ("line 4", "type")),
        (HEADER + PACKED % b'["a"]', ("line 2", "text-chunks", "dt", "0 entries")),
        (HEADER + b"[" * 100_000, ("line 2", "nested deeper")),
        (b'{"type":"note","data":1}\n', ("line 1", "session header", "note")),
        (HEADER.replace(b":0", b":1"), ("line 1", "version 1", "expected 0", "newer")),
        (HEADER.replace(b'"s"', b'""'), ("no id",)),
        (HEADER.replace(b'"s"', b"7"), ("line 1", "id must be a string")),
        (HEADER.replace(b"5}", b'5,"seedLength":-1}'), ("seedLength", "-1")),
        (HEADER.replace(b"5}", b'5,"seedLength":1.5}'), ("seedLength", "1.5")),
        (HEADER.replace(b"5}", b'5,"seedLength":1}'), ("seedLength 1", "0 events")),
    ],
)
def test_malformed_text(tmp_path: Path, text: bytes, facts: tuple[str, ...]) -> None:
    (tmp_path / "session.jsonl").write_bytes(text)
    message = _refusal(tmp_path)
    assert message.startswith(f"{tmp_path}/session.jsonl")
    assert all(fact in message for fact in facts), message


# --- boundaries and digests ----------------------------------------------------


def _with_seed_length(length: int) -> tuple[Log, Log]:
    root, _, fork = _tree()
    fork.header["seedLength"] = length
    del fork.header["seedDigest"]
    return root, fork


@pytest.mark.parametrize(
    ("length", "facts"),
    [
        (99, ("seedLength 99", "17 events")),
        (4, ("seedLength 4", "inside", "turn 1, step 1")),
        (7, ("7 inherited events", "turn 1 open")),
    ],
)
def test_a_boundary_that_cannot_be(
    tmp_path: Path, length: int, facts: tuple[str, ...]
) -> None:
    message = _refusal(write_folder(tmp_path, *_with_seed_length(length)))
    assert all(fact in message for fact in ("session.1.jsonl", *facts)), message


def test_a_digest_that_does_not_fit_its_own_events(tmp_path: Path) -> None:
    root, child, fork = _tree()
    stated = fork.header["seedDigest"] = "0" * 64
    found = seed_digest(fork.recording().events[:8])
    message = _refusal(write_folder(tmp_path, root, child, fork))
    assert all(fact in message for fact in ("session.2.jsonl", stated, found))


def test_a_digest_of_a_log_whose_parent_is_not_at_hand(tmp_path: Path) -> None:
    """It is checked whether or not there is a tree."""
    root, child, _ = _tree()
    for log in (root, child):
        log.header["seedDigest"] = "0" * 64
        path = tmp_path / f"{log.id}.jsonl"
        path.write_bytes(log.text())
        assert "but its first 0 events have digest" in _refusal(path)
    folder = write_folder(tmp_path / "tree", root, *_tree()[1:])
    assert "session.jsonl: seedDigest is 0000" in _refusal(folder)
    loose = Log("loose", 1, seedDigest="0" * 64).answered("x", "y")
    folder = write_folder(tmp_path / "loose", _tree()[0], loose)
    assert "session.1.jsonl: seedDigest is 0000" in _refusal(folder)


def test_a_digest_that_does_not_fit_the_parent(tmp_path: Path) -> None:
    root, child, fork = _tree()
    root.rows[2]["data"]["id"] = "another"
    message = _refusal(write_folder(tmp_path, root, child, fork))
    assert all(fact in message for fact in ("session.2.jsonl", "parent session.jsonl"))


def test_a_digest_over_more_than_the_parent_has(tmp_path: Path) -> None:
    root, _, fork = _tree()
    root.rows = root.rows[:6]
    message = _refusal(write_folder(tmp_path, root, fork))
    assert all(fact in message for fact in ("session.1.jsonl", "is 8", "6 events"))


@pytest.mark.parametrize("kind", ["turn/start", "step/start", "assistant/chunk"])
def test_malformed_frames_in_a_seed(tmp_path: Path, kind: str) -> None:
    root, fork = _with_seed_length(8)
    row = next(row for row in fork.rows if row["type"] == kind)
    row["data"] = [1]
    message = _refusal(write_folder(tmp_path, root, fork))
    assert "session.1.jsonl line" in message


# --- lineage -------------------------------------------------------------------


def test_a_parent_that_is_not_there(tmp_path: Path) -> None:
    stray = Log("stray", parentSession="gone")
    message = _refusal(write_folder(tmp_path, Log("root"), stray))
    assert all(fact in message for fact in ("session.1.jsonl", "'gone'", "'root'"))
    assert "session.jsonl" in _refusal(write_folder(tmp_path / "alone", stray))


def test_two_sessions_with_one_id(tmp_path: Path) -> None:
    twin = Log("root", parentSession="root")
    message = _refusal(write_folder(tmp_path, Log("root"), twin))
    assert "session.jsonl and session.1.jsonl" in message
    assert "'root'" in message


def test_two_roots(tmp_path: Path) -> None:
    logs = [Log("a"), Log("b"), Log("c", parentSession="a")]
    assert "session.jsonl and session.1.jsonl" in _refusal(
        write_folder(tmp_path, *logs)
    )


def test_no_root(tmp_path: Path) -> None:
    logs = [Log("a", parentSession="b"), Log("b", parentSession="a")]
    assert "expected one root" in _refusal(write_folder(tmp_path, *logs))


def test_parents_in_a_circle(tmp_path: Path) -> None:
    logs = [Log(name, parentSession=parent) for name, parent in ("ab", "bc", "cb")]
    message = _refusal(folder := write_folder(tmp_path, Log("root"), *logs))
    files = "session.2.jsonl, session.3.jsonl"
    assert message.startswith(f"{folder}/{files}: parentSession")


def test_a_deep_tree_is_no_matter_of_recursion() -> None:
    logs = [Log("0").turn("go").ask(Ask("1")).say("ok").end()]
    for depth in range(1, 1100):
        child = logs[-1].child(str(depth), depth).turn(str(depth))
        logs.append(child.ask(Ask(str(depth + 1))).say("ok").end())
    scenario = build_scenario("deep", recordings(*logs))
    assert scenario.sessions[-1].depth == 1099


# --- calls ---------------------------------------------------------------------


def test_a_call_left_open(tmp_path: Path) -> None:
    log = Log("s").turn("hi").chunks(text_chunks("half", None)).end()
    message = _refusal(write_folder(tmp_path, log))
    assert "session.jsonl line 5 (event 3)" in message
    assert "turn 1, step 1" in message


def test_messages_without_calls(tmp_path: Path) -> None:
    log = Log("s").turn("hi").message([{"type": "text", "text": "said"}]).end()
    assert "session.jsonl line 5" in _refusal(write_folder(tmp_path, log))


def test_a_bad_override(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, Log("s"))
    (folder / "replay.override.json").write_text(json.dumps({"patches": 7}))
    assert "replay.override.json" in _refusal(folder)
