"""The errors of Nestling: one class for each cause a caller can act on.

The docstring of a class is its default message. A message that knows more names
the file, line, session or call, what was found and what was expected.
"""

from __future__ import annotations


class NestlingError(Exception):
    """Nestling could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        text = message if message is not None else self.default_message()
        # Ids and types may hold lone surrogates, which no terminal can be sent.
        super().__init__(text.encode("utf-8", "backslashreplace").decode("utf-8"))

    @classmethod
    def default_message(cls) -> str:
        """Return the first line of the class's docstring, which is its message."""
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0]


class JsonDomainError(NestlingError):
    """A value lies outside the JSON domain that a session log can hold."""


class UnreadableError(NestlingError):
    """A recording cannot be read faithfully."""


class AppendError(NestlingError):
    """An event breaks a rule of the log it was to be appended to."""


class SeedError(NestlingError):
    """The events a session was to start with are not a valid seed."""


class StoreError(NestlingError):
    """A session's log could not be made durable."""


class WireError(NestlingError):
    """A peer sent something that the protocol does not allow."""


class LaunchError(NestlingError):
    """A worker process could not be started."""


class LoopError(NestlingError):
    """The agent loop was asked for a step that cannot follow the last one."""


class ToolArgumentError(NestlingError):
    """A tool was called with arguments that it cannot take."""
