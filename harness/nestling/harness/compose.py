"""Composed recordings: agent trees written by hand, for tests.

A ``Composer`` plays the agent loop of one session: each of its methods appends what
the loop would log there, in the format's order, to a real ``SessionLog``, which
checks every rule. A clock that ticks and counted ids make two runs equal byte for
byte::

    root = Composer("root", 1_700_000_000_000)
    root.turn("Ask someone.")
    (call,) = root.says(spawn_call("ask", "Say yes."))
    child = root.spawn(call)
    child.turn()
    child.says(text("yes"))
    child.end()
    root.returns(child)
    root.step()
    root.says(text("They say yes."))
    root.end()
    files = Tree(root).files()

What a session logs of its own accord besides (inbox, titles, hooks) goes in by
``add``, at the place where it is to stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from nestling.harness.compose_lineage import Parentage, parentage
from nestling.harness.compose_rows import Call, Clock, Route
from nestling.harness.compose_stream import (
    fork_call,
    reasoning,
    spawn_call,
    text,
    tool_call,
)
from nestling.harness.compose_turns import SessionTurns
from nestling.session.delegation import delegation_result
from nestling.session.errors import AppendError
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.log import END_SEED
from nestling.session.outcome import outcome
from nestling.session.spawn_path import ROOT, sort_key
from nestling.session.writing import encode_header, encode_projected, encode_rows

__all__ = [
    "Call",
    "Clock",
    "Composed",
    "Composer",
    "Tree",
    "fork_call",
    "reasoning",
    "spawn_call",
    "text",
    "tool_call",
]

SYSTEM: Final = "You are a helpful agent."


class Composer(SessionTurns):
    """One session while it is composed (see ``SessionTurns`` for turns and calls).

    Attributes:
        parent: what it has from its parent; None for a root.
        children: the sessions it delegated to, in order.
    """

    def __init__(
        self,
        session_id: str,
        created_at: int,
        *,
        provider: str = "scripted",
        model: str = "scripted-1",
        system: str = SYSTEM,
        clock: Clock | None = None,
        parent: Parentage | None = None,
    ) -> None:
        """Start a root session; ``spawn`` and ``fork`` start the others.

        Args:
            session_id: its id, the prefix of every id it gives.
            created_at: epoch milliseconds.
            provider: the provider in requests and messages.
            model: the model in requests and messages.
            system: the system prompt.
            clock: where times come from; by default one that starts at `created_at`
                and advances by 10 ms an event.
            parent: what a delegated session has from its parent.
        """
        fields = {"delegationDepth": 0} if parent is None else parent.header_fields()
        super().__init__(
            Header(session_id, created_at, fields),
            () if parent is None else parent.seed,
            Route(provider, model, system),
            Clock(created_at) if clock is None else clock,
        )
        self.parent = parent
        self.children: list[Composer] = []
        if self.log.events:
            self.log.add(END_SEED, self.clock.tick())

    @property
    def path(self) -> str:
        """The session's spawn path."""
        return ROOT if self.parent is None else self.parent.path

    def begin(self) -> None:
        """Start a turn without a step; a child's first one says what it is.

        Raises:
            AppendError: if a turn is open.
        """
        is_first = not any(event.type == "turn/start" for event in self.own)
        super().begin()
        if is_first and self.parent is not None:
            self.add("subagent/descriptor", self.parent.descriptor())

    def turn(self, prompt: str | None = None) -> None:
        """Start a turn and its first step.

        Args:
            prompt: the user's message; by default the prompt that a child was
                delegated with, and for a root no message.
        """
        if prompt is None and self.parent is not None:
            prompt = self.parent.prompt
        self.begin()
        self.step(*([] if prompt is None else [prompt]))

    # --- delegation ------------------------------------------------------------

    def spawn(self, call: Call, session_id: str | None = None) -> Composer:
        """Return the child that a call delegates to, with no inherited events.

        Args:
            call: the delegating call; a second child of one call is a further one.
            session_id: the child's id; by default this one's and a count.

        Raises:
            ToolArgumentError: if the call's arguments are no delegation's.
        """
        return self._delegate(call, "spawn", session_id)

    def fork(self, call: Call, session_id: str | None = None) -> Composer:
        """Return the child that a call delegates to, with the completed turns.

        In the first turn there are none: the child is fresh, but still a fork by its
        ``spawnedBy`` (see ``spawn`` for the arguments).
        """
        return self._delegate(call, "fork", session_id)

    def returns(self, child: Composer) -> None:
        """Append the result of the call that delegated to `child`, which has ended.

        Raises:
            AppendError: if this is no child of the session, or its turn is open.
        """
        if child not in self.children or child.parent is None:
            raise AppendError(f"{child.id} is no child of {self.id}")
        if child.log.turns.turn is not None:
            raise AppendError(f"turn {child.log.turns.turn} is open in {child.id}")
        result = delegation_result(outcome(child.own))
        call = child.parent.call
        self.result(call, result["content"], is_error=result["isError"])

    def _delegate(self, call: Call, context: str, session_id: str | None) -> Composer:
        parents = (child.parent for child in self.children)
        earlier = [p for p in parents if p is not None and p.call == call]
        parent = parentage(self, self.path, call, context, len(earlier))
        self._start(call)
        default_id = f"{self.id}-{len(self.children) + 1}"
        child = Composer(
            default_id if session_id is None else session_id,
            self.clock.tick(),
            **self.route._asdict(),
            clock=self.clock,
            parent=parent,
        )
        self.children.append(child)
        return child


class Composed(NamedTuple):
    """One session of a composed tree."""

    path: str
    header: Header
    events: Sequence[Event]


class Tree:
    """A session and everything it delegated, as a scenario holds it.

    Args:
        root: the composer of the root session.
    """

    def __init__(self, root: Composer) -> None:
        self.root = root

    def recordings(self) -> list[Composed]:
        """Return the sessions, root first, then in spawn-path order."""
        composers = sorted(_walk(self.root), key=lambda c: sort_key(c.path))
        return [Composed(c.path, c.header, c.log.events) for c in composers]

    def files(self, *, projected: bool = False) -> dict[str, bytes]:
        """Return the files of the scenario, by name, in the order of ``recordings``.

        Args:
            projected: leave out seqs and times, as committed recordings may.
        """
        encode = encode_projected if projected else encode_rows
        return {
            _file_name(number): encode_header(session.header) + encode(session.events)
            for number, session in enumerate(self.recordings())
        }


def _file_name(number: int) -> str:
    return f"session.{number}.jsonl" if number else "session.jsonl"


def _walk(composer: Composer) -> Iterator[Composer]:
    yield composer
    for child in composer.children:
        yield from _walk(child)
