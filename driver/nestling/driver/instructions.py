"""What happens to the hub, and what it wants done: the edge of the pure core.

Whoever does the I/O feeds events in and carries the instructions out, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from nestling.driver.director import Pace, Prompt
from nestling.driver.exits import Exit
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject
from nestling.session.request import Request
from nestling.wire.messages import ToHub, ToWorker

# --- events: what happened -----------------------------------------------------


class Received(NamedTuple):
    """A worker said something; `launch` is who the socket admitted it as."""

    launch: str
    message: ToHub
    body: bytes


class Broken(NamedTuple):
    """A worker sent frames that are no message."""

    launch: str
    problem: str


class Durable(NamedTuple):
    """The first `length` events of a session are on disk."""

    sid: int
    length: int


class NotDurable(NamedTuple):
    """A session's events could not be written."""

    sid: int
    problem: str


class Launched(NamedTuple):
    """A worker's process runs."""

    launch: str
    pid: int


class NotLaunched(NamedTuple):
    """A worker's process could not be started."""

    launch: str
    problem: str


class Exited(NamedTuple):
    """A worker's process ended, and everything it had said was received."""

    launch: str
    exit: Exit


class Provided(NamedTuple):
    """A provider has yielded the next chunks of a session's call."""

    sid: int
    call: int
    chunks: Sequence[JsonObject]


class ProviderEnded(NamedTuple):
    """A provider has yielded all of a session's call, or failed."""

    sid: int
    call: int
    failure: JsonObject | None


class Fed(NamedTuple):
    """So many chunks of a paced answer may be served; one more, and its end may.

    Attributes:
        gate: it is held there by a gate.
    """

    sid: int
    call: int
    released: int
    gate: bool = False


class Prompted(NamedTuple):
    """The user says something more to the root session."""

    prompt: Prompt


class Released(NamedTuple):
    """The user says nothing more to the root session: it ends when it is done."""


class CancelTurn(NamedTuple):
    """The turn of the session at `path` is to be cancelled, with all below it.

    Attributes:
        cause: why, as the log will hold it.
        ack: told whether there was something to cancel; None if there is no session.
    """

    path: str
    cause: JsonObject
    ack: Callable[[bool | None], None]


class CancelCall(NamedTuple):
    """The open model call of the session at `path` is to fail; its turn goes on."""

    path: str
    ack: Callable[[bool | None], None]


class Stopped(NamedTuple):
    """The run is to end in order: what it does is cancelled, and nothing more comes."""

    cause: JsonObject


class Tick(NamedTuple):
    """Time passed."""


class Abort(NamedTuple):
    """The run is to end now, for `reason`."""

    reason: str


HubEvent: TypeAlias = (
    Received
    | Broken
    | Durable
    | NotDurable
    | Launched
    | NotLaunched
    | Exited
    | Provided
    | ProviderEnded
    | Fed
    | Prompted
    | Released
    | CancelTurn
    | CancelCall
    | Stopped
    | Tick
    | Abort
)

# --- instructions: what is to be done ------------------------------------------


class Launch(NamedTuple):
    """Start a worker process that will be admitted as `launch`, to run `agent`."""

    launch: str
    path: str
    agent: str


class Send(NamedTuple):
    """Say something to a worker that has said hello."""

    launch: str
    message: ToWorker
    body: bytes


class Persist(NamedTuple):
    """Make a session's next events durable, after its header if one is given.

    Without a header and events it names a session that is stored up to `length`.
    """

    sid: int
    session_id: str
    header: Header | None
    events: tuple[Event, ...]
    length: int


class Flush(NamedTuple):
    """Make a session's events durable now: something waits for them."""

    sid: int


class Release(NamedTuple):
    """Nothing more comes of a session."""

    sid: int


class Ask(NamedTuple):
    """Ask a provider for the answer to a session's call.

    Attributes:
        allowed: it may yield so many chunks before it is allowed more.
    """

    sid: int
    call: int
    provider: str
    request: Request
    allowed: int


class Allow(NamedTuple):
    """Let a provider yield `allowed` chunks in all."""

    sid: int
    call: int
    allowed: int


class Dismiss(NamedTuple):
    """Tell a provider that nobody waits for the rest of its answer."""

    sid: int
    call: int


class Feed(NamedTuple):
    """Say, in time, how much of a session's answer may be served.

    Attributes:
        length: how many chunks the answer has.
    """

    sid: int
    path: str
    call: int
    length: int
    pace: Pace


# Not tuples, of which two with the same launch would be equal.


class Kill(msgspec.Struct, frozen=True):
    """End a worker's process and its group now."""

    launch: str


class HangUp(msgspec.Struct, frozen=True):
    """End a worker's input: it is to end by itself, at once."""

    launch: str


class Terminate(msgspec.Struct, frozen=True):
    """Ask a worker's process and its group to end (SIGTERM)."""

    launch: str


class Abandon(msgspec.Struct, frozen=True):
    """Wait no longer for a worker's process, which cannot be ended."""

    launch: str


class Dump(msgspec.Struct, frozen=True):
    """Have a worker write into its log where its threads are."""

    launch: str


class Done(NamedTuple):
    """Every session has ended and every process is gone."""


class Notice(NamedTuple):
    """Something a person who watches wants to see."""

    path: str
    text: str


Instruction: TypeAlias = (
    Launch
    | Send
    | Persist
    | Flush
    | Release
    | Ask
    | Allow
    | Dismiss
    | Feed
    | HangUp
    | Terminate
    | Kill
    | Abandon
    | Dump
    | Done
    | Notice
)
