"""The one JSON module: what a session log may hold, and how it becomes text.

Domain: null, booleans, strings, integers with ``|n| <= 2**53 - 1``, finite floats
other than -0, lists, objects with string keys, nested at most ``MAX_DEPTH`` deep.
A value outside of it is refused when it is appended and is never sanitised: a log
must say exactly what happened.

``orjson`` does the work. It refuses lone surrogates, which real logs hold (a model
may cut an emoji in two), so such texts go through the standard library, written
as escapes.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, TypeAlias

import orjson

from nestling.session.errors import JsonDomainError

Json: TypeAlias = Any
"""A value of the JSON domain (see the module's docstring)."""

JsonObject: TypeAlias = dict[str, Any]

MAX_SAFE_INTEGER: Final = 2**53 - 1
MAX_DEPTH: Final = 200
_SNIPPET: Final = 20

# orjson turns integers outside of 64 bits into floats, exact or not; those, and what
# only looks like them, are read by the standard library.
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")

_DIGITS_TO_0: Final = bytes.maketrans(b"123456789", b"000000000")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_MANY_DIGITS: Final = b"0" * len(str(MAX_SAFE_INTEGER))


def loads(text: bytes | str, wraps: int = 0) -> Json:
    """Parse one JSON text.

    Args:
        text: UTF-8, or a string.
        wraps: how many levels lie around values of the domain (a row around an
            event's data is one); so much deeper the text may be nested.

    Integers beyond ``MAX_SAFE_INTEGER`` come back as floats where that is exact,
    because the format's other writers have no other numbers.

    Raises:
        JsonDomainError: if `text` is not JSON, or its value lies outside the domain.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = _loads_standard(text)
    else:
        encoded = text.encode("utf-8") if isinstance(text, str) else text
        if _is_plain(encoded):
            return value
        if _LONG_NUMBER.search(encoded) is not None:
            value = _loads_standard(text)
    if _is_scalar_domain_safe(value):
        return value
    return _checked_copy(value, wraps)


def _is_plain(text: bytes) -> bool:
    """Tell by its bytes that a JSON text is in the domain, or that it must be checked.

    No integer is too long where no run of digits is. Nothing is -0 where no "-0" stands
    nor a negative exponent, which may have come to it. All else orjson refuses. It is fine to find such things in
    strings: to look at every value then takes longer than to parse them, and no more.
    """
    with_zeros = text.translate(_DIGITS_TO_0)
    return (
        b"-0" not in text
        and _MANY_DIGITS not in with_zeros
        and b"0e-" not in with_zeros
        and b"0E-" not in with_zeros
        and _is_shallow(text)
    )


def _is_shallow(text: bytes) -> bool:
    """Tell by its brackets that a JSON text is nested within ``MAX_DEPTH``.

    They are peeled off from the innermost ones, at most two levels at a time. Some in a
    string may be left over; then nothing is told.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return True
    brackets = text.translate(None, _NO_BRACKETS)
    for _ in range(MAX_DEPTH // 2):
        size = len(brackets)
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if len(brackets) == size:
            break
    return not brackets


def _loads_standard(text: bytes | str) -> Json:
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonDomainError(
            f"byte {error.start} is no UTF-8, expected JSON in UTF-8"
        ) from None
    try:
        return json.loads(decoded, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        found = decoded[error.pos : error.pos + _SNIPPET] or "the end"
        raise JsonDomainError(
            f"not JSON: found {found!r} at character {error.pos}, expected JSON"
        ) from None
    except RecursionError:
        raise JsonDomainError(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:  # an integer with more digits than Python converts
        raise JsonDomainError(
            "an integer of thousands of digits, expected at most ±(2**53 - 1)"
        ) from None


def _refuse_constant(name: str) -> None:
    raise JsonDomainError(f"{name} is not a JSON number")


def _is_scalar_domain_safe(value: Json) -> bool:
    return value is None or type(value) in (bool, str)


def _checked_copy(value: Json, wraps: int) -> Json:
    """Check the domain of a parsed value, turning exact large integers to floats."""
    try:
        check(value, wraps)
    except JsonDomainError:
        value = _with_exact_floats(value, -wraps)
        check(value, wraps)
    return value


def _with_exact_floats(value: Json, depth: int) -> Json:
    if depth > MAX_DEPTH:
        raise JsonDomainError(f"nested deeper than {MAX_DEPTH} levels")
    if type(value) is int and abs(value) > MAX_SAFE_INTEGER:
        try:
            as_float = float(value)
        except OverflowError:
            return value
        return as_float if int(as_float) == value else value
    if type(value) is list:
        return [_with_exact_floats(item, depth + 1) for item in value]
    if type(value) is dict:
        return {k: _with_exact_floats(v, depth + 1) for k, v in value.items()}
    return value


def check(value: Json, wraps: int = 0) -> None:
    """Check that `value` lies in the JSON domain.

    Args:
        value: anything.
        wraps: how many levels lie around values of the domain (see ``loads``).

    Raises:
        JsonDomainError: naming the place inside `value`, what was found there and
            what was expected.
    """
    problem = _problem(value, -wraps)
    if problem is not None:
        place, text = problem
        raise JsonDomainError(f"{place.removeprefix('.') or 'value'}: {text}")


def _problem(value: Json, depth: int) -> tuple[str, str] | None:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return None
    if kind is int:
        if -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER:
            return None
        return "", f"integer {_shortened(value)} is beyond ±(2**53 - 1)"
    if kind is float:
        return _float_problem(value)
    if kind is not dict and kind is not list:
        return "", f"{kind.__name__} is not a JSON value"
    if depth >= MAX_DEPTH:
        return "", f"nested deeper than {MAX_DEPTH} levels"
    return _container_problem(value, depth + 1)


def _container_problem(value: Json, depth: int) -> tuple[str, str] | None:
    items = value.items() if type(value) is dict else enumerate(value)
    for key, item in items:
        if type(value) is dict and type(key) is not str:
            return "", f"object key {key!r} is not a string"
        found = _problem(item, depth)
        if found is not None:
            step = f".{key}" if type(value) is dict else f"[{key}]"
            return step + found[0], found[1]
    return None


def _float_problem(value: float) -> tuple[str, str] | None:
    if not math.isfinite(value):
        return "", f"{value} is not a JSON number"
    if value == 0 and math.copysign(1, value) < 0:
        return "", "negative zero is not a JSON number that every reader keeps"
    return None


def _shortened(value: int) -> str:
    return str(value) if value.bit_length() < 200 else f"of {value.bit_length()} bits"


def copied(value: Json) -> Json:
    """Return a deep copy of a value of the domain."""
    kind = type(value)
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    if kind is list:
        return [copied(item) for item in value]
    return value


def dumps(value: Json) -> bytes:
    """Write a value of the domain as compact UTF-8 JSON, without a newline.

    The caller has checked the domain (``check``); lone surrogates are written as
    escapes.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return json.dumps(
            value, ensure_ascii=True, allow_nan=False, separators=(",", ":")
        ).encode("ascii")


def canonical(value: Json) -> bytes:
    """Write `value` in the one form that digests are taken over.

    Keys sorted, ASCII escapes, no spaces, and floats that are safe integers written
    as integers, so that ``1`` and ``1.0`` (which some writers do not tell apart)
    digest alike.
    """
    return json.dumps(
        _with_integers(value),
        ensure_ascii=True,
        allow_nan=False,
        separators=(",", ":"),
        sort_keys=True,
    ).encode("ascii")


def _with_integers(value: Json) -> Json:
    kind = type(value)
    if kind is float:
        is_safe = abs(value) <= MAX_SAFE_INTEGER and value.is_integer()
        return int(value) if is_safe else value
    if kind is list:
        return [_with_integers(item) for item in value]
    if kind is dict:
        return {key: _with_integers(item) for key, item in value.items()}
    return value


def shown(value: Json, limit: int = 120) -> str:
    """Write a value for an error message: as JSON, shortened in the middle."""
    text = dumps(value).decode("utf-8")
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {text[-half:]}"


def is_int0(value: Json) -> bool:
    """Tell whether `value` is a safe integer >= 0 (and not a boolean)."""
    return type(value) is int and 0 <= value <= MAX_SAFE_INTEGER


def is_safe_int(value: Json) -> bool:
    """Tell whether `value` is an integer (not a boolean) within ±(2**53 - 1)."""
    return type(value) is int and abs(value) <= MAX_SAFE_INTEGER
