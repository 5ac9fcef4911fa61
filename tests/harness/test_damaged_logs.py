"""Logs cut and edited at random: what looks at them never fails, it tells."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from nestling.harness import cli
from nestling.harness.overview import Read, overview
from nestling.harness.session_report import session_text
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.invariants import log_findings
from nestling.session.lineage_invariants import imprint, lineage_findings
from nestling.session.recording_io import read_file
from support.examples import FOLDER
from support.filled_stores import example_sessions, fill, log_file

_LOGS = [
    (each.header, each.events)
    for name in ("mixed/session.jsonl", "mixed/session.2.jsonl", "retry/session.jsonl")
    for each in [read_file(FOLDER / name)]
]

_SCALARS = st.none() | st.booleans() | st.integers(-2, 40) | st.text(max_size=3)
_VALUES = st.recursive(
    _SCALARS | st.sampled_from(["append", "turn/end", "tool-call", {}, []]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["turn", "step", "message", "id", "type"]), inner
        )
    ),
    max_leaves=4,
)
_TYPES = st.sampled_from(
    [
        "turn/start",
        "turn/end",
        "step/start",
        "step/end",
        "assistant/chunk",
        "assistant/message",
        "tool/call",
        "tool/result",
        "user/message",
        "llm/retry",
        "request/header",
        "session/end-seed",
        "x/new",
    ]
)
_SURFACES: st.SearchStrategy[Any] = st.sampled_from([None, "append", "else", {}])
_SURFACES |= st.builds(
    lambda start, end: {"op": "replace", "start": start, "end": end},
    st.integers(0, 40),
    st.integers(0, 40),
)


def _changed(data: st.DataObject, event: Event) -> Event:
    row: dict[str, Any] = event.row()
    what = data.draw(st.sampled_from(["data", "type", "inside", "surface", "seq"]))
    if what == "inside" and type(row["data"]) is dict and row["data"]:
        key = data.draw(st.sampled_from(sorted(row["data"])))
        row["data"] = {**row["data"], key: data.draw(_VALUES)}
    elif what == "surface":
        row["surfaceOp"] = data.draw(_SURFACES)
        row["sourceEventSeqs"] = data.draw(st.none() | st.lists(st.integers(0, 40)))
    elif what == "type":
        row["type"] = data.draw(_TYPES)
    elif what == "seq":
        row["seq"] = data.draw(st.integers(0, 60))
    else:
        row["data"] = data.draw(_VALUES)
    return Event(
        row["seq"],
        row["type"],
        data.draw(st.integers(-(2**53) + 1, 2**53 - 1)),
        row["data"],
        row.get("surfaceOp"),
        row.get("sourceEventSeqs"),
    )


def _mangled(data: st.DataObject, events: Sequence[Event]) -> list[Event]:
    kept = list(events[: data.draw(st.integers(0, len(events)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if kept:
            position = data.draw(st.integers(0, len(kept) - 1))
            what = data.draw(st.sampled_from(["change", "drop", "repeat"]))
            if what == "change":
                kept[position] = _changed(data, kept[position])
            elif what == "drop":
                del kept[position]
            else:
                kept.insert(position, kept[position])
    return kept


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_events_that_nobody_wrote_so(data: st.DataObject) -> None:
    header, events = data.draw(st.sampled_from(_LOGS))
    events = _mangled(data, events)
    length = data.draw(st.just(header.seed_length) | st.integers(0, 200))
    header = header.with_fields(seedLength=length)
    lines = [finding.line for finding in log_findings(header, events)]
    assert all("\n" not in line for line in lines)
    parent = Header("parent", 1, {})
    child = header.with_fields(parentSession="parent")
    imprints = {
        child.id: imprint(child, events, 0),
        "parent": imprint(parent, events[::-1], length),
    }
    assert all(f.text for f in lineage_findings([parent, child], imprints, imprints))
    told = overview(Read(header.id, header, events), None)
    assert told.to_json()["own"] == max(0, len(events) - length)
    text = session_text(events, length)
    assert all(line.isprintable() for line in text.splitlines())


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_files_that_nobody_wrote_so(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        address = f"jsonl:{folder}"
        fill(address, *example_sessions("mixed"))
        path = log_file(address, "harbour")
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(
                st.integers(0, 255)
            )
        del content[data.draw(st.integers(0, len(content))) :]
        path.write_bytes(content)
        before = Path(path).read_bytes()
        for arguments in (["verify"], ["show"], ["sessions"], ["show", "harbour"]):
            name, *rest = arguments
            result = CliRunner().invoke(cli.app, [name, address, *rest])
            assert isinstance(result.exception, SystemExit | None), result.exception
            assert result.exit_code in (0, 1, 2)
        assert path.read_bytes() == before
