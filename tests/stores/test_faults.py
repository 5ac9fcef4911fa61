"""Faults that people have met: unbalanced histories, resumes and forks (A and B)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nestling.session.errors import (
    AppendError,
    LeaseError,
    SessionExistsError,
    StoreError,
)
from nestling.session.event import Event, event_from_content
from nestling.session.jsontext import JsonObject
from nestling.session.log import SessionLog
from nestling.session.outcome import outcome
from nestling.session.repair import NOT_STARTED, OUTCOME_UNKNOWN, closers
from nestling.session.request import rebuild_request
from nestling.session.store_io import open_store
from support.damage import stored_size
from support.families import delegate, forked, log_of, messages, result_of
from support.session_logs import (
    LogWriter,
    call_block,
    delta,
    finish,
    result_message,
    text_block,
    types,
)
from support.stores import Place, exact, header, written


def _asked(*call_ids: str) -> LogWriter:
    """A turn whose message asks for tools, all of which were started."""
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.user("go")
    log.assistant(*[call_block(call_id) for call_id in call_ids])
    for call_id in call_ids:
        log.tool_call(call_id)
    return log


def _result(call_id: str) -> tuple[str, list[JsonObject]]:
    return "user", result_message(call_id)["content"]


def _loaded(place: Place, events: list[Event]) -> list[Event]:
    """What is loaded, by a store opened anew, of events that were stored."""
    written(place, events)
    with place.open() as store:
        return store.load("s").events


# --- A: unbalanced histories ----------------------------------------------------------


def test_a1_interrupt_between_call_and_result(place: Place) -> None:
    """A1: the next request is balanced, and the same after another restart."""
    log = _asked("c1")
    found = _loaded(place, log.events)
    assert result_of(found, "c1")[0] == OUTCOME_UNKNOWN
    roles = [role for role, _ in messages(found)]
    assert roles == ["user", "assistant", "user"]
    with place.open() as store:
        assert messages(store.resume("s").events) == messages(found)


def test_a2_crash_instead_of_cancel(place: Place) -> None:
    """A2: one closer, for c2 alone; never a second one; R(c1) is kept."""
    log = _asked("c1", "c2")
    log.tool_result("c1", log.events[-2].seq)
    found = _loaded(place, log.events)
    assert exact(found[: len(log.events)]) == exact(log.events)
    assert types(found[len(log.events) :]) == ["tool/result", "step/end", "turn/end"]
    code, (text,) = result_of(found, "c2")
    assert code == OUTCOME_UNKNOWN
    assert "outcome is unknown" in text
    with place.open() as store:
        for _ in range(3):
            assert exact(store.load("s").events) == exact(found)


def test_a3_one_result_of_three_is_lost(place: Place) -> None:
    """A3: closed as unanswered; the request has all three, each once."""
    log = _asked("c1", "c2", "c3")
    log.tool_result("c1", log.events[-3].seq)
    log.tool_result("c3", log.events[-1].seq)
    found = _loaded(place, log.events)
    assert result_of(found, "c2")[0] == OUTCOME_UNKNOWN
    answered = [content[0].get("toolCallId") for _, content in messages(found)[2:]]
    assert answered == ["c1", "c3", "c2"]


def test_a3_one_call_of_three_is_lost(place: Place) -> None:
    """A3: its result stays in the log and is in no request."""
    log = _asked("c1", "c2")
    for call_id in ("c1", "c2", "c3"):
        log.tool_result(call_id, log.events[-1].seq)
    found = _loaded(place, log.events)
    assert types(found[len(log.events) :]) == ["step/end", "turn/end"]
    assert result_of(found, "c3") is not None
    assert messages(found)[2:] == [_result("c1"), _result("c2")]


def test_a5_a_fork_inside_the_open_turn(place: Place) -> None:
    """A5: its seed ends with the last closed turn, so it holds no open fork call."""
    parent = LogWriter()
    parent.answered_turn("q", "a")
    delegate(parent, "fork-1", name="subagent_fork")
    written(place, parent.events)
    head, events = forked(parent.events)
    written(place, events, head)
    with place.open() as store:
        child = store.load("f")
        assert (child.header.seed_length, child.closers) == (8, 0)
        SessionLog(child.events)  # which refuses a seed that leaves a turn open
        assert messages(child.events) == [
            ("user", [text_block("q")]),
            ("assistant", [text_block("a")]),
        ]
        assert store.load("s").closers == 3


def test_a6_forks_beside_siblings(place: Place) -> None:
    """A6: two forks of one message, a result between them: one seed."""
    parent = LogWriter()
    parent.answered_turn("q", "a")
    delegate(parent, "fork-1", "fork-2", "sleep", name="subagent_fork")
    first = forked(parent.events, "f1")
    parent.tool_result("sleep", parent.events[-1].seq)
    second = forked(parent.events, "f2")
    written(place, parent.events)
    for head, events in (first, second):
        written(place, events, head)
    with place.open() as store:
        one, two = store.load("f1"), store.load("f2")
        length = one.header.seed_length
        assert length == two.header.seed_length == 8
        assert one.header.seed_digest == two.header.seed_digest
        assert exact(one.events[:length]) == exact(two.events[:length])


def test_a8_a_message_between_call_and_result(place: Place) -> None:
    """A8: stored where it came; in the request it stands behind the result."""
    log = _asked("c1", "c2")
    log.tool_result("c1", log.events[-2].seq)
    seq = log.user("side")
    log.tool_result("c2", log.events[7].seq)
    found = _loaded(place, log.events)
    assert found[seq].type == "user/message"
    assert messages(found)[2:] == [
        _result("c1"),
        _result("c2"),
        ("user", [text_block("side")]),
    ]
    with place.open() as store:
        assert messages(store.load("s").events) == messages(found)


def test_a10_a_turn_that_ends_on_a_result(place: Place) -> None:
    """A10: it is marked as interrupted, no answer is invented, a prompt may follow."""
    log = _asked("c1")
    log.tool_result("c1", log.events[-1].seq)
    found = _loaded(place, log.events)
    assert types(found[len(log.events) :]) == ["step/end", "turn/end"]
    next_turn = LogWriter()
    next_turn.events, next_turn.turn = list(found), 1
    next_turn.start_turn()
    next_turn.user("and now?")
    with place.open() as store:
        store.append("s", next_turn.events[len(found) :])
        roles = [role for role, _ in messages(store.read_from("s", 0))]
    assert roles == ["user", "assistant", "user", "user"]


def test_a11_a_synthetic_tail(place: Place) -> None:
    """A11: stored as it came, but nothing that the session came to."""
    log = LogWriter()
    log.answered_turn("q", "the model's words")
    dead: JsonObject = {
        "id": "dead",
        "role": "assistant",
        "content": [text_block("No response requested.")],
        "source": {"kind": "model", "provider": "p", "model": "<synthetic>"},
    }
    usage = {"inputTokens": 0, "outputTokens": 0}
    log.start_turn()
    log.start_step()
    data = {"turn": 2, "step": 1, "message": dead, "usage": usage, "synthetic": True}
    log.add("assistant/message", data, surfaceOp="append")
    log.end_step()
    log.end_turn()
    found = _loaded(place, log.events)
    assert exact(found) == exact(log.events)
    assert outcome(found).text == "the model's words"


REASONING: list[JsonObject] = [
    {
        "type": "reasoning",
        "text": "hm\ud83d",
        "providerState": {"signature": "Eq\u0000/+==", "n": [1.0, 1, 1e300, None]},
    },
    {"type": "reasoning", "text": "", "redacted": "\u2028" * 5000},
    text_block("so"),
]


def test_a12_reasoning_is_kept_with_what_its_provider_put_there(place: Place) -> None:
    """A12: to the byte, in the log and in the request that is made of it."""
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.user("q")
    state = {"blocks": [{"sig": "\ud83d"}, 1.0], "": {"b": 2, "a": 1}}
    log.chunks(
        *[delta(text, 0, "reasoning-delta") for text in ("h", "m", "\ud83d")],
        {"type": "block-end", "index": 0, "block": REASONING[0]},
        {**finish(), "replayState": state},
    )
    log.assistant(*REASONING)
    log.events[-1].data["message"]["replayState"] = state
    found = _loaded(place, log.events)
    assert exact(found[: len(log.events)]) == exact(log.events)
    (_, answer) = rebuild_request(log_of(found)).messages
    assert answer["content"] == REASONING
    assert answer["replayState"] == state


# --- B: resumes and forks ---------------------------------------------------------------


def test_b1_resume_appends_the_new_turn_only(durable: Place) -> None:
    """B1: five resumes, five turns: the size grows evenly, no id comes twice."""
    log = LogWriter()
    log.answered_turn("question", "answer")
    for _ in range(9):
        log.answered_turn("question", "answer")  # so that seqs have two digits
    written(durable, log.events)
    sizes = [stored_size(durable)]
    for _ in range(5):
        length = len(log.events)
        log.answered_turn("question", "answer")
        with durable.open() as store:
            assert len(store.resume("s").events) == length
            store.append("s", log.events[length:])
        sizes.append(stored_size(durable))
    growth = [after - before for before, after in pairwise(sizes)]
    assert max(growth) - min(growth) <= 24, "a digit more here and there"
    assert max(growth) < sizes[0] / 5
    with durable.open() as store:
        found = store.load("s").events
        assert exact(found) == exact(log.events)
        ids = [e.data["id"] for e in found if e.type == "user/message"]
        assert len(set(ids)) == len(ids) == 15


def test_b2_a_fork_of_a_fork(place: Place) -> None:
    """B2: seedLength counts what was copied, and each event is there once."""
    log = LogWriter()
    while len(log.events) < 1000:
        log.answered_turn("q", "a")
    assert len(log.events) == 1000
    written(place, log.events)
    head, events = forked(log.events, "f")
    own = LogWriter()
    own.events, own.turn = events, log.turn
    own.answered_turn("more", "own")
    written(place, own.events, head)
    head, events = forked(own.events, "g", parent="f")
    written(place, events, head)
    with place.open() as store:
        first, second = store.load("f"), store.load("g")
        assert (first.header.seed_length, len(first.events)) == (1000, 1009)
        assert (second.header.seed_length, len(second.events)) == (1009, 1010)
        assert exact(second.events[:1009]) == exact(first.events)
        assert exact(first.events[:1000]) == exact(store.load("s").events)


def test_b5_a_fork_of_a_compacted_session(place: Place) -> None:
    """B5: it sees the summary and turn 3; its request is the one its parent made."""
    log = LogWriter()
    config = {"config": {"provider": "p", "model": "m"}, "system": "S"}
    log.start_turn()
    log.add("request/header", {"header": config})
    log.end_turn()
    log.answered_turn("one", "1")
    log.answered_turn("two", "2")
    shadowed = log_of(log.events).surface.nodes
    log.start_turn()
    log.add("compaction/summary", {"text": "1 and 2"})
    summary = {
        "id": "summary",
        "role": "user",
        "content": [text_block("1 and 2")],
        "source": {"kind": "compaction"},
    }
    operation = {"op": "replace", "start": shadowed[0], "end": shadowed[-1]}
    fields = {"surfaceOp": operation, "sourceEventSeqs": shadowed}
    log.add("user/message", summary, **fields)
    log.end_turn()
    log.answered_turn("three", "3")
    written(place, log.events)
    head, events = forked(log.events)
    written(place, events, head)
    with place.open() as store:
        parent, child = store.load("s").events, store.load("f")
        assert child.header.seed_length == len(log.events)
        assert messages(child.events) == [
            ("user", [text_block("1 and 2")]),
            ("user", [text_block("three")]),
            ("assistant", [text_block("3")]),
        ]
        assert rebuild_request(log_of(child.events)) == rebuild_request(log_of(parent))
        assert SessionLog(child.events).surface.nodes == log_of(parent).surface.nodes


def test_b7_the_directory_changes_while_it_runs(
    durable: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """B7: where a store is was said when it was opened."""
    log = LogWriter()
    log.answered_turn("q", "a")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(durable.path.parent)
    with open_store(f"{durable.scheme}:{durable.path.name}") as store:
        assert store.name == durable.address
        monkeypatch.chdir(elsewhere)
        store.create(header())
        store.append("s", log.events[:4])
        monkeypatch.chdir("/")
        store.append("s", log.events[4:])
    assert list(elsewhere.iterdir()) == []
    with durable.open() as store:
        assert exact(store.load("s").events) == exact(log.events)


def test_b7_the_store_is_taken_away_while_it_runs(durable: Place) -> None:
    """B7: the next append says so; nothing is written into what nobody can find."""
    log = LogWriter()
    log.answered_turn("q", "a")
    with durable.open() as store:
        store.create(header())
        store.append("s", log.events[:4])
        gone = durable.path.with_name("gone")
        durable.path.rename(gone)
        with pytest.raises(StoreError, match=str(durable.path)):
            store.append("s", log.events[4:])
    gone.rename(durable.path)
    with durable.open() as store:
        assert exact(store.read_from("s", 0)) == exact(log.events[:4])


def test_b8_what_a_session_was_set_up_with_is_in_its_log(place: Place) -> None:
    """B8: after a restart the request is the same but for what is new."""
    log = LogWriter()
    tools = [{"name": "t", "description": "d", "parameters": {"b": 1, "a": [1.0]}}]
    config = {"provider": "p", "model": "m", "temperature": 0.1}
    head = {"config": config, "system": "You are S\ud83d", "tools": tools}
    log.start_turn()
    log.add("request/header", {"header": head})
    log.start_step()
    log.user("q")
    log.assistant(call_block("c1", "t"))
    before = rebuild_request(log_of(log.events))
    found = _loaded(place, log.events)
    after = rebuild_request(log_of(found))
    assert after[:5] == before[:5]
    assert (after.system, after.tools, after.config) == (head["system"], tools, config)
    assert after.messages[: len(before.messages)] == before.messages
    assert len(after.messages) == len(before.messages) + 1


def test_b12_two_writers_of_one_session(durable: Place) -> None:
    """B12: see test_contract_leases for other processes and dead ones."""
    log = LogWriter()
    log.answered_turn("q", "a")
    written(durable, log.events)
    with durable.open() as first, durable.open() as second:
        first.resume("s")
        with pytest.raises(LeaseError):
            second.resume("s")


def test_h1_one_id_in_two_stores(tmp_path: Path) -> None:
    """H1: two sessions, which have nothing to do with each other; no duplicates."""
    one, two = LogWriter(), LogWriter()
    one.answered_turn("q", "one")
    two.answered_turn("q", "two")
    places = [Place(scheme, tmp_path / str(n)) for n, scheme in enumerate(_TWICE)]
    for number, (place, log) in enumerate(zip(places, [one, two] * 3, strict=True)):
        place.path.parent.mkdir()
        written(place, log.events, header(created_at=number))
    for number, (place, log) in enumerate(zip(places, [one, two] * 3, strict=True)):
        with place.open() as store:
            with pytest.raises(SessionExistsError):
                store.create(header(created_at=99))
            assert store.load("s").header.created_at == number
            assert exact(store.load("s").events) == exact(log.events)


_TWICE = ("jsonl", "jsonl", "sqlite", "sqlite", "memory", "memory")


def test_h3_the_clock_goes_back(place: Place) -> None:
    """H3: by an hour between turns: the order is that of the seqs."""
    log = LogWriter(time=1_700_000_000_000)
    log.answered_turn("q", "a")
    log.start_turn()
    late = [
        Event(e.seq, e.type, e.time - 3_600_000, e.data, e.surface_op)
        for e in log.events[8:]
    ]
    events = [*log.events[:8], *late]
    found = _loaded(place, events)
    assert exact(found[:9]) == exact(events)
    assert found[-1].time == late[-1].time < found[0].time


def _called(**block: Any) -> list[JsonObject]:
    return [{"type": "tool-call", "id": "c", "name": "n", "arguments": "{}", **block}]


@pytest.mark.parametrize(
    "blocks",
    [
        _called(id=""),
        _called(name=""),
        _called(arguments="{not json"),
        _called(arguments="\ud800"),
        _called() * 2,
        _called(id="") * 3,
        _called(id="\ud800"),
        _called(id="a\0b", name="\0"),
    ],
)
def test_f7_what_is_accepted_can_be_loaded(
    place: Place, blocks: list[JsonObject]
) -> None:
    """F7: no id, one id twice, no name, arguments that are none: stored, and closed."""
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.assistant(*blocks)
    log.tool_call(blocks[0]["id"], blocks[0]["name"])
    found = _loaded(place, log.events)
    assert exact(found) == exact([*log.events, *closers(log.events)])
    results = [event for event in found if event.type == "tool/result"]
    codes = [event.data["error"]["code"] for event in results]
    assert codes == [OUTCOME_UNKNOWN] + [NOT_STARTED] * (len(blocks) - 1)
    answered = [content[0]["toolCallId"] for _, content in messages(found)[1:]]
    assert answered == [block["id"] for block in blocks]
    with place.open() as store:
        assert exact(store.resume("s").events) == exact(found)


@pytest.mark.parametrize(
    ("kind", "data", "fields"),
    [
        ("user/message", {"id": "", "role": "user", "content": []}, {}),
        ("user/message", {"id": "u", "role": "assistant", "content": []}, {}),
        ("user/message", {"id": "u", "role": "user", "content": "text"}, {}),
        ("user/message", {"id": "u", "role": "user", "content": []}, {"surfaceOp": 0}),
        ("turn/start", {"turn": "1"}, {"surfaceOp": None}),
        ("turn/end", {"turn": 1}, {"surfaceOp": None}),
        ("session/title", {}, {"surfaceOp": "append"}),
        ("tool/call", {"turn": 1, "step": 1, "callId": 1}, {"surfaceOp": None}),
    ],
)
def test_f7_what_could_not_be_loaded_is_refused(
    place: Place, kind: str, data: JsonObject, fields: JsonObject
) -> None:
    """F7, O11: the same check on the way in; the session goes on without it."""
    content = {"type": kind, "data": data, "surfaceOp": "append", **fields}
    log = LogWriter()
    log.answered_turn("q", "a")
    bad = event_from_content(content, 8, 1)
    with place.open() as store:
        store.create(header())
        store.append("s", log.events)
        with pytest.raises(AppendError):
            store.append("s", [bad])
        assert exact(store.load("s").events) == exact(log.events)
