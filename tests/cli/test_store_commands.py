"""`nestling show`, `sessions`, `export` and `verify`, over both kinds of stores."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nestling.harness import cli, store_commands_io
from nestling.session.errors import SessionNotFoundError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.reading import read_recording
from nestling.session.store_io import SessionStore, Stored, open_store
from nestling.session.writing import encode_header
from support.examples import FOLDER
from support.filled_stores import (
    ADDRESSES,
    example_sessions,
    files,
    fill,
    outdate,
    spoil,
)
from support.processes import run_nestling
from support.session_logs import (
    LogWriter,
    answered,
    call_block,
    delta,
    finish,
    forked,
    rows,
    text_block,
)

ONE = Header("one", 1_000, {"delegationDepth": 0})


@pytest.fixture(params=ADDRESSES, ids=["jsonl", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that is not there yet."""
    return str(request.param).format(tmp_path)


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def _ok(*arguments: object) -> str:
    result = _run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def _json(*arguments: object) -> Any:
    text = _ok(*arguments, "--json")
    assert text.count("\n") == 1
    return json.loads(text)


def _error(*arguments: object) -> str:
    """The one line that a command says when it cannot do its work."""
    result = _run(*arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("nestling: ")
    if "--json" in arguments:
        assert json.loads(result.stdout)["error"] == line.removeprefix("nestling: ")
    else:
        assert result.stdout == ""
    return line


def _columns(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


# --- show --------------------------------------------------------------------------


def test_show_draws_every_tree(address: str) -> None:
    fill(address, *example_sessions("twins"), *example_sessions("deep"))
    older, newer = _ok("show", address).split("\n\n")
    assert [_columns(line)[:6] for line in older.splitlines()] == [
        ["/", "root", "deep", "107 events", "0 inherited │ 107 own", "3 turns"],
        [
            "├─ t2s1b1",
            "fork",
            "deep.t2s1b1",
            "52 events",
            "12 inherited │ 40 own",
            "1 turn",
        ],
        [
            "│",
            "└─ t2s1b1",
            "fork",
            "deep.t2s1b1.t2s1b1",
            "25 events",
            "12 inherited │ 13 own",
        ],
        [
            "└─ t3s1b1",
            "fork",
            "deep.t3s1b1",
            "124 events",
            "62 inherited │ 62 own",
            "1 turn",
        ],
        [
            "├─ t3s1b1",
            "fork",
            "deep.t3s1b1.t3s1b1",
            "77 events",
            "62 inherited │ 15 own",
            "1 turn",
        ],
        [
            "└─ t3s1b2",
            "spawn",
            "deep.t3s1b1.t3s1b2",
            "14 events",
            "0 inherited │ 14 own",
            "1 turn",
        ],
    ]
    assert _columns(newer.splitlines()[1])[-3:] == ["1 call", "completed", "HERON"]


def test_show_of_a_store_and_of_its_recording_are_alike(address: str) -> None:
    fill(address, *example_sessions("mixed"))
    assert _ok("show", address) == _ok("show", FOLDER / "mixed")
    shown = [_ok("show", where, "harbour.t2s2b1") for where in _both(address, "mixed")]
    assert shown[0] == shown[1]


def _both(address: str, example: str) -> tuple[str, Path]:
    return address, FOLDER / example


def test_show_draws_the_boundary_among_the_events(address: str) -> None:
    fill(address, *example_sessions("mixed"))
    lines = _ok("show", address, "harbour.t2s2b1").splitlines()
    assert lines[0].startswith("/t2s2b1 ")
    (mark,) = (n for n, line in enumerate(lines) if "seed boundary" in line)
    assert lines[mark] == "──────── seed boundary: 24 inherited │ 25 own ────────"
    assert lines[mark - 1].split() == ["23", "0.006s", "turn/end", "t1", "completed"]
    assert lines[mark + 1].split()[2] == "session/end-seed"
    assert _columns(lines[mark + 5])[2:] == [
        "assistant/chunk",
        "t2s1",
        "18 chunks, stop",
        "LANTERN",
    ]


def test_show_prints_one_object(address: str) -> None:
    fill(address, *example_sessions("mixed"))
    sessions = _json("show", address)["sessions"]
    assert [(s["path"], s["kind"], s["seedLength"], s["own"]) for s in sessions] == [
        ("/", "root", 0, 126),
        ("/t2s1b1", "spawn", 0, 19),
        ("/t2s2b1", "fork", 24, 25),
    ]
    assert sessions[1] == {
        "path": "/t2s1b1",
        "kind": "spawn",
        "id": "harbour.t2s1b1",
        "parent": "harbour",
        "createdAt": sessions[1]["createdAt"],
        "events": 19,
        "seedLength": 0,
        "own": 19,
        "turns": 1,
        "calls": 1,
        "state": "completed",
        "closers": 0,
        "problem": None,
        "output": "GULL",
    }
    one = _json("show", address, "harbour.t2s1b1")
    assert [s["id"] for s in one["sessions"]] == ["harbour.t2s1b1"]
    events = example_sessions("mixed")[0][1]
    assert one["events"] == [event.row() for event in events]


def test_show_draws_the_subtree_of_a_session(address: str) -> None:
    fill(address, *example_sessions("deep"))
    tree = _ok("show", address, "deep.t3s1b1").split("\n\n")[0]
    assert [line.split("  ")[0] for line in tree.splitlines()] == [
        "/t3s1b1",
        "├─ t3s1b1",
        "└─ t3s1b2",
    ]


def test_show_hides_nothing_behind_a_damaged_session(address: str) -> None:
    fill(address, *example_sessions("mixed"))
    spoil(address, "harbour", 22)
    lines = _ok("show", address).splitlines()
    assert _columns(lines[0])[:4] == ["/", "root", "harbour", "damaged"]
    assert [_columns(line)[2] for line in lines[1:]] == [
        "harbour.t2s1b1",
        "harbour.t2s2b1",
    ]
    assert "damage" in _error("show", address, "harbour")
    states = {s["id"]: s["state"] for s in _json("sessions", address)["sessions"]}
    assert states["harbour"] == "damaged"
    assert states["harbour.t2s1b1"] == "completed"


def test_a_header_of_another_version(address: str) -> None:
    fill(address, (ONE, answered().events), (Header("two", 2, {}), answered().events))
    outdate(address, "two")
    first, second = _ok("show", address).split("\n\n")
    assert _columns(first)[:3] == ["/", "root", "one"]
    assert _columns(second)[0] == "(no path)"
    assert "version 7" in second
    assert len(_ok("sessions", address).splitlines()) == 2
    (line,) = _failed(address)
    assert "load refuses it: " in line
    assert "version 7" in line
    listed = _json("sessions", address)["sessions"]
    ((name, state),) = ((s["id"], s["state"]) for s in listed if s["problem"])
    assert state == "unsupported"
    for command in ("show", "export"):
        assert "version 7" in _error(command, address, name)


def test_a_session_that_goes_away_meanwhile(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(address, (ONE, answered().events), (Header("two", 2, {}), answered().events))
    inspect = SessionStore.inspect

    def late(self: SessionStore, session_id: str) -> Stored:
        if session_id == "two":
            raise SessionNotFoundError("two is not stored")
        return inspect(self, session_id)

    monkeypatch.setattr(SessionStore, "inspect", late)
    assert len(_ok("show", address).splitlines()) == 1
    assert _ok("verify", address).startswith("ok: ")
    assert "holds no session 'two' any more" in _error("show", address, "two")


def test_show_of_what_has_no_root(address: str) -> None:
    parents = {"orphan": "gone", "child": "orphan", "a": "b", "b": "a"}
    events = answered().events
    fill(
        address,
        *(
            (Header(i, n, {"parentSession": parent}), events)
            for n, (i, parent) in enumerate(parents.items())
        ),
    )
    shown = [_columns(line)[:3] for line in _ok("show", address).splitlines() if line]
    assert shown == [
        ["(no root)", "spawn", "orphan"],
        ["(no path)", "spawn", "child"],
        ["(no root)", "spawn", "a"],
        ["(no path)", "spawn", "b"],
    ]
    assert {s["path"] for s in _json("show", address)["sessions"]} == {None}


def test_no_text_breaks_the_terminal(address: str) -> None:
    log = LogWriter()
    log.answered_turn("a\x1b[31m\n", "say \ud83d \u202e\x07")
    session_id = "i\x1b[2J\nd"
    fill(address, (Header(session_id, 1, {}), log.events))
    for arguments in (["show"], ["sessions"], ["verify"]):
        text = _ok(arguments[0], address)
        assert text.count("\n") == 1
        assert text.removesuffix("\n").isprintable()
    detail = _ok("show", address, session_id)
    assert all(line.isprintable() for line in detail.splitlines())
    assert "\\ud83d" in detail
    assert _json("show", address)["sessions"][0]["output"] == "say \ud83d \u202e\x07"


def test_no_duration_is_negative(address: str) -> None:
    log = LogWriter()
    log.answered_turn("hi", "ho")
    events = [
        Event(e.seq, e.type, 9_000 - e.seq * 1_000, e.data, e.surface_op)
        for e in log.events
    ]
    fill(address, (ONE, events))
    lines = _ok("show", address, "one").split("\n\n")[1].splitlines()
    assert [line.split()[1] for line in lines] == ["0.000s", *["0.000s<"] * 6]
    assert _ok("verify", address).startswith("ok: ")


# --- sessions ----------------------------------------------------------------------


def test_sessions_are_listed(address: str) -> None:
    header, log = forked()
    root = Header("p", 1_700_000_000_000, {})
    fill(address, (root, log.events[:8]), (header, log.events))
    first, second = _ok("sessions", address).splitlines()
    assert _columns(first) == ["f", "1970-01-01T00:00:00Z", "fork", "p", *FORK_SIZE]
    assert _columns(second) == [
        "p",
        "2023-11-14T22:13:20Z",
        "root",
        "-",
        "8 events",
        "completed",
    ]
    assert _json("sessions", address)["sessions"][0] == {
        "id": "f",
        "createdAt": 2,
        "kind": "fork",
        "parent": "p",
        "events": 17,
        "state": "completed",
        "problem": None,
    }


FORK_SIZE = ["17 events", "completed"]


def test_a_time_that_no_calendar_has(address: str) -> None:
    fill(address, (Header("s", 2**53 - 1, {}), answered().events))
    assert _columns(_ok("sessions", address))[1] == f"{2**53 - 1} ms"


# --- export ------------------------------------------------------------------------


def _open_turn() -> list[Event]:
    return answered(2).events[:12]


def test_export_gives_what_is_stored(address: str, tmp_path: Path) -> None:
    events = _open_turn()
    fill(address, (ONE, events))
    result = run_nestling("export", address, "one")
    assert (result.returncode, result.stderr) == (0, b"")
    recording = read_recording(result.stdout, "it")
    assert result.stdout.startswith(encode_header(ONE))
    assert rows(recording.events) == rows(events)
    target = tmp_path / "out.jsonl"
    assert _ok("export", address, "one", "--output", target) == ""
    assert target.read_bytes() == result.stdout
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == [
        target.name
    ]


def test_export_writes_over_nothing(address: str, tmp_path: Path) -> None:
    fill(address, (ONE, answered().events))
    target = tmp_path / "out.jsonl"
    target.write_bytes(b"mine")
    assert "exists already" in _error("export", address, "one", "--output", target)
    assert target.read_bytes() == b"mine"
    assert _ok("export", address, "one", "--output", target, "--force") == ""
    assert target.read_bytes().startswith(encode_header(ONE))
    link = tmp_path / "link.jsonl"
    link.symlink_to(target)
    line = _error("export", address, "one", "--output", link, "--force")
    assert "found no regular file" in line
    missing = tmp_path / "none" / "out.jsonl"
    assert "cannot write" in _error("export", address, "one", "--output", missing)
    assert not list(tmp_path.glob(".nestling-*"))


def test_a_file_that_came_meanwhile_is_kept(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(address, (ONE, answered().events))
    target = tmp_path / "out.jsonl"
    link = os.link

    def late(source: Path, goal: Path) -> None:
        target.write_bytes(b"mine")
        link(source, goal)

    monkeypatch.setattr(os, "link", late)
    assert "File exists" in _error("export", address, "one", "--output", target)
    assert target.read_bytes() == b"mine"


def test_a_file_system_without_links(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    fill(address, (ONE, answered().events))
    monkeypatch.setattr(os, "link", fail)
    target = tmp_path / "out.jsonl"
    assert _ok("export", address, "one", "--output", target) == ""
    assert target.read_bytes().startswith(encode_header(ONE))


def test_an_id_that_looks_like_an_option(address: str) -> None:
    fill(address, (Header("--help", 1, {}), answered().events))
    assert '"id":"--help"' in _ok("export", address, "--", "--help")
    assert "seed" not in _ok("show", address, "--", "--help")
    assert _ok("verify", address, "--", "--help").startswith("ok: ")


# --- verify ------------------------------------------------------------------------


def test_verify_of_sound_trees(address: str) -> None:
    for name in ("deep", "fan-out", "first-turn-fork", "mixed", "twins"):
        fill(address, *example_sessions(name))
    assert _json("verify", address) == {
        "verdict": "ok",
        "findings": [],
        "remarks": [],
        "sessions": 32,
    }
    assert _ok("verify", address) == f"ok: {address}, 32 sessions\n"


def _failed(*arguments: object) -> list[str]:
    result = _run("verify", *arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("failed: ")
    return lines[:-1]


def test_verify_tells_of_an_open_turn(address: str) -> None:
    fill(address, (ONE, _open_turn()))
    line = 'session "one" event 11: turn 2 is open: a resume closes it'
    assert _failed(address) == [line]
    result = _run("verify", address, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "verdict": "failed",
        "findings": [
            {
                "session": "one",
                "seq": 11,
                "message": "turn 2 is open: a resume closes it",
            }
        ],
        "remarks": [],
        "sessions": 1,
    }
    shown = _ok("show", address)
    assert "open  (a resume closes it)" in shown
    assert "load closes the turn with 2 events" in _ok("show", address, "one")


def test_a_session_that_is_being_written(address: str) -> None:
    with open_store(address) as store:
        store.create(ONE)
        store.append("one", _open_turn())
        assert _ok("verify", address).startswith("ok: ")
        assert _columns(_ok("show", address))[-2:] == ["live", "ho"]


def test_verify_tells_of_damage(address: str) -> None:
    fill(address, (ONE, answered(2).events), (Header("two", 2, {}), answered().events))
    spoil(address, "one", 8)
    (line,) = _failed(address)
    assert line.startswith('session "one": load refuses it: ')
    assert _ok("verify", address, "two").startswith("ok: ")


def test_verify_tells_of_a_torn_tail(address: str) -> None:
    fill(address, (ONE, answered().events + _turn_start()))
    spoil(address, "one", 8)
    (line,) = _failed(address)
    assert line.startswith('session "one": it has a torn tail, load drops it: ')
    assert "torn tail: " in _ok("show", address)


def _turn_start() -> list[Event]:
    return answered(2).events[8:9]


def test_verify_tells_every_rule_that_a_refused_session_breaks(address: str) -> None:
    header, log = forked()
    fill(address, (header.with_fields(seedLength=7), log.events))
    lines = _failed(address)
    assert "load refuses it" in lines[1]
    assert lines[0] == 'remark: session "f": its parent "p" is not stored here'
    assert any("leave turn 1 open" in line for line in lines[2:])
    assert any("found another session/end-seed" in line for line in lines[2:])


def test_verify_compares_parents_and_children(address: str) -> None:
    header, log = forked(seedDigest=None)
    other = LogWriter()
    other.answered_turn("else", "ho")
    child = header.with_fields(seedDigest=None)
    fill(address, (Header("p", 1, {}), other.events), (child, log.events))
    (line,) = _failed(address)
    assert line.startswith('session "f" event 2: this inherited event is not event 2')
    assert _failed(address, "f") == [line]
    assert _ok("verify", address, "p").startswith("ok: ")


def test_verify_is_silent_on_disk(address: str, tmp_path: Path) -> None:
    fill(address, (ONE, _open_turn()), (Header("two", 2, {}), answered().events))
    spoil(address, "two", 3)
    before = files(tmp_path)
    for arguments in (
        ["verify", address],
        ["verify", address, "one"],
        ["show", address],
        ["show", address, "one"],
        ["sessions", address],
        ["export", address, "one"],
    ):
        _run(*arguments)
    assert files(tmp_path) == before


def test_a_call_that_a_model_botched_is_kept_and_reported(address: str) -> None:
    """F7: what was accepted is never refused when it is loaded."""
    blocks = [
        {**call_block("c1"), "id": ""},
        {**call_block("c2"), "name": ""},
        call_block("c3"),
        call_block("c3"),
        {**call_block("c4"), "arguments": "{oops"},
    ]
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.chunks(delta("x"), finish("tool-calls"))
    log.assistant(text_block("x"), *blocks)
    for block in blocks:
        log.tool_result(block["id"], log.tool_call(block["id"]))
    log.end_step()
    log.end_turn()
    fill(address, (ONE, log.events))
    with open_store(address) as store:
        assert rows(store.load("one").events) == rows(log.events)
    at = 'session "one" event 4'
    no_json = "not JSON: found 'oops' at character 1, expected JSON"
    assert _failed(address) == [
        f'remark: {at}: the arguments of tool call "c4" are no JSON: {no_json}',
        f"{at}: a tool call's id is empty, expected some text",
        f'{at}: the name of tool call "c2" is empty, expected one',
        f'{at}: two tool calls of one message have the id "c3", expected an id each',
    ]


# --- what is not there -------------------------------------------------------------


COMMANDS = (
    ["show"],
    ["show", "one"],
    ["sessions"],
    ["export", "one"],
    ["verify"],
    ["verify", "one"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_store_that_is_not_there(
    address: str, tmp_path: Path, command: Sequence[str]
) -> None:
    name, *rest = command
    line = _error(name, address, *rest)
    assert line.startswith(f"nestling: no store at {address}, expected ")
    if name != "export":
        _error(name, address, *rest, "--json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["show", "export", "verify"])
def test_a_session_that_is_not_there(address: str, command: str) -> None:
    fill(address, (ONE, answered().events))
    for session_id in ("two", "", "\udcff", "a\nb"):
        assert "holds no session" in _error(command, address, session_id)


@pytest.mark.parametrize("where", ["memory:", "jsonl:", "sqlite:", "sqlite:/dev/null"])
def test_what_is_no_store(where: str) -> None:
    for command in ("show", "sessions", "verify"):
        assert "no store at" in _error(command, where)


def test_a_scenario_that_is_none(tmp_path: Path) -> None:
    assert "no such file or folder" in _error("show", tmp_path / "none")
    assert "no session 'x' is recorded" in _error("show", FOLDER / "mixed", "x")


def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"text" * 999)
    for command in ("show", "sessions", "verify"):
        _error(command, f"sqlite:{tmp_path / 'f'}")
    assert (tmp_path / "f").read_bytes() == b"text" * 999


def test_a_reader_that_goes_away(tmp_path: Path) -> None:
    address = f"jsonl:{tmp_path}"
    fill(address, *example_sessions("mixed"))
    for arguments in (["show"], ["export", "harbour"]):
        reading, writing = os.pipe()
        os.close(reading)
        try:
            name, *rest = arguments
            result = run_nestling(name, address, *rest, stdout=writing)
        finally:
            os.close(writing)
        assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize("command", ["show", "sessions", "verify", "export"])
def test_an_interrupt_ends_with_130(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_commands_io, command, interrupted)
    more = ["x"] if command == "export" else []
    assert _run(command, "jsonl:x", *more).exit_code == 130
