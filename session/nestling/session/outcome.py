"""What a session came to: its stop reason and its output, told from its own events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nestling.session.event import Event
from nestling.session.fold import joined
from nestling.session.jsontext import JsonObject

_STOP_REASONS = {
    "completed": "completed",
    "max-tokens": "max-tokens",
    "aborted": "aborted",
    "blocked": "refusal",
}


class Outcome(NamedTuple):
    """The result of a session.

    Attributes:
        stop_reason: ``completed, aborted, error, max-tokens`` or ``refusal``.
        output: content blocks of the last non-empty own message that a model wrote;
            else the session's own text so far; else nothing.
    """

    stop_reason: str
    output: list[JsonObject]

    @property
    def text(self) -> str:
        """The text blocks of the output, joined."""
        return "".join(block["text"] for block in self.output if _is_text(block))


def outcome(own: Sequence[Event]) -> Outcome:
    """Return the outcome of a session, given the events it did not inherit."""
    return Outcome(_stop_reason(own), _output(own))


def last_turn(own: Sequence[Event]) -> Sequence[Event]:
    """Return the events of a session's last turn, which may be open."""
    for position in range(len(own) - 1, -1, -1):
        if own[position].type == "turn/start":
            return own[position:]
    return own


def is_models(event: Event) -> bool:
    """Tell whether an assistant message is a model's, and no stand-in for one.

    Some writers close a dead session with a message of their own making: of another
    source than a model, or marked synthetic and with no tokens used. Nobody said it.
    Messages older than sources, which name none, are a model's.
    """
    message: JsonObject = event.data.get("message", event.data)
    source = message.get("source")
    kind = source.get("kind", "model") if type(source) is dict else "model"
    return kind == "model" and not _is_synthetic(event.data)


def _is_synthetic(data: JsonObject) -> bool:
    if data.get("synthetic") is not True:
        return False
    usage = data.get("usage")
    used = usage if type(usage) is dict else {}
    return not any(used.get(key) for key in ("inputTokens", "outputTokens"))


def _is_text(block: JsonObject) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)


def _stop_reason(own: Sequence[Event]) -> str:
    for event in reversed(own):
        if event.type == "turn/end":
            return _STOP_REASONS.get(event.data["reason"]["kind"], "error")
        if event.type == "turn/start":
            break
    return "error"


def _output(own: Sequence[Event]) -> list[JsonObject]:
    for event in reversed(own):
        if event.type != "assistant/message" or not is_models(event):
            continue
        content: list[JsonObject] = event.data["message"]["content"]
        if content:
            return content
    text = joined("".join(_deltas(own)))
    return [{"type": "text", "text": text}] if text else []


def _deltas(own: Iterable[Event]) -> Iterable[str]:
    for event in own:
        if event.type == "assistant/chunk":
            chunk = event.data["chunk"]
            if chunk["type"] == "text-delta":
                yield chunk["text"]
