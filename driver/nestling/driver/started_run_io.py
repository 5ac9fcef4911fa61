"""A run that was started: what comes of it, in the event loop of the caller."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple

import anyio

from nestling.driver.caller_loop_io import CallerLoop
from nestling.driver.director import Prompt, Settlement
from nestling.driver.exits import Log
from nestling.driver.hub_io import RunEnd
from nestling.driver.hub_thread_io import HubThread
from nestling.driver.instructions import (
    CancelCall,
    CancelTurn,
    Prompted,
    Released,
    Stopped,
)
from nestling.driver.live_director import Grown
from nestling.driver.stated_cancels import CancelPoint, StatedCancels
from nestling.session.errors import JsonDomainError, NestlingError
from nestling.session.event import Event
from nestling.session.jsontext import JsonObject, check, copied
from nestling.session.outcome import Outcome, last_turn, outcome
from nestling.session.spawn_path import ROOT
from nestling.wire.codec import size_problem


class RunResult(NamedTuple):
    """What the root of a run has come to.

    Attributes:
        stop_reason: ``completed, aborted, error, max-tokens`` or ``refusal``.
        output: content blocks of the last message of its last turn.
        text: the text of the output.
        diagnostic: why its turn failed, or how its process ended, if one of them did.
    """

    stop_reason: str
    output: list[JsonObject]
    text: str
    diagnostic: str | None


def prompt_blocks(prompt: object) -> Prompt:
    """Return a prompt, a text or content blocks, as content blocks.

    Raises:
        JsonDomainError: if it is neither.
    """
    if isinstance(prompt, str):
        prompt = [{"type": "text", "text": str.__str__(prompt)}]
    if not isinstance(prompt, list | tuple) or not prompt:
        raise _no_prompt(prompt)
    blocks = list(prompt)
    check(blocks)
    for block in blocks:
        kind = block.get("type") if type(block) is dict else None
        has_text = kind != "text" or type(block.get("text")) is str
        if type(kind) is not str or not has_text:
            raise _no_prompt(block)
    problem = size_problem(blocks)
    if problem is not None:
        raise JsonDomainError(f"the prompt is {problem}")
    copy: list[JsonObject] = copied(blocks)
    return copy


def _no_prompt(found: object) -> JsonDomainError:
    return JsonDomainError(
        "a prompt is a text or a list of content blocks, each an object with a type, "
        f"found {found!r}"
    )


def _is_interrupted(own: Sequence[Event]) -> bool:
    ends = [event for event in own if event.type == "turn/end"]
    return bool(ends) and ends[-1].data["reason"]["kind"] == "interrupted"


class StartedRun:
    """One tree of sessions; made by ``Driver.start`` or ``Driver.resume``.

    Attributes:
        session_id: the id of its root.
        losses: the spawn paths of the sessions that did not end by themselves, and why.
    """

    thread: HubThread

    def __init__(
        self,
        session_id: str,
        asked: int,
        caller: CallerLoop,
        cancels: StatedCancels | None = None,
    ) -> None:
        self.session_id = session_id
        self._cancels = StatedCancels(()) if cancels is None else cancels
        self.losses: list[tuple[str, str]] = []
        self._caller = caller
        self._asked: float = asked
        self._done: float = 0
        self._result: RunResult | None = None
        self._events: list[Grown] = []
        self._read = 0
        self._changed = anyio.Event()
        self._over = anyio.Event()
        self._thread_over = anyio.Event()
        self._is_pending = self._is_closing = False
        self._end: RunEnd | None = None
        self._error: BaseException | None = None

    def resumes(self, own: Sequence[Event]) -> None:
        """Start with what a stored session has come to.

        Args:
            own: the events that it did not inherit.
        """
        came_to = outcome(last_turn(own))
        was_cut = came_to.stop_reason == "error" and _is_interrupted(own)
        why = "its last turn was interrupted" if was_cut else None
        self._result = RunResult(*came_to, came_to.text, why)

    # --- for the user ------------------------------------------------------------

    async def result(self) -> RunResult:
        """Wait until the root has done all it was told; return what it came to.

        A run that fails has a result that says so. What is raised is only that there
        is no run: no place for its directory, no thread.

        Raises:
            NestlingError: if the run could not be carried out at all.
        """
        while self._done < self._asked:
            await self._change()
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise NestlingError("the run has ended without a result")
        return self._result

    async def send(self, prompt: str | Prompt) -> None:
        """Tell the root something more; its turn begins when the last one has ended.

        Raises:
            NestlingError: if the run has ended, or is being closed.
            JsonDomainError: if the prompt is no JSON.
        """
        if self.is_done:
            raise NestlingError(f"the run {self.session_id} has ended")
        said = prompt_blocks(prompt)
        self._asked += 1
        self.thread.tell(Prompted(said))

    async def events(self) -> AsyncIterator[Grown]:
        """Yield what the logs of the tree grow by, until all that was told is done.

        Each event is yielded once: a second call goes on where the first one stopped.
        """
        while True:
            # Looked up first: an event that comes between the two is seen here.
            is_done = self._done >= self._asked
            if self._read < len(self._events):
                self._read += 1
                yield self._events[self._read - 1]
            elif is_done:
                return
            else:
                await self._change()

    async def cancel(self, path: str = ROOT, cause: str = "user") -> bool:
        """Cancel the turn of a session, and of all sessions below it.

        Their logs are closed as ``aborted``: by `cause` at the session itself, by
        ``parent`` below it. A parent above it is told what it came to. Who does not stop
        is ended, within twelve seconds. A second time changes nothing.

        Args:
            path: the session's spawn path.
            cause: who cancels it, for the log.

        Returns:
            Whether there was something to cancel; it has been told then, and ``result``
            comes when it has stopped.

        Raises:
            NestlingError: if there is no session at that path.
        """
        reason: JsonObject = {"kind": cause}
        check(reason)
        return await self._acknowledged(
            path, lambda ack: self.thread.tell(CancelTurn(path, reason, ack))
        )

    async def cancel_call(self, path: str = ROOT) -> bool:
        """Cancel the open model call of a session; its turn goes on.

        The call fails with the code ``CANCELLED``: an agent's own loop gets a
        ``ModelCallError``, the built-in one ends the turn.

        Args:
            path: the session's spawn path.

        Returns:
            Whether a provider was answering one.

        Raises:
            NestlingError: if there is no session at that path.
        """
        return await self._acknowledged(
            path, lambda ack: self.thread.tell(CancelCall(path, ack))
        )

    async def _acknowledged(
        self, path: str, tell: Callable[[Callable[[bool | None], None]], None]
    ) -> bool:
        answers: list[bool | None] = []

        def ack(answer: bool | None) -> None:
            answers.append(answer)
            self._wake()

        tell(ack)
        while not answers and not self._over.is_set():
            await self._change()
        if answers and answers[0] is None:
            raise NestlingError(f"the run {self.session_id} has no session at {path!r}")
        return bool(answers and answers[0])

    async def stop(self, cause: str = "user") -> Mapping[str, Log]:
        """Cancel all that the run does, let it end, and return its logs (see ``logs``).

        Args:
            cause: who stops it, for the log.
        """
        self._is_closing = True
        self.thread.tell(Stopped({"kind": cause}))
        await self.ended()
        return self.logs

    async def close(self) -> Mapping[str, Log]:
        """Let the run end, and return what its sessions have left (see ``logs``)."""
        self._is_closing = True
        self.thread.tell(Released())
        await self.ended()
        return self.logs

    @property
    def logs(self) -> Mapping[str, Log]:
        """The header and events of every session, by spawn path, once it has ended.

        Raises:
            NestlingError: before.
        """
        return self._ended_run().logs

    @property
    def unreached(self) -> Sequence[CancelPoint]:
        """The places where a turn was to be cancelled and that it did not come to."""
        return self._cancels.unreached

    @property
    def printed(self) -> Mapping[str, str]:
        """What each worker printed, tracebacks too, by spawn path; the last 64 KiB.

        Raises:
            NestlingError: before the run has ended.
        """
        return self._ended_run().printed

    def _ended_run(self) -> RunEnd:
        if self._error is not None:
            raise self._error
        if self._end is None:
            raise NestlingError(
                f"the run {self.session_id} has not ended: await run.close() first"
            )
        return self._end

    @property
    def is_done(self) -> bool:
        """Whether nothing more can be told: the root has ended, or is being closed."""
        return self._done == math.inf or self._is_closing

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of the run's processes."""
        return self._over.is_set()

    @property
    def end(self) -> RunEnd | None:
        """How the run ended, once it has."""
        return self._end

    # --- for the hub, in its thread ----------------------------------------------

    def grown(self, grown: Grown) -> None:
        """Take in an event of the tree."""
        self._events.append(grown)
        self._wake()

    def idle(self, prompts: int, outcome: Outcome) -> None:
        """Take in what the root came to after so many prompts."""
        if prompts == 0:
            return  # it was resumed, and is what it was
        self._result = RunResult(*outcome, outcome.text, self._failure())
        self._done = prompts
        self._wake()

    def settled(self, path: str, settlement: Settlement) -> None:
        """Take in how a session ended."""
        why = settlement.death if settlement.diagnostic is not None else None
        if why is not None:
            self.losses.append((path, why))
        if path != ROOT:
            return
        outcome = settlement.outcome
        was_cut = self._done < self._asked or (self._asked == 0 and why is not None)
        if self._result is None or was_cut:
            self._result = RunResult(*outcome, outcome.text, why or self._failure())
        self._done = math.inf
        self._wake()

    def _failure(self) -> str | None:
        """Say why the root's last turn failed, if it did."""
        for grown in reversed(self._events):
            if grown.path == ROOT and grown.event.type == "turn/end":
                error = grown.event.data["reason"].get("error")
                if type(error) is not dict:
                    return None
                told = (error.get("code"), error.get("message"))
                return ": ".join(str(each) for each in told if each) or "it failed"
        return None

    def _wake(self) -> None:
        if self._is_pending:
            return
        self._is_pending = True
        self._caller.post(self._notice)

    # --- in the caller's loop ----------------------------------------------------

    def _notice(self) -> None:
        self._is_pending = False
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _change(self) -> None:
        # What the hub's thread has changed since the caller looked is told by a
        # notice that has not run yet: it sets this event.
        await self._changed.wait()

    async def watch(self) -> None:
        """Wait for the end of the hub's thread, and take in what it has left."""
        try:
            await self._thread_over.wait()
        finally:
            self._take_end()

    def thread_ended(self) -> None:
        """Take note that the hub's thread has nothing left to do."""
        self._thread_over.set()

    def _take_end(self) -> None:
        if self.thread.is_alive():  # the loop may be torn down, with every task in it
            self.thread.abort()
            self.thread.join()
        try:
            self._end = self.thread.result()
        except Exception as error:  # noqa: BLE001 - raised where the caller waits
            self._error = error
        self._done = math.inf
        self._over.set()
        self._notice()

    async def ended(self) -> None:
        """Wait until nothing is left of the run's processes."""
        await self._over.wait()

    def release_or_stop(self) -> None:
        """End the run, in order: what it still does is cancelled."""
        if self._done < self._asked:
            self.thread.tell(Stopped({"kind": "user"}))
        else:
            self.thread.tell(Released())
