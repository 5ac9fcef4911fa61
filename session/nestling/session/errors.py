"""The errors of Nestling: one class for each cause a caller can act on.

The docstring of a class is its default message. A message that knows more names
the file, line, session or call, what was found and what was expected.
"""

from __future__ import annotations

from typing import Any, Final

LONGEST: Final = 2000
"""A message is cut in the middle beyond so many characters: it may quote anything."""


def described(error: BaseException) -> str:
    """Return an exception's class and message; some cannot say theirs."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001 - a message is the user's code
        return name


class NestlingError(Exception):
    """Nestling could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        text = message if message is not None else self.default_message()
        # Ids and types may hold lone surrogates, which no terminal can be sent.
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        if len(text) > LONGEST:
            text = f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
        super().__init__(text)

    @classmethod
    def default_message(cls) -> str:
        """Return the first line of the class's docstring, which is its message."""
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0]


class JsonDomainError(NestlingError):
    """A value lies outside the JSON domain that a session log can hold."""


class UnreadableError(NestlingError):
    """A recording cannot be read faithfully."""


class VersionError(UnreadableError):
    """A session was written in a version of the format that this build cannot read."""


class AppendError(NestlingError):
    """An event breaks a rule of the log it was to be appended to."""


class SeedError(NestlingError):
    """The events a session was to start with are not a valid seed."""


class StoreError(NestlingError):
    """A session's log could not be made durable."""


class LeaseError(StoreError):
    """Another process, or another store object, is writing this session."""


class SessionNotFoundError(StoreError):
    """A store holds no session of that id."""


class SessionExistsError(StoreError):
    """A store holds a session of that id already."""


class CorruptError(StoreError):
    """A stored session is damaged where a crash cannot have damaged it."""


class UnsupportedError(StoreError):
    """A store, or a session in it, was written by what this build cannot read."""


class WireError(NestlingError):
    """A peer sent something that the protocol does not allow."""


class LaunchError(NestlingError):
    """A worker process could not be started."""


class NetworkBlockedError(NestlingError):
    """The network is blocked here."""


class LoopError(NestlingError):
    """The agent loop was asked for a step that cannot follow the last one."""


class ToolArgumentError(NestlingError):
    """A tool was called with arguments that it cannot take."""


class ToolSignatureError(NestlingError):
    """A function cannot be made a tool that a model is shown."""


class AgentReferenceError(NestlingError):
    """An agent reference does not lead to an agent that a worker can load."""


class AgentError(NestlingError):
    """An agent's code asked for something that cannot follow."""


class ModelCallError(NestlingError):
    """A model call failed and is not tried again."""

    def __init__(self, failure: dict[str, Any] | None = None) -> None:
        """Make the error that ``Turn.stream`` raises.

        Args:
            failure: as the log holds it, with ``message`` and ``code``.
        """
        self.failure = {} if failure is None else failure
        told = f"{self.failure.get('code')}: {self.failure.get('message')}"
        super().__init__(told if self.failure else None)


class ScriptedModelError(NestlingError):
    """A scripted model was told to answer in a way that it cannot play."""


class ProviderError(NestlingError):
    """A model provider could not answer a call."""

    def __init__(
        self,
        message: str | None = None,
        code: str = "UNKNOWN",
        retry_after_ms: int | None = None,
    ) -> None:
        """Make the error that a provider raises when its stream fails.

        Args:
            message: one sentence; the class's own by default.
            code: the failure's code in the log, by which a retry policy decides:
                ``RATE_LIMIT``, ``SERVER``, ``TIMEOUT``, ``TRANSPORT`` and so on.
            retry_after_ms: how long the provider asks to be left alone, milliseconds.
        """
        super().__init__(message)
        self.code = code
        self.retry_after_ms = retry_after_ms

    def failure(self) -> dict[str, str | int]:
        """Return the failure as a finish chunk of the log holds it."""
        failure: dict[str, str | int] = {"message": str(self), "code": self.code}
        if self.retry_after_ms is not None:
            failure["providerRetryAfterMs"] = self.retry_after_ms
        return failure
