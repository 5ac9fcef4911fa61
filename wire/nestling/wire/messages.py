"""What the hub and its workers say to each other: one class for each kind.

A message is a flat, tagged array: its kind, then its fields in the order below.
Nothing here is bulky; text, events and chunks travel in the body frames behind
the header (see `nestling.wire.codec`), as bytes that were encoded once.

Rules for whoever edits this file:

- A session is named by `sid`, a small number that the hub gives out. The hub takes
  a `sid` only from the user it gave it to.
- Fields are positional: adding, removing or moving one changes `PROTOCOL`.
- Every field is bounded, so that a header stays small whatever a peer sends.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

#: The version that `hello` and `welcome` carry. There is no negotiation.
PROTOCOL = 2

#: The body of a `tool-result` that says: run it.
RUN_TOOL = b"null"

# The largest integer that JSON readers, SQLite and msgspec all hold exactly.
_MAX_INT = 2**53 - 1

Natural: TypeAlias = Annotated[int, Meta(ge=0, le=_MAX_INT)]
Name: TypeAlias = Annotated[str, Meta(max_length=256)]
AgentRef: TypeAlias = Annotated[str, Meta(max_length=1024)]
Sha256: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]

Purpose: TypeAlias = Literal["turn", "summary"]
Context: TypeAlias = Literal["fork", "spawn"]
ByeReason: TypeAlias = Literal["done", "seed-refused", "loop-refused", "failed"]


class Message(
    msgspec.Struct,
    frozen=True,
    array_like=True,
    forbid_unknown_fields=True,
    gc=False,
):
    """What all messages have in common: they are flat, frozen and positional."""


# --- worker to hub -------------------------------------------------------------


class Hello(Message, frozen=True, tag="hello"):
    """The first message of a worker; `build` is its version of Nestling."""

    protocol: Natural
    build: Name
    pid: Natural


class Ready(Message, frozen=True, tag="ready"):
    """The session took its seed of `events` events and starts."""

    sid: Natural
    events: Natural


class Events(Message, frozen=True, tag="events"):
    """Own events `first` to `first + count - 1`. Body: a JSON array of them."""

    sid: Natural
    first: Natural
    count: Natural


class Stream(Message, frozen=True, tag="stream"):
    """Open call number `call` of a model.

    `digest` is the SHA-256 of the request, `length` the number of events in the
    log that it was made from; the credits are the window of the answer, in bytes
    and in frames.
    """

    sid: Natural
    call: Natural
    purpose: Purpose
    provider: Name
    model: Name
    turn: Natural
    step: Natural
    digest: Sha256
    length: Natural
    credit_bytes: Natural
    credit_frames: Natural


class Credit(Message, frozen=True, tag="credit"):
    """Widen the window of `call` by so many bytes and frames."""

    sid: Natural
    call: Natural
    bytes: Natural
    frames: Natural


class Delegate(Message, frozen=True, tag="delegate"):
    """Ask for a child session. Body: the JSON of the delegation: an object with
    `callId`, `prompt`, `description`, and maybe `agent` and `options`.

    `block` is the delegating tool call's place in the message, None outside a
    tool; `n` counts delegations of one place; `key` is the agent's own name.
    """

    sid: Natural
    turn: Natural
    step: Natural
    block: Natural | None
    n: Natural
    key: Name | None
    context: Context
    length: Natural


class Tool(Message, frozen=True, tag="tool"):
    """Ask whether the tool call at `block` is to be run. Body: its JSON."""

    sid: Natural
    turn: Natural
    step: Natural
    block: Natural
    length: Natural


class Result(Message, frozen=True, tag="result"):
    """The session has done what it was asked; its log is `length` events long.

    Said once by a tape, and after each prompt's turn by an agent.
    """

    sid: Natural
    length: Natural


class Beat(Message, frozen=True, tag="beat"):
    """The worker's loop turns, and was late by `lag_ms` milliseconds at worst."""

    sid: Natural
    lag_ms: Natural


class Bye(Message, frozen=True, tag="bye"):
    """The session ends and says nothing more. Body: UTF-8 detail, may be empty."""

    sid: Natural
    reason: ByeReason


# --- hub to worker -------------------------------------------------------------


class Welcome(Message, frozen=True, tag="welcome"):
    """The answer to `hello`; before it the hub sends nothing else."""

    protocol: Natural


class Create(Message, frozen=True, tag="create"):
    """Start a session. Body: header JSON, seed JSONL and brief JSON, end to end.

    The brief is what the agent is told, and only the agent reads it: for a tape
    agent it is the tape.

    `events` and `sha256` are the number of events and the hash of the seed as it
    stands in the body; the sizes are in bytes (`codec.create_parts` cuts by them).
    `calls` were opened by the workers that the session had before; this one counts on.
    """

    sid: Natural
    agent: AgentRef
    events: Natural
    sha256: Sha256
    header_size: Natural
    seed_size: Natural
    brief_size: Natural
    calls: Natural = 0


class Ack(Message, frozen=True, tag="ack"):
    """Every event with a number below `length` is durable."""

    sid: Natural
    length: Natural


class Nack(Message, frozen=True, tag="nack"):
    """Events are missing: send again from number `expected`."""

    sid: Natural
    expected: Natural


class Chunks(Message, frozen=True, tag="chunks"):
    """Chunks `first` to `first + count - 1` of `call`. Body: a JSON array."""

    sid: Natural
    call: Natural
    first: Natural
    count: Natural


class End(Message, frozen=True, tag="end"):
    """The answer to `call` is complete with `chunks` chunks."""

    sid: Natural
    call: Natural
    chunks: Natural


class Fail(Message, frozen=True, tag="fail"):
    """The answer to `call` broke off after `chunks` chunks. Body: JSON error."""

    sid: Natural
    call: Natural
    chunks: Natural


class Settled(Message, frozen=True, tag="settled"):
    """The delegation of that place is settled. Body: the JSON of its outcome."""

    sid: Natural
    turn: Natural
    step: Natural
    block: Natural | None
    n: Natural
    key: Name | None


class ToolResult(Message, frozen=True, tag="tool-result"):
    """The answer to `tool`. Body: its result in JSON, or `RUN_TOOL`."""

    sid: Natural
    turn: Natural
    step: Natural
    block: Natural


class Prompt(Message, frozen=True, tag="prompt"):
    """Begin a turn. Body: the JSON of what the user says, a list of blocks."""

    sid: Natural


class Cancel(Message, frozen=True, tag="cancel"):
    """Stop `call`, or all if None, after chunk `after`. Body: the cause in JSON."""

    sid: Natural
    call: Natural | None
    after: Natural | None


class Close(Message, frozen=True, tag="close"):
    """The session is over for the hub; the worker may leave."""

    sid: Natural


ToHub: TypeAlias = (
    Hello | Ready | Events | Stream | Credit | Delegate | Tool | Result | Beat | Bye
)
ToWorker: TypeAlias = (
    Welcome
    | Create
    | Ack
    | Nack
    | Chunks
    | End
    | Fail
    | Settled
    | ToolResult
    | Prompt
    | Cancel
    | Close
)
