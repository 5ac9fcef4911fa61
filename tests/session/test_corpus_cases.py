"""Agreement with the answers that the format's own code gave to made cases.

Where our rule differs on purpose the case is listed with the reason; a listed case
that does not differ any more fails, so that the list stays true.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from nestling.session.errors import UnreadableError
from nestling.session.fold import fold, fold_interrupted
from nestling.session.jsontext import JsonObject, loads
from nestling.session.reading import read_events, read_header, read_recording
from nestling.session.writing import encode_projected
from support.corpus import cases, dsh_folders, dsh_logs, needs_corpus

HEADER_DIFFERS: Final = {
    "empty text": "a file without a header is refused, not guessed at",
    "header array": "an array is no header",
}
EVENTS_DIFFER: Final = {
    "chunk event without data": "an event without data is refused where it stands",
    "envelope key present but null is kept": "a null seq is no place in a log",
}
FOLD_DIFFERS: Final[dict[str, str]] = {}


def _named(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in cases(kind)]


def _header_answer(case: JsonObject) -> JsonObject | None:
    try:
        header = read_header(case["text"].encode(), "case")
    except UnreadableError:
        return None
    return {
        "id": header.id,
        "createdAt": header.created_at,
        "seedLength": header.seed_length,
    }


def _events_answer(case: JsonObject) -> list[JsonObject] | None:
    try:
        events = read_events(case["text"].encode(), "case")
    except UnreadableError:
        return None
    return [event.row() for event in events]


@needs_corpus
@pytest.mark.parametrize("case", _named("parse"))
def test_headers(case: JsonObject) -> None:
    agrees = _header_answer(case) == case["header"].get("ok")
    assert agrees == (case["name"] not in HEADER_DIFFERS)


@needs_corpus
@pytest.mark.parametrize("case", _named("parse"))
def test_events(case: JsonObject) -> None:
    agrees = _events_answer(case) == case["events"].get("ok")
    assert agrees == (case["name"] not in EVENTS_DIFFER)


@needs_corpus
@pytest.mark.parametrize("case", _named("parse"))
def test_refusals_name_the_same_line(case: JsonObject) -> None:
    answer = case["events"].get("error")
    if answer is None:
        return
    line = answer.split("line ")[1].split()[0].rstrip(":")
    with pytest.raises(UnreadableError, match=f"^case line {line}: "):
        read_events(case["text"].encode(), "case")


def _fold_answer(case: JsonObject) -> JsonObject:
    folded = fold(case["chunks"])
    return {
        "blocks": {"ok": folded.blocks},
        "finish": folded.finish,
        "usage": folded.usage,
        "replayState": {"ok": folded.replay_state},
        "interruptedBlocks": {"ok": fold_interrupted(case["chunks"])},
    }


@needs_corpus
@pytest.mark.parametrize("case", _named("fold"))
def test_folds(case: JsonObject) -> None:
    expected = {key: case[key] for key in case if key not in ("name", "chunks")}
    agrees = _fold_answer(case) == expected
    assert agrees == (case["name"] not in FOLD_DIFFERS)


@needs_corpus
def test_every_listed_case_exists() -> None:
    parse = {case["name"] for case in cases("parse")}
    assert HEADER_DIFFERS.keys() | EVENTS_DIFFER.keys() <= parse
    assert FOLD_DIFFERS.keys() <= {case["name"] for case in cases("fold")}


@needs_corpus
@pytest.mark.parametrize("folder", dsh_folders(), ids=lambda folder: folder.name)
def test_recordings_have_the_known_headers_and_event_counts(folder: Any) -> None:
    golden = loads((folder / "golden.json").read_bytes())
    found = [
        read_recording(path.read_bytes(), path.name)
        for path in sorted(folder.glob("session*.jsonl"), key=_number)
    ]
    assert [len(recording.events) for recording in found] == golden["event_counts"]
    assert [
        {
            "id": recording.header.id,
            "createdAt": recording.header.created_at,
            "seedLength": recording.header.seed_length,
        }
        for recording in found
    ] == golden["headers"]


def _number(path: Any) -> int:
    middle = path.name.split(".")[1]
    return int(middle) if middle.isdigit() else 0


@needs_corpus
@pytest.mark.parametrize("path", dsh_logs(), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_recordings_are_written_back_byte_for_byte(path: Any) -> None:
    data = path.read_bytes()
    body = data.split(b"\n", 1)[1]
    assert encode_projected(read_events(data, path.name)) == body
