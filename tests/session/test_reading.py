"""Reading a recording: what is tolerated, what is refused, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestling.session.errors import UnreadableError
from nestling.session.jsontext import JsonObject
from nestling.session.reading import (
    Recording,
    events_from_row,
    read_events,
    read_header,
    read_recording,
)
from nestling.session.writing import encode_header, encode_projected, encode_rows
from support.session_logs import LogWriter, delta, finish, rows, text_block

_HEADER = '{"type":"session","version":0,"id":"s","createdAt":5}'
_NAME = "some.jsonl"


def _text(*lines: str, end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode("utf-8", "surrogatepass")


def _read(*lines: str) -> Recording:
    return read_recording(_text(_HEADER, *lines), _NAME)


def _small_log() -> LogWriter:
    log = LogWriter()
    log.user("hi")
    log.start_turn()
    log.start_step()
    log.chunks(*[delta(text) for text in ("a", "\ud83d", "é")], finish())
    log.assistant(text_block("a"))
    log.end_step()
    log.end_turn()
    return log


def test_a_full_recording_reads_back() -> None:
    log = _small_log()
    read = _read(*encode_rows(log.events).decode().splitlines())
    assert rows(read.events) == rows(log.events)
    assert read.header.id == "s"
    assert read.lines == [2, 3, 4, 5, 5, 5, 6, 7, 8, 9]
    assert read.place(4) == "some.jsonl line 5 (event 4)"


def test_a_projected_recording_gets_seqs_and_time_0() -> None:
    log = _small_log()
    read = _read(*encode_projected(log.events).decode().splitlines())
    assert [event.content() for event in read.events] == [
        event.content() for event in log.events
    ]
    assert [event.seq for event in read.events] == list(range(len(log.events)))
    # Only the members of the packed row have their differences.
    assert [event.time for event in read.events] == [0, 0, 0, 0, 1, 2, 0, 0, 0, 0]


def test_projected_rows_carry_no_envelope() -> None:
    for line in encode_projected(_small_log().events).splitlines():
        row = json.loads(line)
        assert not row.keys() & {"seq", "time", "seq0", "time0"}


def test_a_row_that_has_an_envelope_keeps_it() -> None:
    read = _read('{"type":"x","data":{}}', '{"type":"x","seq":1,"time":-7,"data":{}}')
    assert [(event.seq, event.time) for event in read.events] == [(0, 0), (1, -7)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\r\n \t\r\n"])
def test_line_ends_and_blank_lines_are_tolerated(end: str) -> None:
    data = _text("", _HEADER, '{"type":"x","data":1}', '{"type":"y","data":2}', end=end)
    read = read_recording(data, _NAME)
    assert [event.type for event in read.events] == ["x", "y"]
    lines = data.split(b"\n")
    for event, line in zip(read.events, read.lines, strict=True):
        assert f'"{event.type}"'.encode() in lines[line - 1]


def test_a_last_line_without_a_newline_is_read() -> None:
    read = read_recording(_text(_HEADER) + b'{"type":"x","data":1}', _NAME)
    assert [event.type for event in read.events] == ["x"]


def test_unicode_line_separators_do_not_end_a_line() -> None:
    read = _read('{"type":"x","data":"a\u2028b\u0085c"}')
    assert read.events[0].data == "a\u2028b\u0085c"


def test_unknown_types_and_all_optional_keys_are_kept() -> None:
    row: JsonObject = {
        "type": "later/thing", "seq": 0, "time": 3, "data": [1, {"a": None}],
        "surfaceOp": {"op": "later"}, "sourceEventSeqs": [9, 9], "ignorable": True,
    }  # fmt: skip
    (event,) = _read(json.dumps(row)).events
    assert event.row() == row


_MISPLACED = (
    '{"type":"text-chunks","seq0":7,"time0":0,'
    '"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":["a"]}}'
)
_BAD_ROWS = [
    ("{bad", "not JSON"),
    ("[]", "expected a JSON object, found an array"),
    ("null", "found null"),
    ("3", "found a number"),
    ("1.5", "found a number"),
    ("true", "found a boolean"),
    ('"x"', "found a string"),
    ('{"type":"x","data":NaN}', "not JSON|not a JSON number"),
    ('{"type":"x","data":-0.0}', "negative zero"),
    ('{"type":"x","data":' + "[" * 300 + "]" * 300 + "}", "nested deeper"),
    ('{"data":{}}', "must have a type"),
    ('{"type":1,"data":{}}', "must have a type, found 1"),
    ('{"type":["text-chunks"],"data":{}}', "must have a type"),
    ('{"type":null,"data":{}}', "must have a type, found None"),
    ('{"type":"x"}', "x has no data"),
    ('{"type":"x","data":1,"extra":2}', "unexpected key 'extra'"),
    ('{"type":"x","data":1,"seq0":0}', "unexpected key 'seq0'"),
    ('{"type":"x","data":1,"seq":null}', "seq must be an integer >= 0, found None"),
    ('{"type":"x","data":1,"seq":-1}', "seq must be"),
    ('{"type":"x","data":1,"seq":true}', "seq must be an integer >= 0, found True"),
    ('{"type":"x","data":1,"seq":1.5}', "seq must be"),
    ('{"type":"x","data":1,"seq":"1"}', "seq must be"),
    ('{"type":"x","data":1,"seq":0}', "found seq 0, expected 1"),
    ('{"type":"x","data":1,"seq":2}', "found seq 2, expected 1"),
    ('{"type":"x","data":1,"time":null}', "time must be a safe integer, found None"),
    ('{"type":"x","data":1,"time":0.5}', "time must be"),
    ('{"type":"x","data":1,"time":9007199254740992}', "time must be"),
    ('{"type":"x","data":1,"surfaceOp":1}', "surfaceOp must be"),
    ('{"type":"x","data":1,"surfaceOp":null}', "surfaceOp must be"),
    ('{"type":"x","data":1,"surfaceOp":[]}', "surfaceOp must be"),
    ('{"type":"x","data":1,"sourceEventSeqs":1}', "sourceEventSeqs must be"),
    ('{"type":"x","data":1,"sourceEventSeqs":[-1]}', "sourceEventSeqs must be"),
    ('{"type":"x","data":1,"sourceEventSeqs":[true]}', "sourceEventSeqs must be"),
    ('{"type":"x","data":1,"sourceEventSeqs":null}', "sourceEventSeqs must be"),
    ('{"type":"x","data":1,"ignorable":false}', "ignorable may only be true"),
    ('{"type":"x","data":1,"ignorable":1}', "ignorable may only be true, found 1"),
    ('{"type":"x","data":1,"ignorable":null}', "ignorable may only be true"),
    ('{"type":"text-chunks","data":null}', "malformed text-chunks row"),
    (_MISPLACED, "found seq 7, expected 1"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), _BAD_ROWS)
def test_bad_rows_are_refused_with_file_and_line(line: str, words: str) -> None:
    data = _text(_HEADER, "", '{"type":"x","data":0}', line, '{"type":"x","data":0}')
    for read in (read_recording, read_events):
        with pytest.raises(UnreadableError, match=f"^some.jsonl line 4: .*({words})"):
            read(data, _NAME)
    assert read_header(data, _NAME).id == "s"


def test_invalid_utf8_names_the_byte_of_the_line() -> None:
    data = _text(_HEADER) + b'{"type":"x\xff"}\n'
    with pytest.raises(UnreadableError, match=r"line 2: byte 10 is no UTF-8, expected"):
        read_recording(data, _NAME)


def test_a_gap_inside_of_packed_rows_is_refused() -> None:
    packed = (
        '{"type":"text-chunks","seq0":0,"time0":0,"data":{"turn":1,"step":1,'
        '"index":0,"dt":[0,0],"texts":["a","b","c"]}}'
    )
    with pytest.raises(UnreadableError, match="line 3: found seq 1, expected 3"):
        _read(packed, '{"type":"x","seq":1,"time":0,"data":0}')


_BAD_HEADERS = [
    ("nope", "not JSON"),
    ("[]", "expected a JSON object"),
    ("{}", "must be a session header, found type null"),
    ('{"type":"turn/start","data":{}}', 'found type "turn/start"'),
    ('{"type":"session","version":1}', "version 1 is unknown.*newer"),
    ('{"type":"session","version":-1}', "version -1 is unknown, expected 0$"),
    ('{"type":"session","version":"0"}', 'version "0" is unknown, expected 0$'),
    ('{"type":"session","version":null}', "version null"),
    ('{"type":"session","version":false}', "version false"),
    # A version that is not ours is refused before anything else is judged.
    ('{"type":"session","version":2,"id":7}', "version 2 is unknown"),
    ('{"type":"session","id":7}', "id must be a string, found 7"),
    ('{"type":"session","createdAt":1.5}', "createdAt must be an integer >= 0"),
    ('{"type":"session","createdAt":-1}', "createdAt must be"),
    ('{"type":"session","createdAt":-0.0}', "negative zero"),
    ('{"type":"session","seedLength":-1}', "seedLength must be an integer >= 0"),
    ('{"type":"session","seedLength":1.5}', "seedLength must be"),
    ('{"type":"session","seedLength":true}', "seedLength must be"),
    ('{"type":"session","seedLength":null}', "seedLength must be"),
    ('{"type":"session","seedLength":"1"}', "seedLength must be"),
    ('{"type":"session","seedLength":9007199254740992}', "seedLength must be"),
    ('{"type":"session","delegationDepth":-1}', "delegationDepth must be"),
    ('{"type":"session","cwd":1}', "cwd must be a string"),
    ('{"type":"session","parentSession":null}', "parentSession must be a string"),
    ('{"type":"session","origin":{}}', "origin must be a string"),
    ('{"type":"session","agentPreset":1}', "agentPreset must be a string"),
    ('{"type":"session","sandboxMode":"x"}', "sandboxMode is a retired field"),
    ('{"type":"session","approvalPolicy":"x"}', "approvalPolicy is a retired field"),
]


@pytest.mark.parametrize(("line", "words"), _BAD_HEADERS)
def test_bad_headers_are_refused(line: str, words: str) -> None:
    for read in (read_recording, read_header):
        with pytest.raises(UnreadableError, match=rf"^some\.jsonl line 1: .*{words}"):
            read(_text(line), _NAME)


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\n"])
def test_a_file_without_a_header_is_refused(data: bytes) -> None:
    with pytest.raises(
        UnreadableError, match=r"some\.jsonl is empty, expected a session"
    ):
        read_recording(data, _NAME)


def test_events_can_be_read_without_judging_the_header() -> None:
    (event,) = read_events(b'nope\n{"type":"x","data":1}\n', _NAME)
    assert event.data == 1


_REAL = encode_header(
    read_header(_text(_HEADER), _NAME).with_fields(
        seedLength=3, spawnedBy={"turn": 1, "step": 1, "block": 0, "context": "spawn"}
    )
) + encode_rows(_small_log().events)


def _reads_or_refuses(data: bytes) -> None:
    try:
        read = read_recording(data, _NAME)
    except UnreadableError as error:
        _check_message(str(error))
        return
    assert [event.seq for event in read.events] == list(range(len(read.events)))
    assert len(read.lines) == len(read.events)
    encode_header(read.header)
    encode_rows(read.events)


def _check_message(message: str) -> None:
    assert message.startswith(_NAME)
    message.encode("utf-8")  # it can be printed


@given(st.binary(max_size=80))
@settings(max_examples=100, deadline=None)
def test_any_bytes_read_or_are_refused(data: bytes) -> None:
    _reads_or_refuses(data)
    _reads_or_refuses(_text(_HEADER) + data)


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_spoiled_log_reads_or_is_refused(choice: st.DataObject) -> None:
    data = bytearray(_REAL)
    for _ in range(choice.draw(st.integers(1, 4))):
        at = choice.draw(st.integers(0, len(data) - 1))
        length = choice.draw(st.integers(0, 3))
        data[at : at + length] = choice.draw(
            st.binary(max_size=3) | st.sampled_from([b"\\ud800", b"\n", b"[", b"null"])
        )
    _reads_or_refuses(bytes(data))


def test_a_log_cut_anywhere_reads_or_is_refused() -> None:
    for cut in range(len(_REAL)):
        _reads_or_refuses(_REAL[:cut])


_KEYS = ["type", "seq", "time", "data", "surfaceOp", "ignorable", "seq0", "time0"]
_VALUES = st.sampled_from(
    [None, True, False, 0, 1, -1, 1.5, "", "x", "text-chunks", "tool-call-chunks",
     "\ud800", [], {}, [0], {"\ud800": 0}, {"op": "replace"}]
)  # fmt: skip


@given(st.dictionaries(st.sampled_from([*_KEYS, "\ud800"]), _VALUES))
@settings(max_examples=300, deadline=None)
def test_any_row_reads_or_is_refused(row: dict[str, Any]) -> None:
    try:
        events = events_from_row(row, 0)
    except UnreadableError:
        return
    assert events[0].seq == 0


@given(st.dictionaries(st.sampled_from(
    ["version", "id", "createdAt", "seedLength", "seedDigest", "spawnedBy", "cwd"]
), _VALUES | st.dictionaries(st.sampled_from(
    ["turn", "step", "block", "n", "key", "callId", "context", "\ud800"]), _VALUES)
))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_any_header_reads_or_is_refused(fields: dict[str, Any]) -> None:
    _reads_or_refuses(json.dumps({"type": "session", **fields}).encode())
