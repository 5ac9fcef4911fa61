"""What a parent is told, after a crash, of the children that it was waiting for.

A delegating call whose result was not logged is not one of unknown outcome: the child's
own log says what became of it. A child that had finished is delivered, once; one that
had not is reported as interrupted, once. Both are results of the call in the parent's
log, written when that is repaired, so the second repair finds nothing to tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from nestling.session.boundary import own_events
from nestling.session.delegation import DELEGATION_TOOLS, delegation_result
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import Json, JsonObject, shown
from nestling.session.outcome import is_models, outcome
from nestling.session.repair import OpenCall, open_calls

SUBAGENT_INTERRUPTED: Final = "SUBAGENT_INTERRUPTED"


_Place: TypeAlias = tuple[int, int, int | None, str]


class ChildCall(NamedTuple):
    """A delegating call without a result, and the child that it made."""

    call: OpenCall
    child: Header


def open_delegations(events: Sequence[Event]) -> list[OpenCall]:
    """Return the delegating calls that a log's open turn has left without results."""
    return [call for call in open_calls(events) if call.name in DELEGATION_TOOLS]


def made_by(calls: Iterable[OpenCall], children: Iterable[Header]) -> list[ChildCall]:
    """Return the calls whose children are known.

    Args:
        calls: delegating calls of one session.
        children: headers that name the session as their parent.
    """
    # By place and id: a model may use an id twice, and a log may lie about one of both.
    at: dict[_Place | None, OpenCall] = {
        (call.turn, call.step, call.block, call.call_id): call for call in calls
    }
    found = ((at.get(_place(child)), child) for child in children)
    return [ChildCall(call, child) for call, child in found if call is not None]


def _place(child: Header) -> _Place | None:
    """Return the call that a child is the whole of, if it is of one.

    Further delegations of one call were made by a tool's code, which has a result of its
    own.
    """
    by = child.spawned_by
    if by is None or by.call_id is None or by.block is None or by.n != 0:
        return None
    return by.turn, by.step, by.block, by.call_id


def answered(own: Sequence[Event]) -> Sequence[Event] | None:
    """Return a child's own events up to where it had done its task; None if it had not.

    Its task is what it was told first. A turn that was interrupted did not do it; another
    turn that was told the same may have. What it was asked later, by whoever resumed it
    by itself, is nothing that its parent waited for.
    """
    task: Json = None
    said: Json = None
    for position, event in enumerate(own):
        if event.type == "turn/start":
            said = None
        elif event.type == "user/message" and said is None:
            said = event.data["content"]
            task = said if task is None else task
        elif event.type == "turn/end":
            ended_by_itself = event.data["reason"]["kind"] != "interrupted"
            if ended_by_itself and said == task:
                return own[: position + 1]
    return None


def told(call: OpenCall, child: Header, events: Sequence[Event]) -> JsonObject:
    """Return the result of a delegating call, ``{"block", "error"?}``.

    Args:
        call: the call.
        child: the header of the session that it made.
        events: that session's log; whether its interrupted turn is closed is all one,
            so nobody needs to know what its own children came to.
    """
    own = own_events(events, child.seed_length)
    done = answered(own)
    if done is not None:
        result = delegation_result(outcome(done))
        return {"block": _block(call, **result)}
    content = [{"type": "text", "text": text} for text in _interruption(child, own)]
    error = {"name": "SubagentInterruptedError", "code": SUBAGENT_INTERRUPTED}
    return {"block": _block(call, content=content, isError=True), "error": error}


def _block(call: OpenCall, **result: Json) -> JsonObject:
    return {"type": "tool-result", "toolCallId": call.call_id, **result}


def _interruption(child: Header, own: Sequence[Event]) -> Iterator[str]:
    own = _first_turn(own)
    done = sum(e.type == "assistant/message" and is_models(e) for e in own)
    yield (
        "Error: the subagent was interrupted before it had finished, after "
        f"{done} model call{'' if done == 1 else 's'}. What it did is done; its session "
        f"is {shown(child.id)}."
    )
    text = outcome(own).text
    if text:
        yield text


def _first_turn(own: Sequence[Event]) -> Sequence[Event]:
    """Return the events up to the end of the first turn, or all if it is open."""
    for position, event in enumerate(own):
        if event.type == "turn/end":
            return own[: position + 1]
    return own
