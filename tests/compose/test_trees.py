"""What holds of every composed tree, read back from its files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import pytest

from compose.trees import TREES
from nestling.harness.compose import Tree
from nestling.session.boundary import check_boundary, own_events
from nestling.session.digest import seed_digest
from nestling.session.event import Event
from nestling.session.fold import fold, fold_interrupted
from nestling.session.jsontext import JsonObject
from nestling.session.log import SessionLog
from nestling.session.reading import Recording, read_recording
from nestling.session.spawn_path import ROOT, child_path
from nestling.session.turns import balanced_prefix_length, tracked


@pytest.fixture(params=TREES)
def tree(request: pytest.FixtureRequest) -> Tree:
    return TREES[request.param]()


@pytest.fixture(params=[False, True], ids=["full", "projected"])
def recordings(request: pytest.FixtureRequest, tree: Tree) -> list[Recording]:
    return read_back(tree, projected=request.param)


def read_back(tree: Tree, *, projected: bool = False) -> list[Recording]:
    files = tree.files(projected=projected)
    return [read_recording(content, name) for name, content in files.items()]


def own(recording: Recording) -> Sequence[Event]:
    return own_events(recording.events, recording.header.seed_length)


def test_every_event_passes_the_rules_of_a_log(recordings: list[Recording]) -> None:
    for recording in recordings:
        log = SessionLog()
        for event in recording.events:
            log.append(event)
        assert log.turns.turn is None


def test_turns_and_steps_are_numbered_without_gaps(
    recordings: list[Recording],
) -> None:
    for recording in recordings:
        turn = step = 0
        for event in recording.events:
            if event.type == "turn/start":
                turn, step = turn + 1, 0
                assert event.data == {"turn": turn}
            elif event.type == "step/start":
                step += 1
                assert event.data == {"turn": turn, "step": step}
            elif event.type.startswith(("assistant/", "tool/", "step/", "llm/")):
                assert (event.data["turn"], event.data["step"]) == (turn, step)


def test_the_boundary_is_sound(recordings: list[Recording]) -> None:
    for recording in recordings:
        header = recording.header
        check_boundary(recording.events, header.seed_length)
        is_fork_with_seed = "seedLength" in header.fields
        assert is_fork_with_seed == (header.seed_length > 0)
        assert is_fork_with_seed == ("seedDigest" in header.fields)
        own_types = [event.type for event in own(recording)]
        assert own_types.count("session/end-seed") == is_fork_with_seed
        assert (own_types[0] == "session/end-seed") == is_fork_with_seed


def test_a_seed_is_a_balanced_prefix_of_the_parent(
    recordings: list[Recording],
) -> None:
    by_id = {recording.header.id: recording for recording in recordings}
    for recording in recordings:
        header = recording.header
        if not header.seed_length:
            continue
        assert header.parent_session is not None
        parent = by_id[header.parent_session]
        seed = recording.events[: header.seed_length]
        assert [e.content() for e in seed] == [
            e.content() for e in parent.events[: header.seed_length]
        ]
        assert seed_digest(seed) == header.seed_digest
        assert balanced_prefix_length(seed) == len(seed)


def test_a_seed_ends_with_the_last_turn_before_the_delegation(
    recordings: list[Recording],
) -> None:
    by_id = {recording.header.id: recording for recording in recordings}
    for recording in recordings:
        spawned_by = recording.header.spawned_by
        if spawned_by is None or spawned_by.context == "spawn":
            assert recording.header.seed_length == 0
            continue
        parent = by_id[str(recording.header.parent_session)]
        before = [
            event
            for event in parent.events
            if event.type == "turn/end" and event.data["turn"] < spawned_by.turn
        ]
        assert recording.header.seed_length == (before[-1].seq + 1 if before else 0)


def test_lineage_names_the_delegating_call(tree: Tree) -> None:
    recordings = tree.recordings()
    paths = {session.header.id: session.path for session in recordings}
    events = {session.header.id: session.events for session in recordings}
    for path, header, _ in recordings:
        spawned_by, parent = header.spawned_by, header.parent_session
        if spawned_by is None or parent is None:
            assert path == ROOT
            assert header.delegation_depth == 0
            continue
        assert path == child_path(paths[parent], spawned_by)
        assert header.delegation_depth == path.count("/")
        assert header.fields["origin"] == "subagent"
        (message,) = (
            event.data["message"]
            for event in events[parent]
            if event.type == "assistant/message"
            and (event.data["turn"], event.data["step"])
            == (spawned_by.turn, spawned_by.step)
        )
        assert spawned_by.block is not None
        assert message["content"][spawned_by.block]["id"] == spawned_by.call_id


def test_a_childs_first_turn_says_what_it_is(recordings: list[Recording]) -> None:
    for recording in recordings:
        spawned_by = recording.header.spawned_by
        types = [event.type for event in own(recording)]
        assert types.count("subagent/descriptor") == (spawned_by is not None)
        if spawned_by is not None:
            place = types.index("turn/start") + 1
            descriptor = own(recording)[place]
            assert descriptor.type == "subagent/descriptor"
            assert descriptor.data["provider"] == spawned_by.context


def test_turn_numbers_go_on_in_a_fork(recordings: list[Recording]) -> None:
    for recording in recordings:
        inherited = tracked(recording.events[: recording.header.seed_length])
        first = next(e for e in own(recording) if e.type == "turn/start")
        assert first.data["turn"] == inherited.last_turn + 1


def calls_of(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Yield the chunk events of each call: a run of chunks is cut at each finish."""
    call: list[Event] = []
    for is_chunk, run in groupby(events, lambda e: e.type == "assistant/chunk"):
        for event in run if is_chunk else ():
            call.append(event)
            if event.data["chunk"]["type"] == "finish":
                yield call
                call = []
        if call:
            yield call
            call = []


