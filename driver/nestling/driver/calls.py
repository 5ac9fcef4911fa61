"""The model calls of running sessions: opened, served, ended.

A call is opened once the events before it are durable, and its request is the one that
the hub's own log leads to. Who answers is the director's to say.
"""

from __future__ import annotations

from typing import Final

from nestling.driver.cancels import Cancels, cut_of
from nestling.driver.director import Answer, Asked, CallRequest, Cut, Stop
from nestling.driver.hub_session import HubSession, State
from nestling.driver.instructions import (
    Allow,
    Ask,
    Fed,
    Feed,
    Provided,
    ProviderEnded,
)
from nestling.driver.streams import AHEAD, OpenCall
from nestling.driver.tree import Tree
from nestling.session.errors import ProviderError, WireError
from nestling.session.jsontext import dumps
from nestling.session.request import rebuild_request
from nestling.wire.credit import WINDOW_BYTES, WINDOW_FRAMES, Window
from nestling.wire.messages import Cancel, Chunks, Credit, End, Fail, Stream

TIMEOUT: Final = "TIMEOUT"
"""The code of a call whose provider was silent for too long."""


class Calls:
    """Answers the calls of running sessions."""

    def __init__(self, tree: Tree, cancels: Cancels) -> None:
        self._tree = tree
        self._cancels = cancels

    def stream(self, session: HubSession, message: Stream) -> None:
        """Open a call once the events before it are durable."""
        session.require("a stream request", State.RUNNING)
        call = session.call
        if session.is_opening or (call is not None and not call.is_closed):
            raise WireError("a second stream request while a call is open")
        if message.call != session.calls_started:
            raise WireError(
                f"call {message.call} was opened, expected {session.calls_started}"
            )
        session.is_opening = True
        session.waits_for = f"call {message.call + 1}"
        session.when_asked(message.length, lambda: self._open(session, message))

    def _open(self, session: HubSession, message: Stream) -> None:
        if session.state is not State.RUNNING:
            return
        self._check_request(session, message)
        session.is_opening = False
        session.calls_started += 1
        request = CallRequest(
            session.id,
            message.call,
            message.purpose,
            message.provider,
            message.model,
            message.turn,
            message.step,
            lambda: rebuild_request(session.log).messages,
        )
        decision = cut_of(session) or self._tree.director.on_stream(request)
        if isinstance(decision, Stop):
            self._tree.kill(session, decision.reason, "director")
            return
        # A worker may ask for less than the usual window, not for more.
        window = Window(
            min(message.credit_bytes, WINDOW_BYTES),
            min(message.credit_frames, WINDOW_FRAMES),
        )
        if isinstance(decision, Asked):
            call = OpenCall(request, None, window, decision.cut)
        else:
            call = OpenCall(request, decision, window)
        session.call = call
        call.heard_at = self._tree.now.monotonic
        self._tree.progress += 1
        self._tree.notice(session, f"call {message.call + 1}")
        if isinstance(decision, Asked):
            if not call.is_cut_due:
                asked = rebuild_request(session.log)
                ask = Ask(session.sid, message.call, decision.provider, asked, AHEAD)
                self._tree.orders.append(ask)
        elif decision.pace is not None:
            length, pace = len(call.chunks), decision.pace
            feed = Feed(session.sid, session.path, message.call, length, pace)
            self._tree.orders.append(feed)
        self._serve(session, call)

    def fed(self, session: HubSession, event: Fed) -> None:
        """Serve what may be served by now of a paced answer."""
        call = session.call
        if call is None or call.request.number != event.call or call.is_closed:
            return
        if session.state is not State.RUNNING:
            return
        call.release(event.released, is_at_gate=event.gate)
        at = f"the gate at chunk {event.released} of " if event.gate else ""
        session.waits_for = f"{at}call {event.call + 1}"
        self._tree.progress += 1
        self._serve(session, call)

    def provided(self, session: HubSession, event: Provided) -> None:
        """Take in what a provider has yielded, and serve it."""
        call = self._asked(session, event.call)
        if call is None:
            return
        call.heard_at = self._tree.now.monotonic
        try:
            for chunk in event.chunks:
                call.grow(chunk)
        except ProviderError as error:
            self._tree.dismiss(session)
            call.finish(dict(error.failure()))
        self._serve(session, call)

    def provider_ended(self, session: HubSession, event: ProviderEnded) -> None:
        """Take in how a provider's answer ends."""
        call = self._asked(session, event.call)
        if call is not None:
            call.finish(event.failure)
            self._serve(session, call)

    def fail(self, session: HubSession, message: str, code: str) -> bool:
        """End a call that a provider is answering; its turn goes on.

        Returns:
            Whether there was one.
        """
        call = session.call
        if session.state is not State.RUNNING or call is None:
            return False
        if call.answer is not None or call.is_closed:
            return False
        self._tree.dismiss(session, {"message": message, "code": code})
        self._serve(session, call)
        return True

    def expire(self, session: HubSession) -> None:
        """End a call whose provider has been silent for too long.

        One that may not yield any more, because its worker has no room, is not silent.
        """
        call = session.call
        if call is None or call.answer is not None or call.is_ahead:
            return
        limits, is_first = self._tree.director.limits, not call.chunks
        bound = limits.first_token_timeout if is_first else limits.stream_idle_timeout
        if self._tree.now.monotonic - call.heard_at > bound:
            what = "first" if is_first else "next"
            text = f"the provider's {what} chunk did not come within {bound:g} s"
            self.fail(session, text, TIMEOUT)

    def _asked(self, session: HubSession, number: int) -> OpenCall | None:
        """Return the call that a provider speaks of, if it still waits for it."""
        call = session.call
        if call is None or call.request.number != number or call.answer is not None:
            return None
        return call if session.state is State.RUNNING else None

    def _check_request(self, session: HubSession, message: Stream) -> None:
        log = session.log
        if message.length != len(log):
            raise WireError(
                f"call {message.call} was made from {message.length} events, "
                f"the log has {len(log)}"
            )
        place = (log.turns.turn or 0, log.turns.step or 0)
        if (message.turn, message.step) != place:
            raise WireError(
                f"call {message.call} of turn {message.turn}, step {message.step}; "
                f"the log is at {place[0]}, {place[1]}"
            )
        if (message.provider, message.model) != log.surface.route:
            raise WireError(
                f"call {message.call} names {message.provider}/{message.model}, "
                f"the log says {'/'.join(log.surface.route)}"
            )
        if message.digest != log.surface.request_digest():
            raise WireError(
                f"the request of call {message.call} is not the one the log leads to"
            )

    def credit(self, session: HubSession, message: Credit) -> None:
        """Widen the window of the open call and go on serving it."""
        call = session.call
        if call is None or call.request.number < message.call:
            raise WireError(f"credit for call {message.call}, which was not opened")
        if call.request.number > message.call:
            return  # it was on its way when that call ended
        call.window.grant(message.bytes, message.frames)
        self._serve(session, call)

    def _serve(self, session: HubSession, call: OpenCall) -> None:
        if call.is_closed:
            return  # it was cut
        number, sid = call.request.number, session.sid
        while (batch := call.next_batch(self._tree.now.epoch_ms)) is not None:
            self._tree.progress += 1
            message = Chunks(sid, number, batch.first, batch.length)
            self._tree.say(session, message, batch.body)
        if call.cut is not None and call.is_cut_due:
            self._cut(session, call, call.cut)
        elif call.answer is None:
            allowed = call.allowance()
            if allowed is not None:
                call.heard_at = self._tree.now.monotonic
                self._tree.orders.append(Allow(sid, number, allowed))
        elif call.may_end:
            self._close_call(session, call, call.answer)

    def _cut(self, session: HubSession, call: OpenCall, cut: Cut) -> None:
        def cancelled() -> bool:
            is_open = session.call is call and not call.is_closed
            is_running = session.state is State.RUNNING
            if is_open and is_running:
                return self._cancels.stated(cut.path, cut.cause)
            return True

        call.cut = None
        call.hold()
        self._tree.when_due(cancelled)

    def _close_call(self, session: HubSession, call: OpenCall, answer: Answer) -> None:
        number, sid = call.request.number, session.sid
        if answer.hangs:
            return
        call.is_closed = True
        session.waits_for = "its worker"
        if answer.cut is not None:
            message = Cancel(sid, number, call.served)
            self._tree.say(session, message, dumps(answer.cut))
        elif answer.failure is not None:
            failed = Fail(sid, number, call.served)
            self._tree.say(session, failed, dumps(answer.failure))
        else:
            self._tree.say(session, End(sid, number, call.served))
