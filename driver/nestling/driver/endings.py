"""How sessions end: by themselves, by a kill, by a death nobody ordered.

Guarantees:

- A worker's death leaves a closed turn in its log, an error for its parent and no
  living child; never an empty success.
- A delegation's result is released when the child's last event is durable.
- A session that is resumed after its worker's death has a closed turn, durably, and no
  living child.
- The run is done when every session has settled and every process is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from nestling.driver.cancels import PARENT, Cancels
from nestling.driver.director import EndedBy, Loss, Lost, Resume, Settlement, Unanswered
from nestling.driver.exits import Exit
from nestling.driver.hub_session import HubSession, State
from nestling.driver.instructions import Done, Release
from nestling.driver.tree import Tree
from nestling.session.delegation import delegation_result
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject, dumps
from nestling.session.outcome import Outcome
from nestling.session.repair import closers, open_calls
from nestling.wire.messages import Bye, Cancel, Delegate, Settled, ToolResult


class _Death(NamedTuple):
    """How a worker's death is told of."""

    diagnostic: str
    last_event: str
    closing: Sequence[Event]


class Endings:
    """Ends sessions and passes on what they came to."""

    def __init__(self, tree: Tree, cancels: Cancels) -> None:
        self._tree = tree
        self._cancels = cancels
        self._returning: dict[HubSession, tuple[Resume, _Death]] = {}
        self._is_done = False

    # --- starting, growing -----------------------------------------------------

    def announce(self, session: HubSession) -> None:
        """Show the director a new session, and launch its worker unless it objects."""
        session.observed = len(session.log)
        stop = self._tree.director.on_created(
            session.id, session.header, session.log.events
        )
        if stop is None:
            self._tree.launch(session)
            return
        session.exit, session.ended_by = Exit(None, None, "never started"), "director"
        self._settle(session, f"it was stopped: {stop.reason}")

    def grown(self, session: HubSession) -> None:
        """Show the director what is new in a log, and stop where it says so."""
        events = session.log.events[session.observed :]
        session.observed = len(session.log)
        self._tree.progress += len(events)
        for event in events:
            session.step.take(event)
            if event.type == "turn/start":
                session.turn_began = self._tree.now.monotonic
            elif event.type == "turn/end":
                session.turn_began = None
                session.turns_ended += 1
        self._tree.persist(session)
        if not events:
            return
        self._flush_where_told(session)
        if session.ended_by != "director":
            stop = self._tree.director.on_events(session.id, events)
            if stop is not None:
                self._tree.kill(session, stop.reason, "director")
                return
        self._cancel_where_told(session)
        self._cancels.grown(session)

    def _cancel_where_told(self, session: HubSession) -> None:
        stop = session.cancels.get(len(session.log))
        if stop is None or session.ended_children < stop.children:
            return
        del session.cancels[stop.length]
        session.cancelled = session.log.turns.turn
        self._tree.say(session, Cancel(session.sid, None, None), dumps(stop.cause))
        # Only now: nothing that a worker waits for may come before its cancel.
        for answer, body in session.left_open:
            self._tree.say(session, answer, body)
        session.left_open.clear()

    def _flush_where_told(self, session: HubSession) -> None:
        end = session.log_end
        if end is not None and len(session.log) >= end > session.durable:
            self._tree.flush(session)

    def kill_where_told(self, session: HubSession) -> None:
        """Kill a session's worker if the place where it must die is durable."""
        if not session.kills or session.is_ended:
            return
        length, children = session.kills[0]
        if session.durable >= length and session.ended_children >= children:
            self._tree.kill(session, _ENDED)

    # --- ending ----------------------------------------------------------------

    def bye(self, session: HubSession, message: Bye, detail: str) -> None:
        """Take a worker's last word."""
        if message.reason == "done":
            session.require("a goodbye", State.FINISHING)
            session.left_at = self._tree.now.monotonic
            self._settle(session, None)
            return
        self._tree.director.on_refused(session.id, message.reason, detail)
        session.is_refused = True
        self._tree.kill(session, f"{message.reason}: {detail}", "director")

    def reaped(self, session: HubSession, exit: Exit) -> None:
        """Take note that a session's process is gone."""
        session.exit = exit
        self._tree.progress += 1
        self._tree.dismiss(session)
        if session.is_ended:
            self._leave(session)
        else:
            self._lost(session, exit)
        self._tree.launch_next()
        self._check_done()

    def _lost(self, session: HubSession, exit: Exit) -> None:
        """Close the turn of a session whose worker ended before its last word."""
        session.state = State.STOPPING
        why = session.stop_reason or _ENDED
        diagnostic, last = f"{why} ({exit})", _last_event(session)
        if session.is_refused and not session.log.events:
            # Its agent could not be loaded: how its process was ended tells nothing.
            diagnostic, last = why.removeprefix("failed: "), ""
        lost = Lost()
        if session.ended_by == "death" and not session.has_lost_store:
            has_begun = len(session.log) > session.seed_length
            loss = Loss(exit, open_calls(session.log.events), has_begun)
            lost = self._tree.director.on_lost(session.id, loss)
        if session.ended_by != "director":  # what it stops, it stops alone
            self._end_children(session, is_orderly=lost.is_orderly)
        closing = closers(session.log.events, lost.results)
        for event in closing:
            session.log.append_trusted(event)
        session.observed = len(session.log)
        self._tree.persist(session)
        death = _Death(diagnostic, last, closing)
        if session.has_lost_store:
            self._settle(session, *death)
        else:
            session.when_durable(
                len(session.log), lambda: self._closed(session, lost.resume, death)
            )

    def _end_children(self, session: HubSession, *, is_orderly: bool) -> None:
        for child in session.children:
            if child.is_ended:
                continue
            if is_orderly or session.ended_by == "cancel":
                self._cancels.cancel(child, PARENT)
            else:
                reason = f"its parent {session.path} is gone"
                self._tree.kill(child, reason, "abort")

    # --- going on after a death ------------------------------------------------

    def _closed(
        self, session: HubSession, resume: Resume | None, death: _Death
    ) -> None:
        """Settle a lost session whose log is closed, or have it go on."""
        if resume is None:
            self._settle(session, *death)
        else:
            session.waits_for = "its children to end"
            self._returning[session] = resume, death
            self._return(session)

    def _return(self, session: HubSession) -> None:
        """Have a session go on that was lost, if nothing of it lives any more."""
        if session not in self._returning or not session.is_alone():
            return
        resume, death = self._returning.pop(session)
        parent = session.parent
        is_bereft = parent is not None and parent.state in _GONE
        if self._tree.is_aborting or is_bereft:
            session.ended_by = "abort"
        elif not session.is_ended:
            stop = self._tree.director.on_events(session.id, death.closing)
            if stop is None:
                self._tree.progress += 1
                self._tree.resume(session, resume)
                return
            session.ended_by = "director"
            death = death._replace(diagnostic=f"it was stopped: {stop.reason}")
        self._settle(session, *death)

    def not_durable(self, session: HubSession, problem: str) -> None:
        """End a session whose events cannot be written: fail closed."""
        session.has_lost_store = True
        if session.is_ended:
            return
        if session.exit is None:
            self._tree.kill(session, problem)
        else:
            self._settle(session, problem)
            self._check_done()

    def _settle(
        self,
        session: HubSession,
        diagnostic: str | None,
        last_event: str = "",
        closing: Sequence[Event] = (),
    ) -> None:
        if session.is_ended:
            return
        session.state = State.SETTLED
        self._tree.progress += 1
        if session.exit is not None:
            self._leave(session)
        outcome = session.outcome()
        ended_by: EndedBy = "itself"
        if diagnostic is not None:
            ended_by = session.ended_by
            stopped = "aborted" if ended_by == "cancel" else "error"
            outcome = Outcome(stopped, outcome.output)
        settlement = Settlement(
            ended_by,
            outcome,
            session.exit,
            diagnostic,
            last_event,
            closing,
            tuple(session.exits),
        )
        told = self._tree.director.on_settled(session.id, settlement)
        self._tree.notice(session, f"{outcome.stop_reason}: {outcome.text}")
        if session.parentage is not None:
            parent, request, call_id = session.parentage
            # Where that is its end it must not come to hear of this first.
            self.kill_where_told(parent)
            self._cancel_where_told(parent)
            if isinstance(told, Unanswered):
                self.leave_open(parent, settled(parent, request), call_id)
            else:
                result = _live_result(call_id, settlement) if told is None else told
                self.tell(parent, request, result)
        for waiting in list(self._returning):
            self._return(waiting)
        self._check_done()

    def _leave(self, session: HubSession) -> None:
        """Let a session go that has settled and whose process is gone."""
        session.state = State.REAPED
        self._tree.orders.append(Release(session.sid))

    def tell(self, parent: HubSession, request: Delegate, result: JsonObject) -> None:
        """Answer a delegation."""
        parent.waits_for = "its worker"
        self._tree.say(parent, settled(parent, request), dumps(result))

    def leave_open(
        self, session: HubSession, answer: ToolResult | Settled, call_id: str
    ) -> None:
        """Answer a request once its turn is cancelled, so that its session can end."""
        said = answer, dumps(given_up(call_id))
        if session.cancelled == answer.turn:
            self._tree.say(session, *said)
        else:
            session.left_open.append(said)

    def _check_done(self) -> None:
        if self._is_done:
            return
        if self._tree.is_reaped():
            self._is_done = True
            self._tree.orders.append(Done())