def test_every_call_folds_to_its_message(recordings: list[Recording]) -> None:
    for recording in recordings:
        messages = {
            event.seq: event
            for event in recording.events
            if event.type == "assistant/message"
        }
        for call in calls_of(recording.events):
            chunks = [event.data["chunk"] for event in call]
            message = messages.pop(call[-1].seq + 1, None)
            expected = _expected_content(chunks, ended_by(recording, call[-1].seq))
            assert (message is None) == (expected is None)
            if message is not None:
                assert message.data["message"]["content"] == expected
                assert message.source_event_seqs == [event.seq for event in call]
                assert message.data.get("usage") == fold(chunks).usage
        assert not messages


def ended_by(recording: Recording, seq: int) -> str:
    """Return why the turn ended in which event `seq` lies."""
    ends = (event for event in recording.events[seq:] if event.type == "turn/end")
    return str(next(ends).data["reason"]["kind"])


def _expected_content(
    chunks: list[JsonObject], turn_end: str
) -> list[JsonObject] | None:
    """Return the content of the call's message, or None if it has no message."""
    last = chunks[-1]
    if last["type"] == "finish":
        return None if last["reason"]["kind"] == "error" else fold(chunks).blocks
    return None if turn_end == "interrupted" else fold_interrupted(chunks) or None


def test_requests_start_with_a_header_of_the_sessions_own(
    recordings: list[Recording],
) -> None:
    for recording in recordings:
        headers = [e for e in own(recording) if e.type == "request/header"]
        assert len(headers) == 1
        expected = "resume" if recording.header.seed_length else "initial"
        assert headers[0].data["reason"] == expected
        assert sum(e.type == "request/context" for e in recording.events) == 1


def test_every_result_cites_its_call(recordings: list[Recording]) -> None:
    for recording in recordings:
        for event in recording.events:
            if event.type == "tool/result" and event.source_event_seqs is not None:
                (seq,) = event.source_event_seqs
                call_id = event.data["message"]["source"]["callId"]
                assert recording.events[seq].type == "tool/call"
                assert recording.events[seq].data["callId"] == call_id


def test_ids_are_unique_in_the_tree(recordings: list[Recording]) -> None:
    ids = [recording.header.id for recording in recordings]
    for recording in recordings:
        for event in own(recording):
            message = event.data.get("message", event.data)
            ids += [message["id"]] if "id" in message else []
            ids += [event.data["callId"]] if event.type == "tool/call" else []
    assert len(set(ids)) == len(ids)


def test_times_advance_except_in_closers(tree: Tree) -> None:
    for recording in read_back(tree):
        times = [event.time for event in recording.events]
        assert all(a <= b for a, b in pairwise(times))
        assert recording.header.created_at <= own(recording)[0].time


def test_full_and_projected_files_read_alike(tree: Tree) -> None:
    full, projected = read_back(tree), read_back(tree, projected=True)
    assert len(full) == len(projected) == len(tree.recordings())
    for one, other in zip(full, projected, strict=True):
        assert one.header.row() == other.header.row()
        assert [e.seq for e in one.events] == [e.seq for e in other.events]
        assert [e.content() for e in one.events] == [e.content() for e in other.events]


def test_files_hold_the_log_as_it_was_composed(tree: Tree) -> None:
    for recording, session in zip(read_back(tree), tree.recordings(), strict=True):
        assert recording.header.row() == session.header.row()
        assert [e.row() for e in recording.events] == [e.row() for e in session.events]


@pytest.mark.parametrize("name", TREES)
def test_composing_twice_gives_equal_bytes(name: str) -> None:
    assert TREES[name]().files() == TREES[name]().files()
