"""The hub's core: what happened goes in, what is to be done comes out. No I/O.

One handler for each event; a worker that breaks the protocol is ended and recorded,
and nobody else notices.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from typing import Final

from nestling.driver.calls import Calls
from nestling.driver.cancels import Cancels
from nestling.driver.director import Director
from nestling.driver.endings import Endings
from nestling.driver.exits import Exit
from nestling.driver.hub_session import HubSession, State
from nestling.driver.instructions import (
    Abort,
    Broken,
    CancelCall,
    CancelTurn,
    Durable,
    Exited,
    Fed,
    HubEvent,
    Instruction,
    Launched,
    NotDurable,
    NotLaunched,
    Prompted,
    Provided,
    ProviderEnded,
    Received,
    Released,
    Stopped,
    Tick,
)
from nestling.driver.prompts import Prompts
from nestling.driver.requests import Requests
from nestling.driver.tree import Now, Tree
from nestling.driver.uploads import Gap, take_events
from nestling.driver.watch import Watch
from nestling.session.errors import AppendError, WireError
from nestling.session.jsontext import JsonObject
from nestling.session.spawn_path import ROOT
from nestling.wire.messages import (
    PROTOCOL,
    Ack,
    Beat,
    Bye,
    Credit,
    Delegate,
    Events,
    Hello,
    Nack,
    Ready,
    Result,
    Stream,
    ToHub,
    Tool,
    Welcome,
)

CANCELLED: Final = "CANCELLED"
"""The code of a call that was cancelled while its turn goes on."""
BYE_BYTES: Final = 4000
"""So much of a goodbye is kept, as whole characters."""


class Hub:
    """Runs one tree of sessions."""

    def __init__(self, director: Director) -> None:
        self.tree = Tree(director)
        self._cancels = Cancels(self.tree)
        self._endings = Endings(self.tree, self._cancels)
        self._calls = Calls(self.tree, self._cancels)
        self._prompts = Prompts(self.tree)
        self._requests = Requests(self.tree, self._endings, self._cancels)
        self._watch = Watch(self.tree, self._endings, self._calls, self._cancels)

    def start(self, now: Now) -> list[Instruction]:
        """Create the root session."""
        self.tree.now = now
        creation = self.tree.director.on_root()
        if creation.stored is None:
            root = self.tree.add(creation, (), ROOT, None)
        else:
            root = self.tree.restore(creation, creation.stored)
        self._endings.announce(root)
        return self._taken_orders()

    def handle(self, event: HubEvent, now: Now) -> list[Instruction]:
        """Take in what happened; return what is to be done about it, in order."""
        self.tree.now = now
        match event:
            case Received() | Broken() | Launched() | NotLaunched() | Exited():
                session = self.tree.of_launch(event.launch)
                if session.launch == event.launch:
                    self._of_worker(session, event)
                # Else it is of an earlier worker, whose end was taken note of.
            case Durable():
                self._durable(self.tree.of_sid(event.sid), event.length)
            case NotDurable():
                session = self.tree.of_sid(event.sid)
                self._endings.not_durable(session, event.problem)
            case Provided():
                session = self.tree.of_sid(event.sid)
                self._calls.provided(session, event)
            case ProviderEnded():
                session = self.tree.of_sid(event.sid)
                self._calls.provider_ended(session, event)
            case Fed():
                self._calls.fed(self.tree.of_sid(event.sid), event)
            case Prompted():
                self._prompts.prompted(self.tree.root, event.prompt)
            case Released():
                self._prompts.released(self.tree.root)
            case CancelTurn():
                event.ack(self._cancel_turn(event))
            case CancelCall():
                event.ack(self._cancel_call(event))
            case Stopped():
                self._stop(event.cause)
            case Tick():
                self._watch.tick()
            case Abort():
                self._abort(event.reason)
        return self._taken_orders()

    def _of_worker(
        self,
        session: HubSession,
        event: Received | Broken | Launched | NotLaunched | Exited,
    ) -> None:
        match event:
            case Received():
                self._received(session, event)
            case Broken():
                self.tree.kill(session, f"protocol: {event.problem}")
            case Launched():
                session.pid = event.pid
            case NotLaunched():
                self._endings.reaped(session, Exit(None, None, event.problem))
            case Exited():
                self._endings.reaped(session, event.exit)

    def waiting(self) -> list[tuple[str, str]]:
        """Say of every session that has not ended what it waits for."""
        return [(s.path, s.waits_for) for s in self.tree if not s.is_ended]

    def is_starting(self) -> bool:
        """Tell whether a worker is starting, which has a bound of its own."""
        return any(self.tree.is_starting(session) for session in self.tree)

    def is_idle(self) -> bool:
        """Tell whether the run waits for a prompt and for nothing else."""
        sessions = [session for session in self.tree if not session.is_ended]
        return bool(sessions) and all(s.state is State.IDLE for s in sessions)

    def is_pacing(self) -> bool:
        """Tell whether an answer waits for its time, which nothing holds up."""
        running = (s for s in self.tree if s.state is State.RUNNING)
        return any(s.call is not None and s.call.is_paced for s in running)

    def _taken_orders(self) -> list[Instruction]:
        while unlaunched := self.tree.take_unlaunched():
            for session in unlaunched:
                self._endings.reaped(session, Exit(None, None))
        self.tree.do_due()
        orders, self.tree.orders = self.tree.orders, []
        return orders

    # --- messages --------------------------------------------------------------

    def _received(self, session: HubSession, event: Received) -> None:
        session.last_heard = self.tree.now.monotonic
        if session.is_ended or session.state is State.STOPPING:
            self._last_words(session, event.message, event.body)
            return
        try:
            self._dispatch(session, event.message, event.body)
        except (WireError, AppendError) as error:
            self._endings.grown(session)
            self.tree.kill(session, f"protocol: {error}")

    def _last_words(self, session: HubSession, message: ToHub, body: bytes) -> None:
        """Keep the events of a worker that is being ended, and nothing else."""
        if not isinstance(message, Events) or message.sid != session.sid:
            return
        if session.exit is not None:
            return  # its log is closed
        try:
            self._events(session, message, body)
        except (WireError, AppendError):
            self._endings.grown(session)  # what was sound of it; it is ended already

    def _dispatch(self, session: HubSession, message: ToHub, body: bytes) -> None:
        if isinstance(message, Hello):
            self._hello(session, message)
            return
        if message.sid != session.sid:
            raise WireError(f"it spoke for session {message.sid}, not {session.sid}")
        match message:
            case Stream() | Tool() | Delegate() | Result() if session.is_beyond(
                message.length
            ):
                return  # its worker is about to be killed, and never came to this
        match message:
            case Ready():
                self._ready(session, message)
            case Events():
                session.require("events", State.RUNNING)
                self._events(session, message, body)
            case Stream():
                self._calls.stream(session, message)
            case Credit():
                self._calls.credit(session, message)
            case Tool():
                self._requests.tool(session, message, body)
            case Delegate():
                self._requests.delegate(session, message, body)
            case Result():
                self._prompts.result(session, message)
            case Bye():
                self._endings.bye(session, message, _goodbye(body))
            case Beat():
                pass  # that it was heard is all that it says

    def _hello(self, session: HubSession, message: Hello) -> None:
        session.require("a hello", State.STARTING)
        if message.protocol != PROTOCOL:
            raise WireError(
                f"it speaks protocol {message.protocol}, expected {PROTOCOL}"
            )
        session.state = State.CREATING
        self.tree.progress += 1
        self.tree.say(session, Welcome(PROTOCOL))
        self.tree.say(session, *self.tree.create_message(session))

    def _ready(self, session: HubSession, message: Ready) -> None:
        session.require("a ready", State.CREATING)
        if message.events != session.given:
            raise WireError(
                f"it took a seed of {message.events} events, expected {session.given}"
            )
        session.state = State.RUNNING
        self.tree.progress += 1
        session.waits_for = "its worker"
        self._prompts.begin(session)
        self.tree.launch_next()

    def _events(self, session: HubSession, message: Events, body: bytes) -> None:
        end = session.log_end
        if end is not None and len(session.log) >= end:
            return
        taken = take_events(session.log, session.call, message, body, end)
        if isinstance(taken, Gap):
            if session.gap_at != taken.expected:
                session.gap_at = taken.expected
                self.tree.say(session, Nack(session.sid, taken.expected))
            return
        session.gap_at = None
        self._endings.grown(session)

    # --- the rest --------------------------------------------------------------

    def _durable(self, session: HubSession, length: int) -> None:
        self.tree.progress += 1
        # Before what waited for it: a worker that is told to run a tool checks that.
        if session.state in (State.RUNNING, State.IDLE):
            self.tree.say(session, Ack(session.sid, length))
        try:
            session.became_durable(length)
        except WireError as error:
            self.tree.kill(session, f"protocol: {error}")
        self._endings.kill_where_told(session)

    def _cancel_turn(self, event: CancelTurn) -> bool | None:
        session = self.tree.at(event.path)
        return None if session is None else self._cancels.cancel(session, event.cause)

    def _cancel_call(self, event: CancelCall) -> bool | None:
        session = self.tree.at(event.path)
        if session is None:
            return None
        return self._calls.fail(session, "the call was cancelled", CANCELLED)

    def _stop(self, cause: JsonObject) -> None:
        root = self.tree.root
        root.is_open = False
        self._cancels.cancel(root, cause)
        self._prompts.released(root)

    def _abort(self, reason: str) -> None:
        self.tree.is_aborting = True
        for session in self.tree:
            self.tree.kill(session, reason, "abort")


def _goodbye(body: bytes) -> str:
    """Return the beginning of a goodbye; what is no text takes more room as text."""
    decoder = getincrementaldecoder("utf-8")("backslashreplace")
    text = decoder.decode(body[:BYE_BYTES], final=len(body) <= BYE_BYTES)
    return text.encode()[:BYE_BYTES].decode("utf-8", "ignore")
