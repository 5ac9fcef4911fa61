"""What an override keeps of the derived script."""

from __future__ import annotations

import json

import pytest

from nestling.harness.overrides import apply_override
from nestling.harness.scripts import ScriptCall, derive_script
from nestling.session.errors import UnreadableError
from support.logs import Log

THROW = {"kind": "throw", "chunks": [], "message": "m", "code": "C"}


def _derived() -> list[ScriptCall]:
    summary = {"llmStreamCall": True, "rawOutput": []}
    log = Log("s").turn("hi").say("a").add("compaction/summary", summary)
    return derive_script(log.say("b").end().recording())


def _applied(document: object) -> list[ScriptCall]:
    return apply_override(json.dumps(document).encode(), "o.json", _derived())


def test_a_replaced_script_keeps_the_places_it_can() -> None:
    derived = _derived()
    script = _applied([THROW] * 4)
    assert [call.place for call in script] == [*(c.place for c in derived), None]
    assert [call.purpose for call in script] == ["turn", "summary", "turn", "turn"]
    assert {call.entry.code for call in script} == {"C"}


def test_a_shorter_script_drops_the_rest() -> None:
    assert len(_applied([{"kind": "hang"}])) == 1


def test_a_patch_swaps_one_call_and_leaves_its_siblings() -> None:
    derived = _derived()
    script = _applied({"patches": [{"at": 1, "entry": THROW}]})
    assert script[0] == derived[0]
    assert script[2] == derived[2]
    assert (script[1].entry.kind, script[1].place) == ("throw", derived[1].place)


def test_patches_may_swap_and_append_in_any_order() -> None:
    patches = [{"at": 3, "entry": {"kind": "hang"}}, {"at": 0, "entry": THROW}]
    kinds = [call.entry.kind for call in _applied({"patches": patches})]
    assert kinds == ["throw", "chunks", "chunks", "hang"]


@pytest.mark.parametrize(
    "document",
    [
        None,
        7,
        {},
        {"patches": {}},
        {"patches": [], "more": 1},
        {"patches": [{"at": 0}]},
        {"patches": [{"at": True, "entry": THROW}]},
        {"patches": [{"at": 0.5, "entry": THROW}]},
        {"patches": [{"at": 2**60, "entry": THROW}]},
        {"patches": [{"at": 4, "entry": THROW}]},
        [None],
        [{}],
        [{"kind": ["chunks"]}],
        [{"kind": "abort", "chunks": [], "reason": {"kind": "aborted"}}],
        [{"kind": "chunks"}],
        [{"kind": "chunks", "chunks": {}}],
        [{"kind": "chunks", "chunks": [7]}],
        [{"kind": "hang", "chunks": []}],
        [{"kind": "hang", "readyFile": 7}],
        [{**THROW, "message": ""}],
    ],
)
def test_other_documents_are_refused_in_one_sentence(document: object) -> None:
    with pytest.raises(UnreadableError, match=r"^o\.json: ") as caught:
        _applied(document)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"\xff", b"[", b"NaN", b"[" * 100_000])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(UnreadableError, match=r"^o\.json: "):
        apply_override(text, "o.json", [])
