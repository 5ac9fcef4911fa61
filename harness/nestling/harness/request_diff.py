"""What differs between two requests, written for people.

``-`` is what the recording has, ``+`` what the live run has. Only what a model sees
counts: of a message its role and content, not its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple

from nestling.harness.matching import Matcher
from nestling.harness.printable import shown
from nestling.harness.volatile import advice
from nestling.session.jsontext import Json, JsonObject, canonical, dumps
from nestling.session.request import Request

_LINE_CHARS: Final = 100
"""A line that is longer is cut down to the surroundings of its difference."""
_BEFORE_CHARS: Final = 30
_MOST_LINES: Final = 24
"""So many lines of one difference are shown."""
_MOST_COMPARED: Final = 400
"""Longer texts and conversations are compared from their ends only."""


class Change(NamedTuple):
    """One thing in which two requests differ.

    Attributes:
        place: where, as ``tools.deploy`` or ``messages[3] (user)``.
        part: what of the request it is: ``system``, ``tools``, ``config``, ``messages``.
        lines: the difference, one line each.
        advice: which normaliser to declare, if it looks like what changes with each run.
    """

    place: str
    part: str
    lines: tuple[str, ...]
    advice: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """What is the same if a later request has the same difference."""
        return (self.part, *self.lines)


def request_changes(live: Request, recorded: Request, matcher: Matcher) -> list[Change]:
    """Return what differs between two requests; nothing if they are the same.

    Args:
        live: the one that the live log leads to.
        recorded: the one that the recorded log leads to.
        matcher: what is the same; it takes in what stands for what.
    """
    differ = _Differ(matcher)
    return [
        *differ.values("config", "config", live.config, recorded.config),
        *differ.values("system", "system", live.system, recorded.system),
        *differ.tools(live.tools, recorded.tools),
        *differ.messages(live.messages, recorded.messages),
    ]


def changes_text(changes: Sequence[Change]) -> str:
    """Return changes as text of several lines, the first of which sums them up."""
    kinds = dict.fromkeys(_KINDS[change.part] for change in changes)
    lines = [f"the request is not the recorded one, in {' and '.join(kinds)}"]
    for change in changes:
        lines.append(f"{change.place}:")
        lines += [f"  {line}" for line in change.lines]
        if change.advice is not None:
            lines.append(f"  {change.advice}")
    return "\n".join(lines)


_KINDS: Final = {
    "config": "the model options",
    "system": "the system prompt",
    "tools": "the tools",
    "messages": "the messages",
}


class _Differ:
    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def values(
        self, place: str, part: str, live: Json, recorded: Json
    ) -> Iterator[Change]:
        """Yield the places where two JSON values differ, as deep as they can be named."""
        problem: str | None = ""
        if live is not _ABSENT and recorded is not _ABSENT:
            problem = self._matcher.difference(live, recorded)
        if problem is None:
            return
        if type(live) is dict and type(recorded) is dict:
            for key in dict.fromkeys([*recorded, *live]):
                one, other = live.get(key, _ABSENT), recorded.get(key, _ABSENT)
                yield from self.values(f"{place}.{key}", part, one, other)
            return
        lines = tuple(self._lines(_text(live), _text(recorded)))
        hint = advice(_text(live), _text(recorded), self._matcher.normalisers)
        yield Change(place, part, lines if lines else (problem,), hint)

    def _lines(self, live: str | None, recorded: str | None) -> Iterator[str]:
        normalised = self._matcher.normalisers.normalised
        ours = None if live is None else normalised(live)
        theirs = None if recorded is None else normalised(recorded)
        yield from text_lines(ours, theirs)

    # --- tools -----------------------------------------------------------------

    def tools(self, live: Json, recorded: Json) -> Iterator[Change]:
        """Yield the tools that were added, removed or changed."""
        mine, others = _by_name(live), _by_name(recorded)
        if mine is None or others is None:
            yield from self.values("tools", "tools", live, recorded)
            return
        if mine.keys() == others.keys() and [*mine] != [*others]:
            lines = (f"- {', '.join(others)}", f"+ {', '.join(mine)}")
            yield Change("the order of tools", "tools", lines)
        for name in dict.fromkeys([*others, *mine]):
            place = f"tools.{name}"
            if name not in others:
                yield Change(place, "tools", (f"+ {_cut(_plain(mine[name]))}",))
            elif name not in mine:
                yield Change(place, "tools", (f"- {_cut(_plain(others[name]))}",))
            else:
                yield from self.values(place, "tools", mine[name], others[name])

    # --- messages --------------------------------------------------------------

    def messages(
        self, live: Sequence[JsonObject], recorded: Sequence[JsonObject]
    ) -> Iterator[Change]:
        """Yield the messages that were added, removed or changed."""
        mine, others = ([_seen(m) for m in each] for each in (live, recorded))
        first = 0
        shorter = min(len(mine), len(others))
        while first < shorter and self._matcher.is_same(mine[first], others[first]):
            first += 1
        last = 0
        while last < shorter - first and self._matcher.is_same(
            mine[-1 - last], others[-1 - last]
        ):
            last += 1
        mine, others = (
            mine[first : len(mine) - last],
            others[first : len(others) - last],
        )
        keys = ([self._key(message) for message in each] for each in (mine, others))
        # Messages may have equal keys and not be the same: what they name may differ.
        for (a, b), (c, d) in _blocks(*keys, with_equal=True):
            yield from self._block(first, mine[a:b], others[c:d], a, c)

    def _key(self, message: JsonObject) -> str:
        normalised = self._matcher.normalisers.normalised
        return normalised(canonical(message).decode("ascii"))

    def _block(
        self,
        first: int,
        live: Sequence[JsonObject],
        recorded: Sequence[JsonObject],
        at: int,
        was_at: int,
    ) -> Iterator[Change]:
        """Yield the differences of messages that stand in each other's place."""
        both = min(len(live), len(recorded))
        for number in range(both):
            place = _place(first + at + number, live[number])
            yield from self._message(place, live[number], recorded[number])
        for number in range(both, len(recorded)):
            message = recorded[number]
            place = f"{_place(first + was_at + number, message)} is missing"
            yield Change(place, "messages", tuple(text_lines(None, _spoken(message))))
        for number in range(both, len(live)):
            message = live[number]
            place = f"{_place(first + at + number, message)} is new"
            yield Change(place, "messages", tuple(text_lines(_spoken(message), None)))

    def _message(
        self, place: str, live: JsonObject, recorded: JsonObject
    ) -> Iterator[Change]:
        problem = self._matcher.difference(live, recorded)
        if problem is None:
            return
        mine, others = _spoken(live), _spoken(recorded)
        if mine == others and not problem:
            yield from self.values(place, "messages", live, recorded)
            return
        lines = tuple(self._lines(mine, others))
        hint = advice(mine, others, self._matcher.normalisers)
        yield Change(place, "messages", lines if lines else (problem,), hint)


