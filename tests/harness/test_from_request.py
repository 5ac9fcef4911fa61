"""Placeholders, and JavaScript's patterns in Python's engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestling.harness.from_request import resolve
from nestling.harness.js_regex import compile_js, utf16_units
from nestling.harness.scripts import Entry
from nestling.session.errors import UnreadableError


def _filled(text: str, request: str) -> str:
    entry = Entry("chunks", ({"type": "text-delta", "index": 0, "text": text},))
    return str(resolve(entry, [{"content": request}]).chunks[0]["text"])


def _matched(pattern: str, text: str) -> str | None:
    match = compile_js(utf16_units(pattern)).search(utf16_units(text))
    return None if match is None else match[0]


def test_an_entry_without_placeholders_is_passed_through() -> None:
    entry = Entry("hang", ready_file="ready")
    assert resolve(entry, []) is entry


def test_every_string_of_an_entry_is_filled_in() -> None:
    ready = resolve(Entry("hang", ready_file="{{fromRequest:x+}}"), ["xx"])
    assert ready.ready_file == "xx"
    chunk = {"type": "usage", "usage": {"deep": [{"n": 1}, "{{fromRequest:x}}"]}}
    deep = resolve(Entry("chunks", (chunk,)), ["x"])
    assert deep.chunks[0]["usage"] == {"deep": [{"n": 1}, "x"]}
    assert chunk["usage"] == {"deep": [{"n": 1}, "{{fromRequest:x}}"]}


def test_a_group_that_took_no_part_leaves_the_whole_match() -> None:
    assert _filled("{{fromRequest:a(b)?c}}", "ac") == "ac"


def test_surrogate_halves_join() -> None:
    assert _filled("{{fromRequest:x(..)y}}", "x😀y") == "😀"


@pytest.mark.parametrize(
    "text", ["{{fromRequest:x", "{{fromRequest:x}", "{{fromRequest:"]
)
def test_an_unterminated_placeholder_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError, match="expected }}"):
        _filled(text, "x")


def test_an_empty_pattern_matches_the_empty_text() -> None:
    assert _filled("[{{fromRequest:}}]", "x") == "[]"


# --- patterns ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a$", "a\n", None),
        ("a$", "ba", "a"),
        ("^b", "a\nb", None),
        (".", "\r\u2028\n", None),
        (r"\s", "\u00a0", "\u00a0"),
        (r"\s", "\x1c", None),
        (r"\S", "\u3000\ufeff", None),
        (r"[\s]", "\ufeff", "\ufeff"),
        (r"[\S]+", "\u00a0ab\u00a0", "ab"),
        (r"[^\S]", "a\u00a0", "\u00a0"),
        (r"\w+", "é_a1", "_a1"),
        (r"\bé", "aé", "é"),
        (r"\/\-\_\é", "/-_é", "/-_é"),
        (r"\x41\u0042\cJ\0", "AB\n\0", "AB\n\0"),
        (r"\xZ\uZ", "xZuZ", "xZuZ"),
        (r"[\b]", "\b", "\b"),
        (r"[[a&&b||d~~e%--]+", "[&|~-", "[&|~-"),
        (r"[\w-.]+", "a-.", "a-."),
        (r"[a-]+", "a-", "a-"),
        (r"[]", "]", None),
        (r"[^]", "\n", "\n"),
        (r"a{,2}", "a{,2}", "a{,2}"),
        (r"a{2}?", "aaa", "aa"),
        (r"]}{", "]}{", "]}{"),
        (r"(?<$x>a)\k<$x>", "aa", "aa"),
        (r"(?:a|(b))\1c", "ac", "ac"),
        (r"(?=a)a(?!b)(?<=a)(?<!b)c", "ac", "ac"),
        (r"\k", "k", "k"),
        ("#  a", "#  a", "#  a"),
        ("[😀]", "😀", "\ud83d"),
    ],
)
def test_patterns_mean_what_they_mean_in_javascript(
    pattern: str, text: str, expected: str | None
) -> None:
    assert _matched(pattern, text) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[a",
        "a\\",
        "[\\",
        "*",
        "a**",
        "a++",
        "a{2}{3}",
        "(?P<n>a)",
        "(?i)a",
        "(?>a)",
        "(?#a)",
        "(?<1>a)",
        "(?<a>x)(?<a>y)",
        r"(?<a>x)\k<b>",
        "[b-a]",
        "a{3,2}",
        "a{99999999999999999999}",
        r"\2(a)",
        "(?<=a+)b",
        "(" * 5000,
    ],
)
def test_what_python_cannot_match_is_refused(pattern: str) -> None:
    with pytest.raises(UnreadableError, match="invalid pattern"):
        compile_js(pattern)


@given(st.text(st.sampled_from("ab\\[]()^$-{}*+?.|,<>=!:kx019dsu&~#\n😀"), max_size=12))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    try:
        compiled = compile_js(utf16_units(pattern))
    except UnreadableError:
        return
    compiled.search("ab\n")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_an_escaped_text_matches_itself(text: str) -> None:
    specials = set("\\^$.*+?()[]{}|/")
    pattern = "".join(f"\\{char}" if char in specials else char for char in text)
    assert _matched(pattern, text) == utf16_units(text)