_ENDED: Final = "its worker ended"
_GONE: Final = (State.STOPPING, State.SETTLED, State.REAPED)


def settled(parent: HubSession, request: Delegate) -> Settled:
    """Return the message that answers a delegation."""
    return Settled(
        parent.sid,
        request.turn,
        request.step,
        request.block,
        request.n,
        request.key,
    )


def given_up(call_id: str) -> JsonObject:
    """Build the answer to a request that nobody waits for any more."""
    text = {"type": "text", "text": "Error: the turn was cancelled"}
    block = {
        "type": "tool-result",
        "toolCallId": call_id,
        "content": [text],
        "isError": True,
    }
    return {"block": block, "error": {"name": "AbortError", "code": "ABORTED"}}


def _last_event(session: HubSession) -> str:
    if not session.log.events:
        return "before its first event"
    last = session.log.events[-1]
    return f"after event {last.seq}, {last.type}"


def _live_result(call_id: str, settlement: Settlement) -> JsonObject:
    """Build the tool result of a delegation from what the child came to."""
    result = delegation_result(settlement.outcome)
    if settlement.diagnostic is not None:
        text = {"type": "text", "text": f"Diagnostic: {settlement.death}"}
        result = {**result, "content": [*result["content"], text]}
    return {
        "block": {"type": "tool-result", "toolCallId": call_id, **result},
        "stopReason": settlement.outcome.stop_reason,
    }
