"""Shapes of chunks and of the events that replay stands on."""

from __future__ import annotations

from typing import Any

import pytest

from nestling.session.chunk import CHUNK_TYPES, chunk_problem, error_finish, is_finish
from nestling.session.errors import AppendError
from nestling.session.event import Event, event_from_content
from nestling.session.jsontext import JsonObject
from nestling.session.shape import check_shape, shape_problem
from support.session_logs import call_block, delta, finish, result_message

_CHUNKS: list[JsonObject] = [
    {"type": "block-start", "index": 0, "blockType": "text"},
    delta("x"),
    delta("x", 0, "reasoning-delta"),
    {"type": "tool-call-delta", "index": 0, "id": "c", "argumentsDelta": "{"},
    {"type": "block-end", "index": 0, "block": {"type": "text", "text": "x"}},
    {"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 1}},
    finish(),
]


def test_every_kind_of_chunk_is_known() -> None:
    assert {chunk["type"] for chunk in _CHUNKS} == CHUNK_TYPES
    assert [chunk_problem(chunk) for chunk in _CHUNKS] == [None] * len(_CHUNKS)
    assert [is_finish(chunk) for chunk in _CHUNKS] == [False] * 6 + [True]


@pytest.mark.parametrize("chunk", _CHUNKS, ids=lambda chunk: str(chunk["type"]))
@pytest.mark.parametrize("wrong", [None, True, [], 1.0])
def test_each_field_of_a_chunk_must_be_there_and_right(
    chunk: JsonObject, wrong: Any
) -> None:
    for key in chunk:
        missing = {other: chunk[other] for other in chunk if other != key}
        assert chunk_problem(missing) is not None
        assert chunk_problem({**chunk, key: wrong}) is not None


@pytest.mark.parametrize("chunk", [None, [], "x", {}, {"type": []}, {"type": "new"}])
def test_what_is_no_chunk(chunk: Any) -> None:
    assert chunk_problem(chunk) is not None


def test_a_tool_name_is_optional_but_a_string() -> None:
    chunk = _CHUNKS[3]
    assert chunk_problem({**chunk, "name": "n"}) is None
    assert chunk_problem({**chunk, "name": None}) is not None


def test_a_failed_stream_has_a_finish() -> None:
    failure = {"message": "m", "code": "SERVER"}
    chunk = error_finish(failure)
    assert is_finish(chunk)
    assert chunk_problem(chunk) is None
    assert chunk["reason"] == {"kind": "error", "failure": failure}


_PLACE = {"turn": 1, "step": 1}
_USER: JsonObject = {"id": "u", "role": "user", "content": []}
_ASSISTANT = {"id": "a", "role": "assistant", "content": [call_block("c")]}
_CONFIG = {"config": {"provider": "p", "model": "m"}}
_RESULT = result_message("c")

_GOOD: list[tuple[str, JsonObject]] = [
    ("turn/start", {"turn": 1}),
    ("turn/end", {"turn": 1, "reason": {"kind": "completed"}}),
    ("step/start", _PLACE),
    ("step/end", _PLACE),
    ("assistant/chunk", {**_PLACE, "chunk": delta("x")}),
    ("assistant/message", {**_PLACE, "message": _ASSISTANT}),
    ("user/message", _USER),
    ("tool/call", {**_PLACE, "callId": "c", "name": "n", "arguments": "{}"}),
    ("tool/result", {**_PLACE, "message": _RESULT}),
    ("request/header", {"header": _CONFIG, "reason": "initial"}),
]


@pytest.mark.parametrize(("kind", "data"), _GOOD)
def test_good_shapes(kind: str, data: JsonObject) -> None:
    check_shape(Event(0, kind, 0, data))
    check_shape(Event(0, kind, 0, {**data, "later": 1}))


@pytest.mark.parametrize(("kind", "data"), _GOOD)
def test_a_shape_that_lacks_a_field(kind: str, data: JsonObject) -> None:
    for key in data.keys() - {"reason"} | (
        data.keys() if kind == "turn/end" else set()
    ):
        spoiled = {other: data[other] for other in data if other != key}
        with pytest.raises(AppendError, match=kind):
            check_shape(Event(0, kind, 0, spoiled))


@pytest.mark.parametrize(("kind", "data"), _GOOD)
@pytest.mark.parametrize("wrong", [None, [], "x", 3])
def test_data_that_is_no_object(kind: str, data: JsonObject, wrong: Any) -> None:
    with pytest.raises(AppendError, match=f"data of {kind} must be an object"):
        check_shape(Event(0, kind, 0, wrong))


def _result(**changes: Any) -> JsonObject:
    return {**_PLACE, "message": {**_RESULT, **changes}}


def _ended(kind: str, **more: Any) -> JsonObject:
    return {"turn": 1, "reason": {"kind": kind, **more}}


def _finished(reason: JsonObject) -> JsonObject:
    return {**_PLACE, "chunk": {"type": "finish", "reason": reason}}


def _routed(**names: str) -> JsonObject:
    return {"header": {"config": {"provider": "p", "model": "m", **names}}}


_BLOCK = _RESULT["content"][0]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("turn/end", _ended("aborted")),
        ("turn/end", _ended("aborted", reason={})),
        ("turn/end", _ended("error", reason="any")),
        ("assistant/chunk", _finished({"kind": ""})),
        ("request/header", _routed(provider="", model="")),
        ("request/header", _routed(provider="😀" * 256, model="é" * 256)),
    ],
)
def test_what_is_still_well_formed(kind: str, data: JsonObject) -> None:
    assert shape_problem(Event(0, kind, 0, data)) is None


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("turn/start", {"turn": True}, "turn must be an integer >= 0, found true"),
        ("turn/start", {"turn": 1.0}, "turn must be"),
        ("step/start", {"turn": 1, "step": -1}, "step must be"),
        ("turn/end", {"turn": 1, "reason": "completed"}, "reason must be an object"),
        ("turn/end", {"turn": 1, "reason": {"kind": 1}}, "reason must be"),
        ("assistant/chunk", {**_PLACE, "chunk": {"type": "new"}}, "known type"),
        ("user/message", {**_USER, "id": ""}, "id must be a non-empty string"),
        ("user/message", {**_USER, "role": "assistant"}, "role must be 'user'"),
        ("user/message", {**_USER, "content": "x"}, "content must be a list"),
        ("user/message", {**_USER, "content": ["x"]}, "content block must be"),
        ("user/message", {**_USER, "content": [{"type": 1}]}, "content block must be"),
        ("tool/call", {**_PLACE, "callId": 1}, "callId must be a string"),
        ("tool/result", _result(source=None), "source must name a callId"),
        ("tool/result", _result(source={"callId": 1}), "source must name a callId"),
        ("tool/result", _result(content=[]), "exactly one tool-result block"),
        ("tool/result", _result(content=[_BLOCK, _BLOCK]), "exactly one"),
        ("tool/result", _result(content=[{"type": "text"}]), "exactly one"),
        (
            "tool/result",
            _result(source={"callId": "d"}),
            'answers "c", the message "d"',
        ),
        ("turn/start", {"turn": "9" * 5000}, f'"{"9" * 59} … {"9" * 59}"'),
        ("turn/end", _ended("aborted", reason="user"), "cause of an abort must be an"),
        ("turn/end", _ended("aborted", reason=None), "cause of an abort must be an"),
        ("assistant/chunk", {**_PLACE, "chunk": {"type": "\ud800"}}, '"\\ud800"'),
        ("assistant/chunk", _finished({}), "reason of a finish chunk must have a kind"),
        ("assistant/chunk", _finished({"kind": 1}), "must have a kind"),
        ("assistant/chunk", _finished({"kind": None}), "must have a kind"),
        ("request/header", {"header": {}}, "header must be an object with a config"),
        ("request/header", {"header": {"config": {"provider": "p"}}}, "config.model"),
        ("request/header", _routed(provider="p" * 257), "provider must be a string of"),
        ("request/header", _routed(model="m" * 257), "at most 256 whole characters"),
        ("request/header", _routed(model="x\ud800"), 'found "x\\ud800"'),
        ("request/header", _routed(provider="\udfff"), 'found "\\udfff"'),
    ],
)
def test_malformed_shapes(kind: str, data: JsonObject, words: str) -> None:
    problem = shape_problem(Event(0, kind, 0, data))
    assert problem is not None
    assert words in problem