_ABSENT: Final = object()


def _text(value: object) -> str | None:
    if value is _ABSENT:
        return None
    return value if isinstance(value, str) else _plain(value)


def _plain(value: Json) -> str:
    return dumps(value).decode("utf-8")


def _by_name(tools: Json) -> dict[str, Json] | None:
    """Return tools by their names; None if they are not told apart by them."""
    found: dict[str, Json] = {}
    if tools is None:
        return found
    if type(tools) is not list:
        return None
    for tool in tools:
        name = tool.get("name") if type(tool) is dict else None
        if type(name) is not str or name in found:
            return None
        found[name] = tool
    return found


def _seen(message: JsonObject) -> JsonObject:
    """Return of a message what a model sees."""
    return {key: message[key] for key in ("role", "content") if key in message}


def _place(number: int, message: JsonObject) -> str:
    return f"messages[{number}] ({shown(str(message.get('role')))})"


def _spoken(message: JsonObject) -> str:
    """Return a message as text, one block after the other."""
    content = message.get("content")
    if type(content) is not list:
        return _plain(content)
    return "\n".join(map(_block_text, content))


def _block_text(block: Json) -> str:
    kind = block.get("type") if type(block) is dict else None
    if kind == "text" and type(block.get("text")) is str:
        text: str = block["text"]
        return text
    if kind == "tool-call":
        return f"[{block.get('id')}: {block.get('name')}({block.get('arguments')})]"
    if kind == "tool-result" and type(block.get("content")) is list:
        failed = ", an error" if block.get("isError") else ""
        told = "\n".join(map(_block_text, block["content"]))
        return f"[result of {block.get('toolCallId')}{failed}] {told}"
    return _plain(block)


# --- lines -----------------------------------------------------------------------


def text_lines(live: str | None, recorded: str | None) -> Iterator[str]:
    """Yield the difference of two texts, line by line; None for one that is not there.

    Equal lines are left out, and long ones are cut down to what differs.
    """
    lines = list(_lines(_split(live), _split(recorded)))
    if live is not None and live == recorded:
        return
    yield from lines[:_MOST_LINES]
    if len(lines) > _MOST_LINES:
        yield f"… {len(lines) - _MOST_LINES} more lines"


def _split(text: str | None) -> list[str]:
    return [] if text is None else text.split("\n")


def _lines(live: Sequence[str], recorded: Sequence[str]) -> Iterator[str]:
    first = _common(live, recorded)
    last = _common(live[first:][::-1], recorded[first:][::-1])
    mine, others = (
        live[first : len(live) - last],
        recorded[first : len(recorded) - last],
    )
    for (a, b), (c, d) in _blocks(mine, others):
        both = min(b - a, d - c)
        for one, other in zip(mine[a:b], others[c:d], strict=False):
            start = _common(one, other)
            yield f"- {_cut(other, start)}"
            yield f"+ {_cut(one, start)}"
        yield from (f"- {_cut(line)}" for line in others[c + both : d])
        yield from (f"+ {_cut(line)}" for line in mine[a + both : b])


def _blocks(
    live: Sequence[str], recorded: Sequence[str], *, with_equal: bool = False
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield the ranges of two sequences that stand in each other's place and differ.

    Args:
        live: one.
        recorded: the other.
        with_equal: yield those that do not differ, too.
    """
    if max(len(live), len(recorded)) > _MOST_COMPARED:
        yield (0, len(live)), (0, len(recorded))
        return
    compared = SequenceMatcher(None, live, recorded, autojunk=False)
    for what, a, b, c, d in compared.get_opcodes():
        if with_equal or what != "equal":
            yield (a, b), (c, d)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many items two sequences have in common at their beginning."""
    count = 0
    for mine, its in zip(one, other, strict=False):
        if mine != its:
            break
        count += 1
    return count


def _cut(line: str, start: int = 0) -> str:
    """Return a line safe to print, cut down to the surroundings of a place in it."""
    if len(line) <= _LINE_CHARS:
        return shown(line)
    begin = max(0, min(start - _BEFORE_CHARS, len(line) - _LINE_CHARS))
    part = shown(line[begin : begin + _LINE_CHARS])
    before = "…" if begin else ""
    after = "…" if begin + _LINE_CHARS < len(line) else ""
    return f"{before}{part}{after}"
