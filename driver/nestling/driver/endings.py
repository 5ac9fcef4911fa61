"""How sessions end: by themselves, by a kill, by a death nobody ordered.

Guarantees:

- A worker's death leaves a closed turn in its log, an error for its parent and no
  living child; never an empty success.
- A delegation's result is released when the child's last event is durable.
- The run is done when every session has settled and every process is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from nestling.driver.cancels import PARENT, Cancels
from nestling.driver.director import EndedBy, Settlement
from nestling.driver.exits import Exit
from nestling.driver.hub_session import HubSession, State
from nestling.driver.instructions import Done, Release
from nestling.driver.tree import Tree
from nestling.session.delegation import delegation_result
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject, dumps
from nestling.session.outcome import Outcome
from nestling.session.repair import closers
from nestling.wire.messages import Bye, Cancel, Delegate, Settled


class Endings:
    """Ends sessions and passes on what they came to."""

    def __init__(self, tree: Tree, cancels: Cancels) -> None:
        self._tree = tree
        self._cancels = cancels
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
        cause = session.cancels.get(len(session.log))
        if cause is not None:
            self._tree.say(session, Cancel(session.sid, None, None), dumps(cause))

    def _flush_where_told(self, session: HubSession) -> None:
        kill_at = session.creation.stops.kill_at
        if kill_at is not None and len(session.log) >= kill_at > session.durable:
            self._tree.flush(session)

    def kill_where_told(self, session: HubSession) -> None:
        """Kill a session's worker if the place where it must die is durable."""
        kill_at = session.creation.stops.kill_at
        if kill_at is not None and session.durable >= kill_at:
            self._tree.kill(session, "the recorded worker died here")

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
        if session.ended_by != "director":  # what it stops, it stops alone
            for child in session.children:
                self._cancels.cancel(child, PARENT)
        why = session.stop_reason or "its worker ended"
        diagnostic, last = f"{why} ({exit})", _last_event(session)
        if session.is_refused and not session.log.events:
            # Its agent could not be loaded: how its process was ended tells nothing.
            diagnostic, last = why.removeprefix("failed: "), ""
        closing = closers(session.log.events)
        for event in closing:
            session.log.append_trusted(event)
        session.observed = len(session.log)
        self._tree.persist(session)
        if session.has_lost_store:
            self._settle(session, diagnostic, last, closing)
        else:
            session.when_durable(
                len(session.log),
                lambda: self._settle(session, diagnostic, last, closing),
            )

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
            ended_by, outcome, session.exit, diagnostic, last_event, closing
        )
        told = self._tree.director.on_settled(session.id, settlement)
        self._tree.notice(session, f"{outcome.stop_reason}: {outcome.text}")
        if session.parentage is not None:
            parent, request, call_id = session.parentage
            self.tell(parent, request, told or _live_result(call_id, settlement))
        self._check_done()

    def _leave(self, session: HubSession) -> None:
        """Let a session go that has settled and whose process is gone."""
        session.state = State.REAPED
        self._tree.orders.append(Release(session.sid))

    def tell(self, parent: HubSession, request: Delegate, result: JsonObject) -> None:
        """Answer a delegation."""
        parent.waits_for = "its worker"
        message = Settled(
            parent.sid,
            request.turn,
            request.step,
            request.block,
            request.n,
            request.key,
        )
        self._tree.say(parent, message, dumps(result))

    def _check_done(self) -> None:
        if self._is_done:
            return
        if self._tree.is_reaped():
            self._is_done = True
            self._tree.orders.append(Done())


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
