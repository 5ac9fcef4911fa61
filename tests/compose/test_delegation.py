"""The delegation tools' arguments and results."""

from __future__ import annotations

import pytest

from nestling.session.delegation import (
    DELEGATION_TOOLS,
    DelegationArguments,
    delegation_result,
    parse_arguments,
)
from nestling.session.errors import NestlingError, ToolArgumentError
from nestling.session.outcome import Outcome

TEXT = {"type": "text", "text": "an answer"}
THOUGHT = {"type": "reasoning", "text": "a thought"}


def test_the_tools_have_the_names_of_the_corpus() -> None:
    assert {"subagent", "subagent_fork"} == DELEGATION_TOOLS


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"description":"d","prompt":"p"}', ("d", "p", False)),
        ('{"prompt":""}', ("", "", False)),
        ('{"prompt":"p","description":7}', ("", "p", False)),
        ('{"prompt":"p","run_in_background":false}', ("", "p", False)),
        ('{"prompt":"p","run_in_background":true}', ("", "p", True)),
        ('{"prompt":"p","run_in_background":"true","more":1}', ("", "p", False)),
        ('{"prompt":"\\ud83d"}', ("", "\ud83d", False)),
    ],
)
def test_arguments(written: str, expected: tuple[str, str, bool]) -> None:
    assert parse_arguments(written) == DelegationArguments(*expected)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("", "not JSON"),
        ('{"prompt":"p"', "not JSON"),
        ("[" * 300, "arguments"),
        ('["p"]', "must be an object, found"),
        ("null", "must be an object, found None"),
        ("{}", "prompt must be a string, found None"),
        ('{"prompt":["p"]}', "prompt must be a string, found"),
    ],
)
def test_arguments_that_are_no_delegation(written: str, problem: str) -> None:
    with pytest.raises(ToolArgumentError, match=problem) as caught:
        parse_arguments(written)
    assert isinstance(caught.value, NestlingError)


def test_a_completed_child_returns_its_text_blocks() -> None:
    result = delegation_result(Outcome("completed", [THOUGHT, TEXT, TEXT]))
    assert result == {"content": [TEXT, TEXT], "isError": False}


def test_a_silent_child_returns_nothing() -> None:
    assert delegation_result(Outcome("completed", []))["content"] == []


@pytest.mark.parametrize("reason", ["aborted", "error", "max-tokens", "refusal"])
def test_any_other_end_is_an_error(reason: str) -> None:
    notice = f"Error: the subagent ended with stop reason {reason}"
    assert delegation_result(Outcome(reason, [THOUGHT, TEXT])) == {
        "content": [{"type": "text", "text": notice}, TEXT],
        "isError": True,
    }