@pytest.mark.parametrize("key", ["id", "name", "arguments"])
def test_a_tool_call_block_has_three_strings(key: str) -> None:
    message = {**_ASSISTANT, "content": [{**call_block("c"), key: None}]}
    problem = shape_problem(
        Event(0, "assistant/message", 0, {**_PLACE, "message": message})
    )
    assert problem == f"assistant/message: {key} of a tool-call block must be a string"


@pytest.mark.parametrize("data", [None, 1, "x", [], {}])
def test_other_types_are_opaque(data: Any) -> None:
    assert shape_problem(Event(0, "x/later", 0, data)) is None


def test_an_event_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Event(0, "x", 0, None).seq = 1  # type: ignore[misc]


def test_an_event_is_its_content_a_place_and_a_time() -> None:
    event = Event(3, "x", 7, {"a": 1}, {"op": "replace"}, [1, 2], True)
    assert event.row() == {
        "type": "x", "seq": 3, "time": 7, "data": {"a": 1},
        "sourceEventSeqs": [1, 2], "surfaceOp": {"op": "replace"}, "ignorable": True,
    }  # fmt: skip
    content = event.content()
    assert content.keys() == event.row().keys() - {"seq", "time"}
    assert event_from_content(content, 3, 7).row() == event.row()
    bare = Event(0, "x", 0, None)
    assert bare.content() == {"type": "x", "data": None}
    assert event_from_content(bare.content(), 0, 0).row() == bare.row()
