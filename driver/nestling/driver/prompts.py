"""What sessions are told, turn by turn, and when they have nothing left to do."""

from __future__ import annotations

from nestling.driver.director import Prompt
from nestling.driver.hub_session import HubSession, State
from nestling.driver.tree import Tree
from nestling.session.errors import WireError
from nestling.session.jsontext import dumps
from nestling.wire import messages
from nestling.wire.messages import Close, Result


class Prompts:
    """Begins the turns of sessions, and lets their workers go after the last one."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def prompted(self, session: HubSession, prompt: Prompt) -> None:
        """Tell a session something more, when it has done what it was told before."""
        session.prompts.append(prompt)
        if session.state is State.IDLE:
            session.state = State.RUNNING
            self.prompt_next(session)

    def begin(self, session: HubSession) -> None:
        """Begin the first turn of a session whose worker is ready, if it has one."""
        if session.prompts:
            self.prompt_next(session)
        elif session.is_open:
            self._idle(session)
        elif session.creation.is_open:
            self._finish(session)  # it was released before it was told anything

    def _idle(self, session: HubSession) -> None:
        session.state = State.IDLE
        session.waits_for = "a prompt"
        outcome = session.outcome()
        self._tree.director.on_idle(session.id, session.prompted, outcome)

    def prompt_next(self, session: HubSession) -> None:
        """Begin a session's next turn, if it is told one."""
        if session.prompts:
            session.told = session.prompts.popleft()
            body = dumps(list(session.told))
            session.has_result = session.never_began = False
            session.prompted += 1
            session.begun += 1
            session.waits_for = "its worker"
            self._tree.progress += 1
            self._tree.say(session, messages.Prompt(session.sid), body)

    def released(self, session: HubSession) -> None:
        """Let a session end once it has done what it was told."""
        session.is_open = False
        if session.state is State.IDLE:
            self._finish(session)

    def result(self, session: HubSession, message: Result) -> None:
        """Go on to what follows once everything the worker said is durable."""
        session.require("a result", State.RUNNING)
        if session.has_result:
            raise WireError("a second result")
        session.has_result = True
        session.cancelling = session.climb = None  # if it came too late for the turn
        session.waits_for = "its last events to be durable"
        session.when_asked(message.length, lambda: self._go_on(session, message))

    def _go_on(self, session: HubSession, message: Result) -> None:
        if session.state is not State.RUNNING:
            return
        if message.length != len(session.log):
            raise WireError(
                f"a result after {message.length} events, "
                f"the log has {len(session.log)}"
            )
        if session.log.turns.turn is not None:
            raise WireError(f"a result with turn {session.log.turns.turn} open")
        if session.prompts:
            self.prompt_next(session)
        elif session.is_open:
            self._idle(session)
        else:
            self._finish(session)

    def _finish(self, session: HubSession) -> None:
        session.state = State.FINISHING
        session.waits_for = "its worker to say goodbye"
        self._tree.say(session, Close(session.sid))
