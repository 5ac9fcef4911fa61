"""Placeholders: parts of a scripted answer that are taken from the live request.

``{{fromRequest:<regex>}}`` in any string of an entry stands for the last match in the
request: its first group where the pattern has one that matched, else all of it. The
text searched is every string in the request's messages, one a line.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from nestling.harness.js_regex import compile_js, utf16_units
from nestling.harness.scripts import Entry
from nestling.session.errors import UnreadableError
from nestling.session.event import Event
from nestling.session.fold import joined
from nestling.session.jsontext import Json

_OPENING: Final = "{{fromRequest:"
_CLOSING: Final = re.compile(r"\}\}+")


def has_placeholders(entry: Entry) -> bool:
    """Tell whether an entry has something to be filled in."""
    strings = (entry.message, entry.code, entry.ready_file)
    return any(_OPENING in text for text in _strings([*entry.chunks, *strings]))


def resolve(
    entry: Entry, messages: Sequence[Json], found: dict[str, str] | None = None
) -> Entry:
    """Fill in an entry's placeholders.

    Args:
        entry: a scripted answer; the same object comes back if it has none.
        messages: the messages of the request, as JSON.
        found: takes what each placeholder came to.

    Raises:
        UnreadableError: if a placeholder does not end, its pattern is invalid, or it
            matches nothing.
    """
    if not has_placeholders(entry):
        return entry
    request = _Request(messages, {} if found is None else found)
    strings = (entry.message, entry.code, entry.ready_file)
    message, code, ready_file = (request.filled(text) for text in strings)
    return msgspec.structs.replace(
        entry,
        chunks=tuple(request.filled(chunk) for chunk in entry.chunks),
        message=message,
        code=code,
        ready_file=ready_file,
    )


def filled_event(event: Event, found: Mapping[str, str]) -> Event:
    """Return an event with the placeholders in it that are known filled in.

    Args:
        event: a recorded one; the same object comes back if it has none.
        found: what each placeholder came to.
    """
    if not any(_OPENING in text for text in _strings(event.data)):
        return event
    return msgspec.structs.replace(event, data=_replaced(event.data, found))


def _replaced(value: Json, found: Mapping[str, str]) -> Json:
    if type(value) is str:
        for placeholder, text in found.items():
            value = value.replace(placeholder, text)
        return value
    if type(value) is list:
        return [_replaced(item, found) for item in value]
    if type(value) is dict:
        return {key: _replaced(item, found) for key, item in value.items()}
    return value


class _Request:
    """The request that placeholders are filled from."""

    def __init__(self, messages: Sequence[Json], found: dict[str, str]) -> None:
        self._messages = messages
        self._known = found

    @cached_property
    def _text(self) -> str:
        return utf16_units("\n".join(_strings(list(self._messages))))

    def filled(self, value: Json) -> Json:
        """Return a value with the placeholders in its strings filled in."""
        if type(value) is str:
            return self._filled_text(value) if _OPENING in value else value
        if type(value) is list:
            return [self.filled(item) for item in value]
        if type(value) is dict:
            return {key: self.filled(item) for key, item in value.items()}
        return value

    def _filled_text(self, text: str) -> str:
        parts: list[str] = []
        at = 0
        while (start := text.find(_OPENING, at)) >= 0:
            begin = start + len(_OPENING)
            closing = _CLOSING.search(text, begin)
            if closing is None:
                raise UnreadableError(
                    f"fromRequest: found {text[start:]!r}, expected }}}} at its end"
                )
            # A run of braces ends with the placeholder's own two: the ones before
            # them belong to the pattern, as in {{fromRequest:a{4}}}.
            end = closing.end()
            value = self._found(text[begin : end - 2])
            self._known[text[start:end]] = value
            parts += [text[at:start], value]
            at = end
        return "".join([*parts, text[at:]])

    def _found(self, pattern: str) -> str:
        try:
            compiled = compile_js(utf16_units(pattern))
        except UnreadableError as error:
            raise UnreadableError(f"fromRequest: {error}") from None
        matches = deque(compiled.finditer(self._text), maxlen=1)
        if not matches:
            raise UnreadableError(
                f"fromRequest: pattern {pattern!r} matched nothing in the request"
            )
        last = matches[0]
        group = last[1] if compiled.groups else None
        return joined(last[0] if group is None else group)


def _strings(value: Json) -> Iterator[str]:
    """Yield every string inside a value, in order; keys are not among them."""
    if type(value) is str:
        yield value
    elif type(value) is list:
        for item in value:
            yield from _strings(item)
    elif type(value) is dict:
        for item in value.values():
            yield from _strings(item)
