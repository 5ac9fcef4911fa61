r"""JavaScript's regular expressions, for Python's engine.

Scenarios hold patterns written for JavaScript (without flags but ``g``). They differ
from Python's in what ``. $ \s \d \w`` mean, in escapes and in character classes, and
they match UTF-16 units, not characters: callers pass pattern and text through
``utf16_units``. What Python cannot express (look-behind of varying width) is an
error, never a different match.
"""

from __future__ import annotations

import re
from typing import Final

from nestling.harness.ambiguity import EXPLOSIVE, is_explosive
from nestling.session.errors import UnreadableError

_SPACE_RANGES: Final = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
_LAST_UNIT: Final = 0xFFFF
_CONTROLS: Final = {"n": 10, "r": 13, "t": 9, "v": 11, "f": 12, "0": 0}
_GROUP_HEADS: Final = ("?:", "?=", "?!", "?<=", "?<!")
_QUANTIFIER: Final = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
_GROUP_NAME: Final = re.compile(r"\?<([^\W\d][\w$]*|[$][\w$]*)>")


def compile_js(pattern: str) -> re.Pattern[str]:
    """Compile a JavaScript pattern.

    Args:
        pattern: in UTF-16 units.

    Raises:
        UnreadableError: if it is no pattern, or Python cannot match it, or only in a
            time without bounds.
    """
    try:
        # ASCII: JavaScript's \d, \w and \b know no other letters and digits.
        compiled = re.compile(_Translator(pattern).translated(), re.ASCII)
        is_bomb = is_explosive(compiled)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnreadableError(f"invalid pattern {pattern!r}: {error}") from None
    if is_bomb:
        raise UnreadableError(f"pattern {pattern!r} {EXPLOSIVE}")
    return compiled


def utf16_units(text: str) -> str:
    """Write each character beyond the basic plane as its two surrogates."""
    return re.sub("[\U00010000-\U0010ffff]", _surrogates, text)


def _surrogates(match: re.Match[str]) -> str:
    code = ord(match[0]) - 0x10000
    return chr(0xD800 + (code >> 10)) + chr(0xDC00 + (code & 0x3FF))


class _Translator:
    """Walks one pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._groups: dict[str, int] = {}
        self._group_count = 0
        self._is_repeatable = False

    def translated(self) -> str:
        parts: list[str] = []
        while self._at < len(self._pattern):
            parts.append(self._next_part())
        return "".join(parts)

    def _next_part(self) -> str:
        quantifier = _QUANTIFIER.match(self._pattern, self._at)
        if quantifier is not None:
            return self._quantifier(quantifier[0])
        char = self._take()
        self._is_repeatable = char not in "(|^$"
        if char == "\\":
            return self._escape()
        if char == "[":
            return self._char_class()
        if char == "(":
            return self._group()
        if char in "^|)":
            return char
        if char == "$":
            return r"\Z"
        return r"[^\n\r\u2028\u2029]" if char == "." else re.escape(char)

    def _take(self) -> str:
        if self._at == len(self._pattern):
            raise re.error("it ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _take_if(self, text: str) -> bool:
        is_next = self._pattern.startswith(text, self._at)
        self._at += len(text) if is_next else 0
        return is_next

    def _quantifier(self, text: str) -> str:
        if not self._is_repeatable:
            raise re.error(f"nothing to repeat at {self._at}")
        self._at += len(text)
        self._is_repeatable = False
        return text + ("?" if self._take_if("?") else "")

    def _group(self) -> str:
        for head in _GROUP_HEADS:
            if self._take_if(head):
                return "(" + head
        name = _GROUP_NAME.match(self._pattern, self._at)
        if name is None and self._take_if("?"):
            raise re.error(f"unknown group at {self._at - 1}")
        self._group_count += 1
        if name is not None:
            if name[1] in self._groups:
                raise re.error(f"two groups are named {name[1]!r}")
            self._groups[name[1]] = self._group_count
            self._at = name.end()
        return "("

    def _escape(self) -> str:
        char = self._take()
        if char in "bB":
            self._is_repeatable = False
        if char in "dDwWbB":
            return "\\" + char
        if char in "sS":
            return f"[{_spaces(char)}]"
        if char in "123456789":
            return self._back_reference(int(char + self._digits()))
        if char == "k" and "(?<" in self._pattern:
            return self._named_reference()
        return re.escape(self._escaped(char))

    def _digits(self) -> str:
        match = re.compile(r"[0-9]*").match(self._pattern, self._at)
        digits = "" if match is None else match[0]
        self._at += len(digits)
        return digits

    def _named_reference(self) -> str:
        match = re.compile(r"<([^>]*)>").match(self._pattern, self._at)
        if match is None or match[1] not in self._groups:
            raise re.error(f"reference to an unknown group at {self._at}")
        self._at = match.end()
        return self._back_reference(self._groups[match[1]])

    def _back_reference(self, number: int) -> str:
        # A group that took no part matches the empty text in JavaScript.
        return f"(?({number})\\{number})"

    def _escaped(self, char: str) -> str:
        """Return the unit that an escape of one character stands for."""
        if char in _CONTROLS:
            return chr(_CONTROLS[char])
        if char == "c" and re.match("[A-Za-z]", self._pattern[self._at : self._at + 1]):
            return chr(ord(self._take()) % 32)
        digits = {"x": 2, "u": 4}.get(char, 0)
        code = self._pattern[self._at : self._at + digits]
        if digits and re.fullmatch(rf"[0-9A-Fa-f]{{{digits}}}", code):
            self._at += digits
            return chr(int(code, 16))
        return char

    # --- character classes -----------------------------------------------------

    def _char_class(self) -> str:
        is_negated = self._take_if("^")
        if self._take_if("]"):
            return "(?s:.)" if is_negated else "(?!)"
        parts = ["[^" if is_negated else "["]
        while not self._take_if("]"):
            parts.append(self._class_part())
        return "".join(parts) + "]"

    def _class_part(self) -> str:
        first = self._class_atom()
        rest = self._pattern[self._at : self._at + 2]
        if not rest.startswith("-") or rest in ("-", "-]"):
            return _class_text(first)
        self._take()
        last = self._class_atom()
        if len(first) > 1 or len(last) > 1:  # one end is a set: the "-" is a member
            return _class_text(first) + _class_text("-") + _class_text(last)
        if first > last:
            raise re.error(f"range out of order before {self._at}")
        return f"{_class_text(first)}-{_class_text(last)}"

    def _class_atom(self) -> str:
        """Return one unit, or the text of a set."""
        char = self._take()
        if char != "\\":
            return char
        char = self._take()
        if char in "dDwW":
            return "\\" + char
        if char in "sS":
            return _spaces(char)
        return "\b" if char == "b" else self._escaped(char)


def _class_text(atom: str) -> str:
    return atom if len(atom) > 1 else f"\\u{ord(atom):04x}"


def _spaces(char: str) -> str:
    r"""Return the inside of a class that means ``\s`` or ``\S``."""
    ranges = list(_SPACE_RANGES)
    if char == "S":
        starts = [0, *(last + 1 for _, last in ranges)]
        ends = [*(first - 1 for first, _ in ranges), _LAST_UNIT]
        ranges = list(zip(starts, ends, strict=True))
    return "".join(
        f"\\u{first:04x}-\\u{last:04x}" for first, last in ranges if first <= last
    )
