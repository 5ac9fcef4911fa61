"""The request that a log leads to: what a model is sent, rebuilt from the log alone.

Model-visible means logged. The last request header says which model, which system
prompt and which tools; the surface says which messages, in which order. The log keeps
every message where it came, but a provider refuses a conversation in which something
stands between tool calls and their results. So a request differs from the surface:

- A message without content is left out.
- A message that landed between an assistant's tool calls and the last of their results
  stands after that result.
- A result that answers no call of the message before it is left out (its call was lost
  or compacted away).

All of it is a pure function of the log, so it is the same on replay.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from nestling.session.event import Event
from nestling.session.jsontext import Json, JsonObject, copied
from nestling.session.log import SessionLog
from nestling.session.surface import Surface


class Request(NamedTuple):
    """What one call sends to a model; the receiver may change it, it is a copy.

    Attributes:
        provider: who is asked; empty where the log has no request header.
        model: which of its models; empty likewise.
        config: the model options, ``provider`` and ``model`` included.
        system: the system prompt; None if there is none.
        tools: the tools' declarations, a list of ``{name, description, parameters}``;
            None if there are none. A recording may hold a token in its place.
        messages: oldest first, each with at least ``role`` and ``content``.
    """

    provider: str
    model: str
    config: JsonObject
    system: Json
    tools: Json
    messages: list[JsonObject]


Provider: TypeAlias = Callable[[Request], AsyncIterator[JsonObject]]
"""What answers requests: yields stream chunks (see ``nestling.session.chunk``), and
raises ``ProviderError`` if the stream fails."""


def rebuild_request(log: SessionLog) -> Request:
    """Rebuild the request that a call made now would send."""
    return _request(log.events, log.surface.nodes)


def request_of(events: Sequence[Event]) -> Request:
    """Rebuild the request that a log which holds only these events leads to.

    Raises:
        AppendError: if one of them replaces what is not on the surface.
    """
    surface = Surface()
    for event in events:
        surface.append(event)
    return _request(events, surface.nodes)


def _request(events: Sequence[Event], nodes: Sequence[int]) -> Request:
    # Providers rewrite messages to the shape that their API wants; the log must not
    # change with them.
    header: JsonObject = copied(_last_header(events))
    config: JsonObject = header.get("config", {})
    surface = [events[seq] for seq in nodes]
    return Request(
        config.get("provider", ""),
        config.get("model", ""),
        config,
        header.get("system"),
        header.get("tools"),
        [copied(message) for message in _ordered(surface)],
    )


def _last_header(events: Sequence[Event]) -> Json:
    for event in reversed(events):
        if event.type == "request/header":
            return event.data["header"]
    return {}


def _message(event: Event) -> Json:
    return event.data if event.type == "user/message" else event.data["message"]


def _ordered(surface: Iterable[Event]) -> list[JsonObject]:
    """Return the messages of a surface, by the rules of the module's docstring."""
    ordered: list[JsonObject] = []
    held: list[JsonObject] = []
    waiting: list[str] = []  # a list: one message may use a call id twice
    for event in surface:
        message = _message(event)
        if not message["content"]:
            continue
        if event.type == "tool/result":
            call_id = message["source"]["callId"]
            if call_id not in waiting:
                continue
            waiting.remove(call_id)
            ordered.append(message)
        elif event.type == "assistant/message":
            ordered += [*held, message]
            held, waiting = [], _called(message)
        else:
            held.append(message)
        if not waiting:
            ordered += held
            held = []
    return ordered + held


def _called(message: JsonObject) -> list[str]:
    return [b["id"] for b in message["content"] if b["type"] == "tool-call"]
