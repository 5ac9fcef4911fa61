"""The errors: one hierarchy, and messages that can always be shown."""

from __future__ import annotations

import inspect

import pytest

from nestling.session import errors
from nestling.session.errors import NestlingError, UnreadableError

_CLASSES = [
    value for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, Exception)
]  # fmt: skip


class _Documented(NestlingError):
    """The first line is the message.

    The rest is for readers.
    """


class _Undocumented(NestlingError):
    __doc__ = None


@pytest.mark.parametrize("kind", _CLASSES)
def test_every_error_is_one_of_ours_and_has_a_message(
    kind: type[NestlingError],
) -> None:
    assert issubclass(kind, NestlingError)
    assert str(kind()) == (kind.__doc__ or "").strip()
    assert str(kind()).endswith(".")


def test_there_are_errors_to_test() -> None:
    assert UnreadableError in _CLASSES
    assert len(_CLASSES) >= 5


def test_the_first_docstring_line_is_the_default_message() -> None:
    assert str(_Documented()) == "The first line is the message."
    assert str(_Undocumented()) == "_Undocumented"


@pytest.mark.parametrize("message", ["", "file line 3: x", "é\U0001f600"])
def test_a_message_that_knows_more_replaces_it(message: str) -> None:
    assert str(_Documented(message)) == message


@pytest.mark.parametrize("length", [2000, 2001, 5000])
def test_a_long_message_is_cut_in_the_middle(length: int) -> None:
    message = "".join(chr(ord("a") + n * 26 // length) for n in range(length))
    text = str(UnreadableError(message))
    if length == 2000:
        assert text == message
    else:
        assert text == f"{message[:1000]} … {message[-1000:]}"
    assert len(text) <= 2003


def test_escapes_count_as_what_they_become() -> None:
    assert len(str(UnreadableError("\ud83d" * 2000))) == 2003


def test_lone_surrogates_are_shown_as_escapes() -> None:
    """Fault G1: an id from a log must not break the terminal."""
    assert str(UnreadableError("id \ud83d!")) == "id \\ud83d!"
