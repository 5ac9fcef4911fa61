"""The steps of a scenario: what they say is recorded so, on every run, and replays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.stepped import Stepped, chunks, reasons, stepped


@pytest.fixture
def folder(tmp_path: Path) -> Stepped:
    """A folder without steps yet."""
    return stepped(tmp_path / "steps")


def check_replays(folder: Stepped) -> None:
    """It replays with its agent and as a tape."""
    for replay in folder.replays():
        assert replay.json["problems"] == []
        assert replay.exit_code == 0


def test_steps_are_prompts(folder: Stepped) -> None:
    folder.steps("say", "again")
    assert folder.record().exit_code == 0
    assert reasons(folder) == ["completed", "completed"]
    check_replays(folder)


@pytest.mark.parametrize("prompt", ["say", "stay"])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_in_a_call(folder: Stepped, prompt: str, after: int) -> None:
    """Also where the provider has nothing more to say."""
    folder.steps((prompt, {"path": "/", "after": after}), "again")
    assert folder.record().exit_code == 0
    assert reasons(folder) == ["user", "completed"]
    assert chunks(folder)[: 1 if after else 0] == [after][: 1 if after else 0]
    check_replays(folder)


def test_in_a_call_that_is_made_again(folder: Stepped) -> None:
    folder.steps(("fail", {"call": 2, "after": 2}), "again")
    assert folder.record().exit_code == 0
    assert reasons(folder) == ["user", "completed"]
    assert chunks(folder)[:2] == [4, 2]  # a finish was made of the failure
    check_replays(folder)


def test_the_second_step(folder: Stepped) -> None:
    """Calls are counted from where the step begins."""
    folder.steps("look", ("look", {"call": 1, "after": 1}), "again")
    assert folder.record().exit_code == 0
    assert reasons(folder) == ["completed", "user", "completed"]
    assert chunks(folder)[2] == 1
    check_replays(folder)


@pytest.mark.parametrize("prompt", ["look", "both"])
def test_at_a_tool(folder: Stepped, prompt: str) -> None:
    tool = "look" if prompt == "look" else "waits"
    folder.steps((prompt, {"tool": tool}), "again")
    assert folder.record().exit_code == 0
    assert folder.ran() == (prompt == "both")
    assert reasons(folder) == ["user", "completed"]
    check_replays(folder)


@pytest.mark.parametrize(
    "cancel",
    [
        {"path": "/t1s1b1", "call": 2, "after": 3},
        {"path": "/t1s1b2", "call": 1, "after": 0},
        {"path": "/t1s1b1", "tool": "look"},
        {"path": "/t1s1b1", "call": 2, "after": 3, "session": "/t1s1b1"},
        {"path": "/t1s1b1", "tool": "look", "session": "/t1s1b1"},
    ],
)
def test_in_a_child(folder: Stepped, cancel: dict[str, Any]) -> None:
    folder.steps(("ask", cancel), "again")
    result = folder.record("--json")
    assert result.json["problems"] == []
    is_root = "session" not in cancel
    assert reasons(folder) == ["user" if is_root else "completed", "completed"]
    assert reasons(folder, cancel["path"]) == ["parent" if is_root else "user"]
    if cancel.get("after"):
        assert chunks(folder, cancel["path"])[-1] == cancel["after"]
    check_replays(folder)


@pytest.mark.parametrize(
    ("cancel", "told"),
    [
        ({"call": 2, "after": 1}, "model call 2 after 1 chunks in session /"),
        ({"after": 99}, "model call 1 after 99 chunks in session /"),
        ({"tool": "look"}, "call 1 of the tool look in session /"),
        ({"path": "/t1s1b0", "after": 1}, "in session /t1s1b0"),
    ],
)
def test_a_place_that_is_not_come_to(
    folder: Stepped, cancel: dict[str, Any], told: str
) -> None:
    folder.steps(("say", cancel))
    result = folder.record("--json")
    assert result.exit_code == 1
    (problem,) = result.json["problems"]
    assert problem["kind"] == "recording-failed"
    assert problem["message"].startswith("step 1 was to be cancelled at ")
    assert told in problem["message"]
    assert folder.logs() == {}


def test_the_finish_is_no_place(folder: Stepped) -> None:
    """A call that has been answered is over."""
    folder.steps("say")
    folder.record()
    (count,) = chunks(folder)
    folder.steps(("say", {"after": count}))
    assert folder.record("--json").exit_code == 1
    folder.steps(("say", {"after": count - 1}))
    assert folder.record("--json").exit_code == 0
    assert reasons(folder) == ["user"]
    check_replays(folder)


# --- what is no step -------------------------------------------------------------------

STEP = 'agent = "a.py:b"\n[[steps]]\nprompt = "a"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('agent = "a.py:b"\nsteps = []', "found no prompts and no steps"),
        (
            'agent = "a.py:b"\nprompts = ["a"]\n[[steps]]\nprompt = "a"',
            "found prompts and steps, expected one of them",
        ),
        ('agent = "a.py:b"\n[[steps]]\n', "step 1: found no prompt, expected a text"),
        (
            'agent = "a.py:b"\n[[steps]]\nprompt = 5',
            "step 1: prompt: found 5, expected a text",
        ),
        (
            STEP + "[[steps]]\nprompts = 5",
            "step 2: found an unknown key prompts, expected one of prompt, cancel",
        ),
        (
            STEP + "cancel = 3",
            "step 1: cancel: found 3, expected a table with path, call and either after",
        ),
        (
            STEP + "cancel = { after = -1 }",
            "step 1: cancel.after: found -1, expected a whole number of chunks",
        ),
        (
            STEP + "cancel = { after = 1, call = 0 }",
            "step 1: cancel.call: found 0, expected a whole number, at least 1",
        ),
        (STEP + "cancel = {}", "step 1: cancel: found neither of after and tool"),
        (
            STEP + 'cancel = { after = 1, tool = "a" }',
            "step 1: cancel: found both of after and tool",
        ),
        (
            STEP + 'cancel = { after = 1, path = "t1s1b0" }',
            'step 1: cancel.path: found "t1s1b0", expected a spawn path',
        ),
        (
            STEP + 'cancel = { after = 1, path = "/t2s1b0" }',
            "cancel.path: found /t2s1b0, a session of turn 2; expected one of turn 1",
        ),
        (
            STEP
            + 'cancel = { after = 1, path = "/t1s1b0", session = "/t1s1b0/t1s1b0" }',
            "expected /t1s1b0, whose call or tool it is, or a session above it",
        ),
    ],
)
def test_what_is_no_step(folder: Stepped, text: str, told: str) -> None:
    (folder.path / "scenario.toml").write_text(text)
    result = folder.record("--json")
    assert result.exit_code == 2
    assert told in result.json["error"]
    assert "scenario.toml: " in result.json["error"]
    assert result.err.count("\n") == 1
