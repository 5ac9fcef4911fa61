"""Model providers at work: plain async generators, run in the event loop of the user.

A provider yields chunks; the hub takes them in its own thread. It may be ahead of what
the worker has room for by so many chunks as the hub allows, then it waits.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import anyio

from nestling.driver.caller_loop_io import CallerLoop
from nestling.driver.instructions import (
    Allow,
    Ask,
    Dismiss,
    HubEvent,
    Provided,
    ProviderEnded,
)
from nestling.session.errors import JsonDomainError, ProviderError, described
from nestling.session.jsontext import JsonObject, check, copied
from nestling.session.request import Provider
from nestling.session.tracebacks_io import print_traceback

PROVIDER_ERROR: Final = "PROVIDER_ERROR"
"""The code of a call whose provider raised something else than ``ProviderError``."""

NO_PROVIDER: Final = "NO_PROVIDER"
"""The code of a call that nobody is there to answer."""

Tell: TypeAlias = Callable[[HubEvent], None]
_Call: TypeAlias = tuple[int, int]


class Providers:
    """The providers of one run; used by the hub's thread, run in the user's loop."""

    def __init__(self, providers: Mapping[str, Provider], caller: CallerLoop) -> None:
        """Prepare to ask.

        Args:
            providers: by the name under which agents ask for them; the one named ``*``
                answers for every name that has none of its own.
            caller: the user's loop.
        """
        self._providers = providers
        self._caller = caller
        self._open: dict[_Call, _Answering] = {}

    def handle(self, instruction: Ask | Allow | Dismiss, tell: Tell) -> None:
        """Carry out what the hub orders.

        Args:
            instruction: what.
            tell: takes in what comes of it; called in the user's loop.
        """
        key = (instruction.sid, instruction.call)
        match instruction:
            case Ask():
                self._ask(instruction, tell)
            case Allow():
                if key in self._open:
                    self._open[key].allow(instruction.allowed)
            case Dismiss():
                if key in self._open:
                    self._open.pop(key).dismiss()

    def _ask(self, ask: Ask, tell: Tell) -> None:
        # A session has one open call, so that what it had before is over.
        for key in [key for key in self._open if key[0] == ask.sid]:
            del self._open[key]
        provider = self._providers.get(ask.provider, self._providers.get("*"))
        if provider is None:
            known = ", ".join(sorted(self._providers)) or "none"
            text = f"no provider is named {ask.provider!r}, there are: {known}"
            failure = dict(ProviderError(text, NO_PROVIDER).failure())
            tell(ProviderEnded(ask.sid, ask.call, failure))
            return
        self._open[ask.sid, ask.call] = _Answering(provider, ask, tell, self._caller)

    def close(self) -> None:
        """Dismiss every provider that is still at work."""
        while self._open:
            self._open.popitem()[1].dismiss()


class _Answering:
    """One provider that answers one call."""

    def __init__(
        self, provider: Provider, ask: Ask, tell: Tell, caller: CallerLoop
    ) -> None:
        self._provider = provider
        self._ask = ask
        self._tell = tell
        self._caller = caller
        self._allowed = ask.allowed
        caller.post(self._start)

    # --- in the hub's thread -----------------------------------------------------

    def allow(self, allowed: int) -> None:
        """Let it yield so many chunks in all."""
        self._caller.post(lambda: self._widen(allowed))

    def dismiss(self) -> None:
        """Cancel it."""
        self._caller.post(lambda: self._scope.cancel())

    # --- in the user's loop ------------------------------------------------------

    def _start(self) -> None:
        self._more = anyio.Event()
        name = f"the provider {self._ask.provider!r}"
        self._scope = self._caller.start(self._run, name)

    def _widen(self, allowed: int) -> None:
        self._allowed = allowed
        self._more.set()

    async def _run(self) -> None:
        failure: JsonObject | None = None
        try:
            await self._answer()
        except ProviderError as error:
            failure = _told(error)
        except anyio.get_cancelled_exc_class() as error:
            if self._scope.cancel_called:
                raise
            # Something in the provider was cancelled, and it let that pass.
            failure = _raised(error)
        except KeyboardInterrupt as error:
            # Meant for the program, not for the provider that it met.
            self._tell(ProviderEnded(self._ask.sid, self._ask.call, _raised(error)))
            raise
        except BaseException as error:  # noqa: BLE001 - a provider is the user's code
            failure = _raised(error)
        self._tell(ProviderEnded(self._ask.sid, self._ask.call, failure))

    async def _answer(self) -> None:
        stream: Any = self._provider(self._ask.request)
        if not isinstance(stream, AsyncGenerator):
            if inspect.iscoroutine(stream):
                stream.close()  # or it would be said that nobody awaited it
            raise ProviderError(
                f"a provider must be an async generator function, {self._provider!r} "
                f"returned {stream!r}",
                PROVIDER_ERROR,
            )
        try:
            async with aclosing(stream):
                await self._pass_on(stream)
        except BaseExceptionGroup as group:
            # A task group around a `yield` wraps what closing the generator raises.
            if group.split(GeneratorExit)[1] is not None:
                raise

    async def _pass_on(self, stream: AsyncGenerator[Any, None]) -> None:
        yielded = 0
        async for chunk in stream:
            yielded += 1
            self._tell(Provided(self._ask.sid, self._ask.call, [_kept(chunk)]))
            if type(chunk) is dict and chunk.get("type") == "finish":
                return
            while yielded >= self._allowed:
                self._more = anyio.Event()
                await self._more.wait()


def _kept(chunk: Any) -> Any:
    """Return a chunk as it is now: its provider may change it for the next one."""
    try:
        check(chunk)
    except JsonDomainError:
        return chunk  # the hub says so, too
    return copied(chunk)


def _told(error: ProviderError) -> JsonObject:
    """Return a failure as the log can hold it."""
    failure: JsonObject = dict(error.failure())
    try:
        check(failure)
    except JsonDomainError as problem:
        text = f"the provider raised a ProviderError that no log can hold: {problem}"
        return dict(ProviderError(text, PROVIDER_ERROR).failure())
    return failure


def _raised(error: BaseException) -> JsonObject:
    print_traceback(error)
    text = f"the provider raised {described(error)}"
    return dict(ProviderError(text, PROVIDER_ERROR).failure())
