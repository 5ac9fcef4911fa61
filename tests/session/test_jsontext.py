"""The JSON module: its domain, its texts, and the canonical form."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.session.errors import JsonDomainError
from nestling.session.jsontext import (
    MAX_DEPTH,
    MAX_SAFE_INTEGER,
    canonical,
    check,
    dumps,
    is_int0,
    is_safe_int,
    loads,
    shown,
)

_TEXT = st.text(st.characters(exclude_categories=()))
_NUMBERS = st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER) | st.floats(
    allow_nan=False, allow_infinity=False
).filter(lambda number: number != 0 or math.copysign(1, number) > 0)
_LEAVES = st.none() | st.booleans() | _NUMBERS | _TEXT
# Two keys must not become one when a split pair joins.
_KEYS = st.text() | st.sampled_from(["\ud800", "x\udfff", "\udc00\ud800"])
VALUES = st.recursive(
    _LEAVES, lambda v: st.lists(v) | st.dictionaries(_KEYS, v), max_leaves=20
)


class _Text(str):
    """A string that is not exactly a string."""


def _nested(depth: int, leaf: Any = None) -> Any:
    value = leaf
    for _ in range(depth):
        value = [value]
    return value


def _utf16(value: Any) -> Any:
    """Join the split surrogate pairs of a value, as JSON text does."""
    if isinstance(value, str):
        units = value.encode("utf-16-le", "surrogatepass")
        return units.decode("utf-16-le", "surrogatepass")
    if isinstance(value, list):
        return [_utf16(item) for item in value]
    if isinstance(value, dict):
        return {_utf16(key): _utf16(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, "", "\ud800", 0, 0.0, 1.5, 1e300, 5e-324,
        2**53 - 1, -(2**53) + 1, [], {}, {"": [{}]}, float(2**53), _nested(200),
    ],
)  # fmt: skip
def test_values_of_the_domain(value: Any) -> None:
    check(value)
    assert loads(dumps(value)) == value


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2**53, "beyond"),
        (-(2**53), "beyond"),
        (10**500, "bits"),
        (-0.0, "negative zero"),
        (math.nan, "nan is not a JSON number"),
        (math.inf, "inf is not a JSON number"),
        (-math.inf, "-inf is not a JSON number"),
        ((1, 2), "tuple is not a JSON value"),
        (b"x", "bytes is not a JSON value"),
        ({1}, "set is not a JSON value"),
        (_Text("x"), "_Text is not a JSON value"),
        ({1: "x"}, "object key 1 is not a string"),
        ({None: "x"}, "object key None is not a string"),
        ({_Text("x"): 1}, "is not a string"),
        (_nested(201), "nested deeper than 200 levels"),
    ],
)
def test_values_outside_of_the_domain(value: Any, words: str) -> None:
    for placed in (value, [value], {"key": value}):
        with pytest.raises(JsonDomainError, match=words):
            check(placed)


@pytest.mark.parametrize("wraps", [0, 1, 5])
@pytest.mark.parametrize(
    "prefix", ["", '"\\ud800",', "9007199254740993.0,", f"{2**60},"]
)
def test_levels_around_a_value_do_not_count(wraps: int, prefix: str) -> None:
    """Whatever reads it: orjson, the standard library, or the reader of floats."""
    deepest, too_deep = (
        "[" + prefix + "[" * (depth - 1) + "]" * depth
        for depth in (200 + wraps, 201 + wraps)
    )
    value = loads(deepest, wraps)
    check(value, wraps)
    assert value == loads(deepest.encode(), wraps)
    for text in (too_deep, too_deep.encode()):
        with pytest.raises(JsonDomainError, match="nested deeper than 200 levels"):
            loads(text, wraps)
    with pytest.raises(JsonDomainError, match="nested deeper than 200 levels"):
        check([value], wraps)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ("\ud800", '"\\ud800"'),
        ({"é": [1, 2.5]}, '{"é":[1,2.5]}'),
        ("x" * 118, '"' + "x" * 118 + '"'),
        ("x" * 119, '"' + "x" * 59 + " … " + "x" * 59 + '"'),
        ("a" * 500 + "b" * 500, '"' + "a" * 59 + " … " + "b" * 59 + '"'),
    ],
)
def test_a_value_in_a_message(value: Any, text: str) -> None:
    assert shown(value) == text


def test_a_value_in_a_message_of_another_length() -> None:
    assert shown([1, 2, 3], 6) == "[1, … ,3]"
    assert shown([1, 2, 3], 7) == "[1,2,3]"


def test_a_problem_is_named_with_its_place() -> None:
    with pytest.raises(JsonDomainError) as caught:
        check({"a": [0, {"b": -0.0}]})
    assert str(caught.value).startswith("a[1].b: negative zero")


def test_a_cycle_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(JsonDomainError, match="nested deeper"):
        check(cycle)


@pytest.mark.parametrize("text", ['"\\ud83d"', '["\\udc00"]', '{"\\ud83d":"x\\udfff"}'])
def test_lone_surrogates_round_trip_byte_exactly_as_escapes(text: str) -> None:
    assert dumps(loads(text)) == text.encode("ascii")
    assert dumps(loads(text.encode("ascii"))) == text.encode("ascii")


def test_a_text_of_surrogates_itself_is_read() -> None:
    assert loads('"\ud83d"') == "\ud83d"


def test_a_split_pair_reads_back_as_one_character() -> None:
    halves = "\ud83d" + "\ude00"
    check(halves)
    assert loads(dumps(halves)) == "\U0001f600"
    assert canonical(halves) == canonical("\U0001f600")


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_what_is_written_reads_back(value: Any) -> None:
    check(value)
    assert loads(dumps(value)) == _utf16(value)
    assert loads(canonical(value)) == _utf16(value)


@pytest.mark.parametrize(
    ("text", "byte"), [(b'"\xff"', 1), (b'{"a":"\xe2\x82"}', 6), (b'"\xed\xa0\x80"', 1)]
)
def test_invalid_utf8_names_the_byte(text: bytes, byte: int) -> None:
    with pytest.raises(JsonDomainError, match=f"^byte {byte} is no UTF-8, expected"):
        loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "nope", "{", "[1,]", '{"a":1,}', "01", "1 2", "'a'", "+1", ".5", "1.",
        '"\x01"', '"\\x"', "NaN", "Infinity", "-Infinity", "1e400", "-1e400",
        "[NaN]", "\ufeff{}", "-0.0", "[-0.0]", "\u00a01", '"\\ud83d" NaN',
        '["\\ud83d", NaN]', '["\\ud83d", -Infinity]', '["\\ud83d", 1e400]',
    ],
)  # fmt: skip
def test_texts_that_are_refused(text: str) -> None:
    with pytest.raises(JsonDomainError):
        loads(text)
    with pytest.raises(JsonDomainError):
        loads(text.encode("utf-8"))


@pytest.mark.parametrize("surrogate", ["", '"\\ud83d",'])
@pytest.mark.parametrize(
    ("number", "value"),
    [
        ("9007199254740991", 2**53 - 1),
        ("9007199254740992", float(2**53)),
        ("9007199254740993", None),
        ("18446744073709551615", None),
        ("18446744073709551616", float(2**64)),
        ("18446744073709551617", None),
        ("-9223372036854775808", -float(2**63)),
        ("-9223372036854775809", None),
        ("1" * 400, None),
        ("1" * 5000, None),
        ("1e300", 1e300),
        ("0.12345678901234567890123", 0.12345678901234568),
    ],
)
def test_large_integers_are_exact_or_refused(
    surrogate: str, number: str, value: float | None
) -> None:
    """Whether or not a lone surrogate in the same text takes the slow way."""
    text = f"[{surrogate}{number}]"
    if value is None:
        with pytest.raises(JsonDomainError):
            loads(text)
        return
    read = loads(text.encode())[-1]
    assert read == value
    assert type(read) is type(value)


def test_digits_in_a_string_are_no_number() -> None:
    digits = "7" * 400
    assert loads(f'{{"id":"{digits}"}}') == {"id": digits}


@pytest.mark.parametrize("bomb", ["[", '{"a":', '[{"a":', '["\\ud83d",['])
@pytest.mark.parametrize("times", [300, 100_000])
def test_nesting_bombs_are_refused(bomb: str, times: int) -> None:
    closing = {"[": "]", '{"a":': "}", '[{"a":': "}]", '["\\ud83d",[': "]]"}[bomb]
    for text in (bomb * times, bomb * times + "0" + closing * times):
        with pytest.raises(JsonDomainError):
            loads(text)


def test_depth_is_counted_in_containers() -> None:
    assert loads("[" * MAX_DEPTH + "]" * MAX_DEPTH) == _nested(MAX_DEPTH - 1, [])
    with pytest.raises(JsonDomainError, match="nested deeper than 200"):
        loads("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize("extra", ["", ',"s":"\\ud83d"'])
def test_of_duplicate_keys_the_last_wins(extra: str) -> None:
    value = loads(f'{{"a":1,"b":2,"a":3{extra}}}')
    assert value["a"] == 3
    assert list(value)[:2] == ["a", "b"]


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_bytes_read_or_are_refused(data: bytes) -> None:
    try:
        value = loads(data)
    except JsonDomainError:
        return
    check(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None], "A": {}}, '{"A":{},"a":[true,null],"b":1}'),
        ("é\U0001f600\ud800/\x7f", '"\\u00e9\\ud83d\\ude00\\ud800/\\u007f"'),
        ([1.0, -3.0, 0.0, 1e15, 1.5], "[1,-3,0,1000000000000000,1.5]"),
        (float(2**53 - 1), "9007199254740991"),
        (1e22, "1e+22"),
        ({"x": [{"y": 2.0}]}, '{"x":[{"y":2}]}'),
    ],
)
def test_canonical_form(value: Any, text: str) -> None:
    assert canonical(value) == text.encode("ascii")


def _shuffled(value: Any) -> Any:
    """An equal value: keys in reverse order, whole numbers as floats."""
    if type(value) is int:
        return float(value)
    if isinstance(value, list):
        return [_shuffled(item) for item in value]
    if isinstance(value, dict):
        return {key: _shuffled(value[key]) for key in reversed(list(value))}
    return value


@given(VALUES)
@settings(max_examples=100, deadline=None)
def test_equal_values_digest_alike(value: Any) -> None:
    digests = {
        hashlib.sha256(canonical(form)).hexdigest()
        for form in (value, _shuffled(value), loads(dumps(value)))
    }
    assert len(digests) == 1
    assert b"\n" not in canonical(value)


def test_canonical_tells_booleans_from_numbers_and_strings() -> None:
    values = [1, True, "1", [1], None, "null", False, 0]
    assert len({canonical(value) for value in values}) == len(values)


def test_written_text_is_compact_utf8() -> None:
    assert dumps({"é": [1, 2.5, "\n"]}) == '{"é":[1,2.5,"\\n"]}'.encode()
    assert json.loads(dumps({"a": "\ud800é"})) == {"a": "\ud800é"}


@pytest.mark.parametrize(
    ("value", "int0", "safe"),
    [
        (0, True, True), (2**53 - 1, True, True), (2**53, False, False),
        (-1, False, True), (-(2**53) + 1, False, True), (-(2**53), False, False),
        (True, False, False), (1.0, False, False), ("1", False, False),
        (None, False, False),
    ],
)  # fmt: skip
def test_integer_predicates(value: Any, int0: bool, safe: bool) -> None:
    assert is_int0(value) is int0
    assert is_safe_int(value) is safe


@pytest.mark.parametrize(
    "text", ["-1e-400", "[-5E-400]", '{"a":-1.5e-999}', "[-0.0]", "-0e5"]
)
def test_whatever_is_read_as_minus_zero_is_refused(text: str) -> None:
    for given_text in (text, text.encode()):
        with pytest.raises(JsonDomainError, match="negative zero"):
            loads(given_text)


@pytest.mark.parametrize(
    "value",
    [
        "-0", "1e-5 or 1E-5", "2026-12-01T00:00", "9" * 40, "[" * 300, -1e-5, -10,
        ["{[" * 150], 1234567890.123456, 1e-300,
    ],
)  # fmt: skip
def test_what_only_looks_suspicious_is_read_as_it_is(value: Any) -> None:
    assert loads(dumps(value)) == value
