"""The live director: every delegation is real, providers answer, workers run tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from nestling.driver.director import (
    Asked,
    CallRequest,
    Creation,
    Delegation,
    Limits,
    Prompt,
    Real,
    Run,
    Settlement,
    ToolRequest,
)
from nestling.session.event import Event
from nestling.session.header import Header
from nestling.session.jsontext import JsonObject
from nestling.session.outcome import Outcome
from nestling.session.spawn_path import ROOT
from nestling.wire.brief import Brief, encode_brief


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
        root_id: str,
        agent: str,
        prompts: Sequence[Prompt],
        clock: Callable[[], int],
        watcher: Watcher,
        limits: Limits,
        options: JsonObject,
        is_open: bool,
    ) -> None:
        """Prepare a run.

        Args:
            root_id: the id of the root session; its children's are made from it.
            agent: the root's agent reference.
            prompts: what the root is told at first, turn by turn.
            clock: returns the time in epoch milliseconds.
            watcher: who wants to know.
            limits: bounds of the run.
            options: what the root's agent is told (see ``Turn.options``).
            is_open: whether the root may be told more.
        """
        self.limits = limits
        self._root_id = root_id
        self._agent = agent
        self._prompts = tuple(prompts)
        self._clock = clock
        self._watcher = watcher
        self._options = options
        self._is_open = is_open
        self._path_of = {root_id: ROOT}

    # --- creating ----------------------------------------------------------------

    def on_root(self) -> Creation:
        """Create the root."""
        header = Header(self._root_id, self._clock(), {"delegationDepth": 0})
        return Creation(
            header,
            self._agent,
            encode_brief(Brief("root", "", self._options)),
            prompts=self._prompts,
            is_open=self._is_open,
        )

    def on_delegate(self, delegation: Delegation) -> Real:
        """Create the child that a session asks for."""
        child_id = session_id(self._root_id, delegation.path)
        self._path_of[child_id] = delegation.path
        fields: JsonObject = {
            "parentSession": delegation.parent_id,
            "origin": "subagent",
            "delegationDepth": delegation.depth,
            "spawnedBy": msgspec.to_builtins(delegation.spawned_by),
        }
        header = Header(child_id, self._clock(), fields)
        return Real(child_creation(header, delegation))

    def on_created(
        self, session_id: str, header: Header, events: Sequence[Event]
    ) -> None:
        """Pass on what a session starts with and did not inherit."""
        self.on_events(session_id, events[header.seed_length :])

    # --- answering ---------------------------------------------------------------

    def on_stream(self, call: CallRequest) -> Asked:
        """Have the provider that the session's log names answer."""
        return Asked(call.provider)

    def on_tool(self, request: ToolRequest) -> Run:
        """Have the worker run the tool."""
        return Run()

    # --- watching ----------------------------------------------------------------

    def on_events(self, session_id: str, events: Sequence[Event]) -> None:
        """Pass on what a log has grown by."""
        path = self._path_of[session_id]
        for event in events:
            self._watcher.grown(Grown(path, session_id, event))

    def on_idle(self, session_id: str, prompts: int, outcome: Outcome) -> None:
        """Pass on what the root has come to."""
        self._watcher.idle(prompts, outcome)

    def on_refused(self, session_id: str, reason: str, detail: str) -> None:
        """Learn of a worker that could not go on; its settlement tells, too."""

    def on_settled(self, session_id: str, settlement: Settlement) -> None:
        """Pass on how a session ended; a parent is told what its child came to."""
        self._watcher.settled(self._path_of[session_id], settlement)


def child_creation(
    header: Header, delegation: Delegation, *, waits: bool = True
) -> Creation:
    """Return what a child of an agent gets: its brief, and its task as its prompt."""
    is_fork = delegation.spawned_by.context == "fork"
    brief = Brief(
        "fork" if is_fork else "spawn",
        delegation.description,
        delegation.options,
        waits,
    )
    task = {"type": "text", "text": delegation.prompt}
    return Creation(header, delegation.agent, encode_brief(brief), prompts=([task],))


def session_id(root_id: str, path: str) -> str:
    """Return the id of the session at a spawn path; it says where that is."""
    return root_id if path == ROOT else root_id + path.replace("/", ".")
