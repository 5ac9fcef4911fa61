"""The live director: every delegation is real, providers answer, workers run tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from nestling.driver.director import (
    Asked,
    CallRequest,
    CancelInstead,
    Creation,
    Delegation,
    Limits,
    Loss,
    Lost,
    Prompt,
    Real,
    Resume,
    Run,
    Settlement,
    ToolRequest,
)
from nestling.driver.exits import UNKILLABLE
from nestling.driver.stated_cancels import StatedCancels
from nestling.session.event import Event
from nestling.session.header import Header, SpawnedBy
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import Outcome
from nestling.session.spawn_path import ROOT
from nestling.wire.brief import Brief, Origin, encode_brief

STARTED_AS: Final = "agent"
"""The header's key for what a session runs: ``{reference, options?, description?}``.

So that it can be resumed by whoever knows its id alone."""


class Grown(NamedTuple):
    """A session's log has grown.

    Attributes:
        path: the session's spawn path.
        session_id: its id.
        event: what its log has grown by.
    """

    path: str
    session_id: str
    event: Event


class Watcher(NamedTuple):
    """Who wants to know what comes of a run; called in the hub's thread.

    Attributes:
        grown: a log has grown.
        idle: the root has done so many prompts, all it was told, and come to this.
        settled: the session at a spawn path has ended.
    """

    grown: Callable[[Grown], None]
    idle: Callable[[int, Outcome], None]
    settled: Callable[[str, Settlement], None]


class LiveDirector:
    """Runs one tree of agents."""

    def __init__(
        self,
        root: Creation,
        clock: Callable[[], int],
        watcher: Watcher,
        limits: Limits,
        cancels: StatedCancels | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            root: the root session; its children's ids are made from its id.
            clock: returns the time in epoch milliseconds.
            watcher: who wants to know.
            limits: bounds of the run.
            cancels: where turns are cancelled, said ahead.
        """
        self.limits = limits
        self._cancels = StatedCancels(()) if cancels is None else cancels
        self._root = root
        self._clock = clock
        self._watcher = watcher
        self._path_of = {root.header.id: ROOT}
        self._restarted: dict[str, list[int]] = {}

    # --- creating ----------------------------------------------------------------

    def on_root(self) -> Creation:
        """Create the root."""
        return self._root

    def on_delegate(self, delegation: Delegation) -> Real:
        """Create the child that a session asks for."""
        child_id = session_id(self._root.header.id, delegation.path)
        self._path_of[child_id] = delegation.path
        fields: JsonObject = {
            "parentSession": delegation.parent_id,
            "origin": "subagent",
            "delegationDepth": delegation.depth,
            "spawnedBy": msgspec.to_builtins(delegation.spawned_by),
            STARTED_AS: started_as(
                delegation.agent, delegation.options, delegation.description
            ),
        }
        header = Header(child_id, self._clock(), fields)
        bound = self.limits.tool_seconds
        return Real(child_creation(header, delegation, tool_timeout=bound))

    def on_created(
        self, session_id: str, header: Header, events: Sequence[Event]
    ) -> None:
        """Pass on what a session starts with, and was not there before."""
        is_root = session_id == self._root.header.id
        stored = len(self._root.stored or ()) if is_root else 0
        self.on_events(session_id, events[max(header.seed_length, stored) :])

    # --- answering ---------------------------------------------------------------

    def on_stream(self, call: CallRequest) -> Asked:
        """Have the provider that the session's log names answer."""
        path = self._path_of[call.session_id]
        return Asked(call.provider, self._cancels.on_call(path))

    def on_tool(self, request: ToolRequest) -> Run | CancelInstead:
        """Have the worker run the tool, unless its turn is cancelled there."""
        path = self._path_of[request.session_id]
        return self._cancels.on_tool(path, request.name) or Run()

    # --- watching ----------------------------------------------------------------

    def on_events(self, session_id: str, events: Sequence[Event]) -> None:
        """Pass on what a log has grown by."""
        path = self._path_of[session_id]
        for event in events:
            self._cancels.grown(path, event)
            self._watcher.grown(Grown(path, session_id, event))

    def on_idle(self, session_id: str, prompts: int, outcome: Outcome) -> None:
        """Pass on what the root has come to."""
        self._watcher.idle(prompts, outcome)

    def on_refused(self, session_id: str, reason: str, detail: str) -> None:
        """Learn of a worker that could not go on; its settlement tells, too."""

    def on_lost(self, session_id: str, loss: Loss) -> Lost:
        """Let a session end with its worker, or restart it; cancel those below it.

        One that never came to its first event, or that could not be ended, is not
        started again: the next time would be no better.
        """
        may_again = loss.has_begun and loss.exit.cause != UNKILLABLE
        if not may_again or loss.exit.unkillable or not self._restarts(session_id):
            return Lost(is_orderly=True)
        return Lost(resume=Resume(is_told_again=True), is_orderly=True)

    def _restarts(self, session_id: str) -> bool:
        """Tell whether a session may be restarted now, and count it."""
        now, window = self._clock(), self.limits.restart_window * 1000
        recent = [at for at in self._restarted.get(session_id, ()) if now - at < window]
        if len(recent) >= self.limits.restarts:
            return False
        self._restarted[session_id] = [*recent, now]
        return True

    def on_settled(self, session_id: str, settlement: Settlement) -> None:
        """Pass on how a session ended; a parent is told what its child came to."""
        self._watcher.settled(self._path_of[session_id], settlement)


