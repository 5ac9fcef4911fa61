"""Parents that wait for children, forks, and what logs lead to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nestling.session.digest import seed_digest
from nestling.session.event import Event, event_from_content
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject
from nestling.session.log import END_SEED, SessionLog
from nestling.session.request import rebuild_request
from nestling.session.turns import balanced_prefix_length
from support.session_logs import LogWriter, call_block, delta, finish, text_block
from support.stores import header


def waiting(*call_ids: str, name: str = "subagent") -> LogWriter:
    """A log whose second turn waits for the calls that its message made."""
    log = LogWriter()
    log.answered_turn("q", "a")
    return delegate(log, *call_ids, name=name)


def delegate(log: LogWriter, *call_ids: str, name: str = "subagent") -> LogWriter:
    """Open a turn that waits for the calls that its message made."""
    log.start_turn()
    log.start_step()
    log.user("delegate")
    log.chunks(delta("on it"), finish("tool-calls"))
    log.assistant(text_block("on it"), *[call_block(c, name) for c in call_ids])
    for call_id in call_ids:
        log.tool_call(call_id, name)
    return log


def born(
    child_id: str, call_id: str, parent: str = "p", turn: int = 2, **by: Any
) -> Header:
    """The header of the child that a call made; `by` overrides where it says so."""
    place = {"turn": turn, "step": 1, "block": 1, "n": 0, "callId": call_id}
    stated = {**place, "context": "spawn", **by}
    fields = {key: value for key, value in stated.items() if value is not None}
    return header(child_id, parentSession=parent, spawnedBy=fields)


def done(text: str = "found it") -> list[Event]:
    """A child that has done its task."""
    log = LogWriter()
    log.answered_turn("task", text)
    return log.events


def cut_off(text: str = "looking") -> list[Event]:
    """A child that was cut off after its first model call."""
    log = LogWriter()
    log.start_turn()
    log.start_step()
    log.user("task")
    log.chunks(delta(text), finish("tool-calls"))
    log.assistant(text_block(text), call_block("t"))
    log.tool_call("t")
    return log.events


def result_of(events: list[Event], call_id: str) -> Any:
    """The one result of a call: its error code or "", and its texts."""
    (found,) = [
        event.data
        for event in events
        if event.type == "tool/result"
        and event.data["message"]["source"]["callId"] == call_id
    ]
    (block,) = found["message"]["content"]
    assert block.get("isError", False) == ("error" in found), found
    texts = [part["text"] for part in block["content"]]
    return found.get("error", {}).get("code", ""), texts


def forked(
    events: Sequence[Event], child_id: str = "f", parent: str = "s"
) -> tuple[Header, list[Event]]:
    """What a fork of a log begins with: its header, and seed and marker."""
    length = balanced_prefix_length(events)
    seed = list(events[:length])
    mark = event_from_content(END_SEED, length, events[-1].time)
    digest = seed_digest(seed)
    fields: JsonObject = {"parentSession": parent, "seedLength": length}
    fields["seedDigest"] = digest
    return header(child_id, **fields), [*seed, mark]


def log_of(events: Iterable[Event]) -> SessionLog:
    """The log of what was stored; its turn may be open."""
    log = SessionLog()
    for event in events:
        log.append_trusted(event)
    return log


def messages(events: Iterable[Event]) -> list[tuple[str, Any]]:
    """The messages of the request that a log leads to: each role and content."""
    request = rebuild_request(log_of(events))
    return [(message["role"], message["content"]) for message in request.messages]
