"""Which patterns may take for ever, and that those are refused where they are declared."""

from __future__ import annotations

import re

import pytest

from nestling.harness import normalise, volatile
from nestling.harness.ambiguity import is_explosive
from nestling.harness.js_regex import compile_js
from nestling.harness.normalise import Normalisers
from nestling.session.errors import UnreadableError

EXPLOSIVE = [
    r"(a+)+b",
    r"(a+|[A-Za-z ':.]+)+!",
    r"(a*)*b",
    r"(a|aa)+$",
    r"(\w+\s?)+$",
    r"([a-zA-Z]+)*\d",
    r"(.*)*x",
    r"(?:[0-9]+,?)+;",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"(x+x+)+y",
    r"(\d{1,20})*x",
    r"(a{1,3})*b",
    r"q|r(a+)+s",
    r"(?:\b\w+)+!",
    r"(?=(a+)+b)x",
]
FINITE = [
    r"T-[0-9]+",
    r"(?:\w+\.)+com",
    r"(\d{2})+x",
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    r"(\w+\s?)+",  # nothing after it can fail
    r"((?:\w+-?)+)",
    r"(?:[A-Z][a-z]+ ?)+x",
    r"a*a*b",
    r'"(?:[^"\\]|\\.)*"',
    r"(?:ab|ac)*d",
    r"([ab]|[bc])*d",  # the engine makes one class of it
    r"\d{1,3}(,\d{3})*;",
    r"(?:a{1000}){1000}",
    "a?" * 500 + "b",
    r"(\S+ )*x",
    r"(?i)(a|b)*c",
    r"(a)?(?(1)b|c)",
    r"(?>a+)+b",
]


@pytest.mark.parametrize("text", EXPLOSIVE)
def test_what_may_take_for_ever_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError, match="may take for ever"):
        Normalisers((), {"bomb": text})
    with pytest.raises(UnreadableError, match="may take for ever"):
        compile_js(text)


@pytest.mark.parametrize("text", FINITE)
def test_what_comes_to_an_end_is_not(text: str) -> None:
    assert not is_explosive(re.compile(text))


def test_our_own_patterns_come_to_an_end() -> None:
    ours = [pattern for _, pattern in Normalisers(places={"/a/b": "cwd"})._patterns]
    ours += [look.pattern for look in volatile._LOOKS]
    assert len(ours) > 10
    assert normalise._WORK in ours
    assert [each.pattern for each in ours if is_explosive(each)] == []


@pytest.mark.parametrize("text", ["a{99999999999}", "a{4294967295}"])
def test_a_count_that_is_too_large(text: str) -> None:
    with pytest.raises(UnreadableError, match=r"normalisers\.many: .* too large"):
        Normalisers((), {"many": text})


def test_what_python_warns_of_is_taken_as_it_is() -> None:
    assert Normalisers((), {"odd": "[[a]+"}).normalised("[a") == "{{odd}}"