def started_as(agent: str, options: JsonObject, description: str = "") -> JsonObject:
    """Return what a header says of the agent that its session runs."""
    told: JsonObject = {"reference": agent}
    if options:
        told["options"] = options
    if description:
        told["description"] = description
    return told


def stated_start(header: Header) -> JsonObject:
    """Return what ``started_as`` wrote into a header; nothing if it holds none."""
    told = header.fields.get(STARTED_AS)
    return told if type(told) is dict else {}


def new_root(
    session_id: str,
    created_at: int,
    agent: str,
    prompts: Sequence[Prompt],
    options: JsonObject,
    tool_timeout: float | None = None,
) -> Creation:
    """Return a root session that may be told more than its first prompts.

    Args:
        session_id: its id.
        created_at: epoch milliseconds.
        agent: its agent reference.
        prompts: what it is told at first, turn by turn.
        options: what its agent is told (see ``Turn.options``).
        tool_timeout: seconds that a tool may take; None for any time.
    """
    fields = {"delegationDepth": 0, STARTED_AS: started_as(agent, options)}
    return Creation(
        Header(session_id, created_at, fields),
        agent,
        encode_brief(Brief("root", "", options, tool_timeout=tool_timeout)),
        prompts=tuple(prompts),
        is_open=True,
    )


def resumed_root(
    header: Header,
    events: Sequence[Event],
    agent: str,
    prompts: Sequence[Prompt],
    options: JsonObject,
    tool_timeout: float | None = None,
) -> Creation:
    """Return a stored session that goes on; its header stays as it is.

    Args:
        header: the session's.
        events: the whole of its log, no turn open.
        agent: the reference of the agent that it runs from now on.
        prompts: what it is told at first.
        options: what its agent is told.
        tool_timeout: seconds that a tool may take; None for any time.
    """
    description = stated_start(header).get("description", "")
    brief = Brief(
        _origin(header.spawned_by), description, options, tool_timeout=tool_timeout
    )
    return Creation(
        header,
        agent,
        encode_brief(brief),
        prompts=tuple(prompts),
        is_open=True,
        stored=tuple(events),
    )


def child_creation(
    header: Header,
    delegation: Delegation,
    *,
    waits: bool = True,
    tool_timeout: float | None = None,
    holds: tuple[int, ...] = (),
) -> Creation:
    """Return what a child of an agent gets: its brief, and its task as its prompt."""
    brief = Brief(
        _origin(delegation.spawned_by),
        delegation.description,
        delegation.options,
        waits,
        tool_timeout,
        holds,
    )
    task = {"type": "text", "text": delegation.prompt}
    return Creation(header, delegation.agent, encode_brief(brief), prompts=([task],))


def _origin(spawned_by: SpawnedBy | None) -> Origin:
    if spawned_by is None:
        return "root"
    return "fork" if spawned_by.context == "fork" else "spawn"


def session_id(root_id: str, path: str) -> str:
    """Return the id of the session at a spawn path; it says where that is."""
    return root_id if path == ROOT else root_id + path.replace("/", ".")
