"""The surface: what the model sees, and what may change it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.session.errors import AppendError
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject
from nestling.session.surface import Surface, is_replacement
from support.session_logs import text_block

_CONFIG = {"provider": "p", "model": "m"}


def _user(seq: int, text: str = "x", **fields: Any) -> Event:
    data = {"id": f"u{text}", "role": "user", "content": [text_block(text)]}
    return Event(seq, "user/message", seq, data, **{"surface_op": "append", **fields})


def _replace(seq: int, start: int, end: int, sources: list[int] | None) -> Event:
    operation = {"op": "replace", "start": start, "end": end}
    return _user(seq, "summary", surface_op=operation, source_event_seqs=sources)


def _header(seq: int, **config: Any) -> Event:
    header = {"config": {**_CONFIG, **config}}
    return Event(seq, "request/header", 0, {"header": header, "reason": "initial"})


def _surface(*events: Event) -> Surface:
    surface = Surface()
    for event in events:
        surface.check(event)
        surface.append(event)
    return surface


def _three() -> Surface:
    """A surface of the events 0, 2 and 3."""
    return _surface(_user(0), Event(1, "x/note", 0, {}), _user(2), _user(3))


def test_appended_messages_stand_in_order() -> None:
    assert Surface().nodes == []
    assert _three().nodes == [0, 2, 3]


@pytest.mark.parametrize(
    ("start", "end", "nodes"),
    [
        (0, 0, [9, 2, 3]),
        (2, 2, [0, 9, 3]),
        (0, 2, [9, 3]),
        (2, 3, [0, 9]),
        (0, 3, [9]),
    ],
)
def test_a_replacement_swaps_an_inclusive_range(
    start: int, end: int, nodes: list[int]
) -> None:
    surface = _three()
    event = _replace(9, start, end, [0, 2, 3])
    surface.check(event)
    assert surface.nodes == [0, 2, 3]  # checking changes nothing
    surface.append(event)
    assert surface.nodes == nodes


def test_a_replacement_can_be_replaced_in_surface_order() -> None:
    surface = _three()
    surface.append(_replace(4, 0, 2, [0, 2]))
    assert surface.nodes == [4, 3]
    # Event 4 stands before event 3, though it was logged later.
    surface.check(_replace(5, 4, 3, [3, 4]))
    with pytest.raises(AppendError, match="reverse order"):
        surface.check(_replace(5, 3, 4, [3, 4]))
    with pytest.raises(AppendError, match=r"replaces 0\.\.3, not on the surface"):
        surface.check(_replace(5, 0, 3, [0, 3]))


_CITED: JsonObject = {"op": "replace", "start": 0, "end": 2}


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (_user(4, surface_op=None), "must have a surfaceOp"),
        (Event(4, "x/note", 0, {}, "append"), "x/note must not have surface fields"),
        (Event(4, "tool/call", 0, {}, None, [1]), "must not have surface fields"),
        (_user(4, surface_op="prepend"), "'append' or a replacement, found 'prepend'"),
        (_user(4, surface_op={"op": "replace"}), "'append' or a replacement"),
        (_user(4, surface_op=7), "'append' or a replacement"),
        (_replace(4, 1, 2, [1, 2]), "not on the surface"),
        (_replace(4, 0, 4, [0, 2, 3]), "not on the surface"),
        (_replace(4, 3, 0, [0, 2, 3]), "reverse order"),
        (_replace(4, 0, 2, [0]), "replaces event 2, which sourceEventSeqs"),
        (_replace(4, 0, 2, None), "replaces event 0, which sourceEventSeqs"),
        (_user(4, source_event_seqs=[4]), "earlier events than 4"),
        (_user(4, source_event_seqs=[-1]), "earlier events than 4"),
        (_user(4, source_event_seqs=[True]), "earlier events than 4"),
        (_user(4, source_event_seqs=["1"]), "earlier events than 4"),
        (_user(4, source_event_seqs=3), "earlier events than 4"),
        (_user(4, source_event_seqs=(1,)), "earlier events than 4"),
        (_user(4, source_event_seqs=[1, 2, 1]), "names an event twice"),
        (_user(4, source_event_seqs=[]), "must not be empty"),
    ],
)
def test_violations_are_refused(event: Event, words: str) -> None:
    surface = _three()
    digest = surface.request_digest()
    with pytest.raises(AppendError, match=words):
        surface.check(event)
    assert surface.nodes == [0, 2, 3]
    assert surface.request_digest() == digest


def test_only_an_assistant_message_may_cite_nothing() -> None:
    surface = _three()
    surface.check(Event(4, "assistant/message", 0, {}, "append", []))
    with pytest.raises(AppendError, match="must not be empty"):
        surface.check(Event(4, "tool/result", 0, {}, "append", []))


def test_an_unchecked_replacement_of_nothing_is_refused() -> None:
    surface = _three()
    with pytest.raises(AppendError, match="not on the surface"):
        surface.append(_replace(9, 7, 8, None))
    assert surface.nodes == [0, 2, 3]


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        (_CITED, True),
        ("append", False),
        ({**_CITED, "op": "append"}, False),
        ({**_CITED, "start": -1}, False),
        ({**_CITED, "end": True}, False),
        ({**_CITED, "more": 1}, False),
        (None, False),
    ],
)
def test_is_replacement(operation: Any, answer: bool) -> None:
    assert is_replacement(operation) is answer


def _digest(*events: Event) -> bytes:
    return _surface(*events).request_digest()


def test_equal_surfaces_and_headers_have_equal_digests() -> None:
    log = [_header(0), _user(1, "a"), Event(2, "x/note", 0, {"n": 1}), _user(3, "b")]
    other = [
        Event(event.seq, event.type, event.time + 99, event.data, event.surface_op)
        for event in log
    ]
    other[2] = Event(2, "y/other", 5, [])
    assert _digest(*log) == _digest(*other)
    assert len(_digest(*log)) == 32


@pytest.mark.parametrize(
    "other",
    [
        [_header(0), _user(1, "b"), _user(2, "a")],
        [_header(0), _user(1, "a"), _user(2, "c")],
        [_header(0), _user(1, "a")],
        [_header(0), _user(1, "a"), _user(2, "b"), _user(3, "b")],
        [_header(0, model="m2"), _user(1, "a"), _user(2, "b")],
        [_user(0, "a"), _user(1, "b")],
        [_header(0), _user(1, "a"), _user(2, "b"), _header(3, model="m2")],
        [_header(0), _user(1, "a"), _user(2, "b"), _replace(3, 1, 2, [1, 2])],
    ],
)
def test_other_requests_have_other_digests(other: list[Event]) -> None:
    assert _digest(*other) != _digest(_header(0), _user(1, "a"), _user(2, "b"))


def test_only_the_last_header_counts() -> None:
    changed = [_header(0, model="m2"), _header(1), _user(2)]
    assert _digest(*changed) == _digest(_header(0), _header(1), _user(2))


def test_the_route_is_what_the_last_header_says() -> None:
    assert _surface().route == ("", "")
    assert _surface(_user(0)).route == ("", "")
    surface = _surface(_header(0), _user(1), _header(2, model="m2", provider="p2"))
    assert surface.route == ("p2", "m2")
    assert _surface(_header(0, model="m2"), _header(1)).route == ("p", "m")


@pytest.mark.parametrize("data", [None, {}, {"header": {"config": {"model": 1}}}])
def test_a_malformed_header_leads_nowhere(data: Any) -> None:
    """An old recording may hold one, and is read all the same."""
    surface = Surface()
    surface.append(_header(0))
    surface.append(Event(1, "request/header", 0, data))
    assert surface.route == ("", "")


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_replacements_agree_with_a_list(choice: st.DataObject) -> None:
    surface = Surface()
    model: list[int] = []
    for seq in range(choice.draw(st.integers(1, 15))):
        replaces = choice.draw(st.booleans())
        if model and replaces:
            first = choice.draw(st.integers(0, len(model) - 1))
            last = choice.draw(st.integers(first, len(model) - 1))
            event = _replace(seq, model[first], model[last], model[first : last + 1])
            model[first : last + 1] = [seq]
        else:
            event = _user(seq)
            model.append(seq)
        surface.check(event)
        surface.append(event)
    assert surface.nodes == model
