"""The corpus' made cases, and where this project differs from them on purpose."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from nestling.harness.bind_order import bind_order
from nestling.harness.from_request import resolve
from nestling.harness.overrides import apply_override
from nestling.harness.scripts import Entry, ScriptCall, derive_script
from nestling.session.errors import UnreadableError
from nestling.session.jsontext import JsonObject
from nestling.session.reading import read_recording
from support.corpus import cases, corpus_dir, needs_corpus

pytestmark = needs_corpus

PARSE_DIFFERENCES: Final = {
    "empty text": "no header: nothing says that this is a session at all",
    "header not JSON": "a log without a readable header is refused",
    "header array": "a header is an object",
    "envelope key present but null is kept": "seq and time are numbers or absent",
}
BIND_DIFFERENCES: Final = {
    "seedLength inside a call": "half a call is nobody's: the boundary is refused",
    "negative seedLength counts from the end": "a length is never negative",
}


def _params(name: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in cases(name)]


def _entries(calls: Sequence[ScriptCall]) -> list[JsonObject]:
    return [call.entry.to_json() for call in calls]


def _outcome(text: str) -> list[JsonObject] | None:
    """The entries of a log's script, or None where it is refused."""
    try:
        return _entries(derive_script(read_recording(text.encode(), "s.jsonl")))
    except UnreadableError:
        return None


@pytest.mark.parametrize("case", _params("parse"))
def test_parse(case: Mapping[str, Any]) -> None:
    agrees = _outcome(case["text"]) == case["script"].get("ok")
    assert agrees == (case["name"] not in PARSE_DIFFERENCES)


def test_every_named_difference_is_a_case() -> None:
    assert PARSE_DIFFERENCES.keys() <= {case["name"] for case in cases("parse")}
    assert BIND_DIFFERENCES.keys() <= {case["name"] for case in cases("bind")}


# --- override ------------------------------------------------------------------


def _override_cases() -> dict[str, Any]:
    corpus = corpus_dir()
    if corpus is None:
        return {"session": "", "cases": []}
    text = (corpus / "cases" / "override.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


# What an error must name, by case: the words are ours, the facts are not.
OVERRIDE_FACTS: Final = {
    "patch past the end": ("patch 0", "3", "2"),
    "duplicate patch": ("patch 1", "index 1"),
    "patch at negative": ("patch 0", "at", "-1"),
    "patch at string": ("patch 0", "at", "'0'"),
    "patch not an object": ("patch 0", "at and entry"),
    "document string": ("document", "patches"),
    "document not JSON": ("not JSON",),
    "entry unknown kind": ("entry 0", "kind", "zap"),
    "chunks extra key": ("entry 0", "chunks", "x"),
    "chunk unknown type": ("entry 0.chunks[0]", "type", "zap"),
    "throw without code": ("entry 0", "throw", "code"),
    "throw empty code": ("entry 0", "code", "non-empty"),
    "hang empty readyFile": ("entry 0", "readyFile", "non-empty"),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case["name"]) for case in _override_cases()["cases"]],
)
def test_override(case: Mapping[str, Any]) -> None:
    session = _override_cases()["session"].encode()
    derived = derive_script(read_recording(session, "s.jsonl"))
    text = case["override"].encode()
    if "error" not in case:
        script = apply_override(text, "o.json", derived)
        assert _entries(script) == case["script"]
        return
    with pytest.raises(UnreadableError) as caught:
        apply_override(text, "o.json", derived)
    message = str(caught.value)
    assert all(fact in message for fact in ("o.json", *OVERRIDE_FACTS[case["name"]]))


# --- resolve -------------------------------------------------------------------


def _entry(value: Mapping[str, Any]) -> Entry:
    chunks = tuple(value["chunks"])
    return Entry(value["kind"], chunks, value.get("message"), value.get("code"))


@pytest.mark.parametrize("case", _params("resolve"))
def test_resolve(case: Mapping[str, Any]) -> None:
    entry = _entry(case["entry"])
    if "error" in case:
        with pytest.raises(UnreadableError, match="fromRequest"):
            resolve(entry, case["messages"])
        return
    resolved = resolve(entry, case["messages"])
    assert resolved.to_json() == case["result"]
    if case["same_object"]:
        assert resolved is entry


# --- bind ----------------------------------------------------------------------


def _bound(case: Mapping[str, Any]) -> list[tuple[str, list[JsonObject]]]:
    names = [case["file"], *case["childFiles"]]
    ordered = bind_order(
        [read_recording(case["files"][name].encode(), name) for name in names]
    )
    return [(r.header.id, _entries(derive_script(r))) for r in ordered]


@pytest.mark.parametrize("case", _params("bind"))
def test_bind_order(case: Mapping[str, Any]) -> None:
    if case["name"] in BIND_DIFFERENCES:
        with pytest.raises(UnreadableError, match="seedLength"):
            _bound(case)
        return
    expected = [(s["recordedId"], s["entries"]) for s in case["scripts"]]
    assert _bound(case) == expected
