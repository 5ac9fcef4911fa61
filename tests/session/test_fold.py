"""Folding chunks into a message: the numbered rules of the format."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.session.errors import UnreadableError
from nestling.session.fold import STOP, fold, fold_interrupted, joined
from nestling.session.jsontext import JsonObject
from support.session_logs import call_block, delta, finish, text_block


def _start(index: int, kind: str) -> JsonObject:
    return {"type": "block-start", "index": index, "blockType": kind}


def _end(index: int, block: JsonObject) -> JsonObject:
    return {"type": "block-end", "index": index, "block": block}


def _call(index: int, arguments: str, **parts: str) -> JsonObject:
    head = {"type": "tool-call-delta", "index": index, "id": ""}
    return {**head, **parts, "argumentsDelta": arguments}


def _reasoning(text: str) -> JsonObject:
    return {"type": "reasoning", "text": text}


def _blocks(*chunks: JsonObject) -> list[JsonObject]:
    return fold(chunks).blocks


def test_rule_1_blocks_stand_in_the_order_of_their_first_chunk() -> None:
    chunks = [
        delta("b", 7),
        _start(2, "reasoning"),
        delta("a", 0),
        delta("B", 7),
        delta("r", 2, "reasoning-delta"),
    ]
    assert _blocks(*chunks) == [text_block("bB"), _reasoning("r"), text_block("a")]


def test_rule_2_a_second_start_is_ignored() -> None:
    chunks = [_start(0, "text"), delta("a"), _start(0, "reasoning"), delta("b")]
    assert _blocks(*chunks) == [text_block("ab")]


def test_rule_2_a_delta_opens_a_block() -> None:
    assert _blocks(delta("r", 3, "reasoning-delta")) == [_reasoning("r")]
    assert _blocks(_start(0, "text")) == [text_block("")]


def test_rule_3_the_first_end_replaces_the_deltas_and_closes() -> None:
    chunks = [
        delta("a"),
        _end(0, text_block("X")),
        delta("b"),
        _end(0, text_block("Y")),
        _start(0, "reasoning"),
    ]
    assert _blocks(*chunks) == [text_block("X")]


def test_rule_3_an_end_alone_is_a_block_of_any_type() -> None:
    block = {"type": "audio", "data": [1]}
    assert _blocks(_end(5, block)) == [block]
    assert _blocks(_start(5, "audio"), _end(5, block)) == [block]


def test_rule_4_defaults_of_an_unclosed_tool_call() -> None:
    assert _blocks(_start(4, "tool-call")) == [
        {"type": "tool-call", "id": "call-4", "name": "", "arguments": ""}
    ]
    assert _blocks(_call(2, '{"a', id="c", name="n"), _call(2, '":1}', id="c")) == [
        {"type": "tool-call", "id": "c", "name": "n", "arguments": '{"a":1}'}
    ]


def test_rule_4_an_unclosed_block_of_unknown_type_is_an_error() -> None:
    with pytest.raises(UnreadableError, match="block 1 of unknown type 'audio'"):
        fold([_start(1, "audio"), finish()])


def test_rule_5_the_last_usage_wins() -> None:
    usages = [{"inputTokens": n, "outputTokens": n} for n in (1, 2)]
    chunks = [{"type": "usage", "usage": usage} for usage in usages]
    assert fold([*chunks, finish()]).usage == usages[1]
    assert fold([finish()]).usage is None


def test_rule_6_a_missing_finish_is_a_stop() -> None:
    folded = fold([delta("a")])
    assert folded.finish == STOP == {"kind": "stop"}
    assert folded.replay_state is None
    reason = {"kind": "error", "failure": {"message": "m", "code": "SERVER"}}
    assert fold([{"type": "finish", "reason": reason}]).finish == reason


_CLOSED_AND_OPEN = [
    _end(0, call_block("c1")),
    delta("t", 1),
    _call(2, "{", id="c2", name="n"),
    delta("r", 3, "reasoning-delta"),
]


def test_rule_7_max_tokens_drops_tool_calls_closed_or_not() -> None:
    folded = fold([*_CLOSED_AND_OPEN, finish("max-tokens")])
    assert folded.blocks == [text_block("t"), _reasoning("r")]
    assert folded.finish == {"kind": "max-tokens"}
    kept = fold([*_CLOSED_AND_OPEN, finish("tool-calls")])
    assert [block["type"] for block in kept.blocks] == [
        "tool-call", "text", "tool-call", "reasoning",
    ]  # fmt: skip


def _state_of(kind: str, state: Any) -> JsonObject | None:
    return fold([*_CLOSED_AND_OPEN, finish(kind, replayState=state)]).replay_state


def test_rule_7_the_replay_state_is_pruned_in_step() -> None:
    state = {"response": {"id": "r"}, "blocks": ["b0", None, "b2", "b3"]}
    assert _state_of("max-tokens", state) == {**state, "blocks": [None, "b3"]}
    assert _state_of("tool-calls", state) == state
    assert _state_of("max-tokens", {"response": 1}) == {"response": 1}


@pytest.mark.parametrize("blocks", [[], ["b"] * 3, ["b"] * 5, "bbbb", {"0": 1}])
@pytest.mark.parametrize("kind", ["stop", "max-tokens"])
def test_rule_7_a_replay_state_out_of_step_is_dropped(kind: str, blocks: Any) -> None:
    assert _state_of(kind, {"response": 1, "blocks": blocks}) is None


def test_rule_8_an_interrupted_call_keeps_what_can_be_read() -> None:
    chunks = [
        *_CLOSED_AND_OPEN,
        delta(" \n", 4),
        _end(5, text_block("closed")),
        _end(6, {"type": "audio"}),
        _start(7, "audio"),
        _start(8, "text"),
        _end(9, _reasoning("\t")),
        delta(" x ", 10),
    ]
    assert fold_interrupted(chunks) == [
        text_block("t"), _reasoning("r"), text_block("closed"), text_block(" x "),
    ]  # fmt: skip
    assert fold_interrupted([]) == []


def test_a_call_without_chunks_has_no_blocks() -> None:
    assert fold([]) == ([], STOP, None, None)


@pytest.mark.parametrize("kind", ["text", "reasoning"])
def test_a_pair_split_over_two_deltas_joins(kind: str) -> None:
    chunks = [delta(half, 0, f"{kind}-delta") for half in ("a\ud83d", "\ude00b")]
    assert _blocks(*chunks) == [{"type": kind, "text": "a\U0001f600b"}]
    assert fold_interrupted(chunks) == _blocks(*chunks)


def test_a_pair_split_over_tool_call_deltas_joins() -> None:
    (block,) = _blocks(_call(0, '"\ud83d'), _call(0, '\ude00"'))
    assert block["arguments"] == '"\U0001f600"'


def test_halves_in_different_blocks_do_not_join() -> None:
    chunks = [delta("\ud83d", 0), delta("\ude00", 1), delta("\ud83d", 0)]
    assert _blocks(*chunks) == [text_block("\ud83d\ud83d"), text_block("\ude00")]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", ""),
        ("é\U0001f600", "é\U0001f600"),
        ("\ud83d", "\ud83d"),
        ("\ude00\ud83d", "\ude00\ud83d"),
        ("\ud83d\ud83d\ude00", "\ud83d\U0001f600"),
        ("\ud83d\ude00\ude00", "\U0001f600\ude00"),
    ],
)
def test_joined(text: str, result: str) -> None:
    assert joined(text) == result


@given(st.text(st.characters(exclude_categories=())), st.data())
@settings(max_examples=100, deadline=None)
def test_where_a_text_is_cut_does_not_matter(text: str, cuts: st.DataObject) -> None:
    """Even inside of a surrogate pair, as a model's tokens may."""
    raw = text.encode("utf-16-le", "surrogatepass")
    units = [raw[i : i + 2].decode("utf-16-le", "surrogatepass") for i in
             range(0, len(raw), 2)]  # fmt: skip
    at = cuts.draw(st.integers(0, len(units)))
    chunks = [delta("".join(units[:at])), delta("".join(units[at:]))]
    assert _blocks(*chunks) == [text_block(joined(text))]
