"""Scenarios: the recorded sessions of one tree, understood and checked.

This is what replay starts from: which sessions there are, how each came to be, what
its calls were, and that the recordings fit together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, Literal, TypeAlias

import msgspec

from nestling.harness.bind_order import bind_order, by_age
from nestling.harness.delegation import Delegation
from nestling.harness.lineage import Lineage, lineage_of
from nestling.harness.overrides import apply_override
from nestling.harness.own import own_part
from nestling.harness.pairing import pair, spawn_paths
from nestling.harness.scripts import ScriptCall, derive_script
from nestling.harness.seeds import InheritedSeeds, check_seed_digest
from nestling.harness.tool_calls import ToolCall, own_tool_calls
from nestling.session.errors import UnreadableError
from nestling.session.event import Event
from nestling.session.reading import Recording
from nestling.session.spawn_path import ROOT, sort_key

OVERRIDE_NAME: Final = "replay.override.json"

Kind: TypeAlias = Literal["root", "fork", "spawn"]


class RecordedSession(msgspec.Struct, frozen=True, dict=True):
    """One session of a scenario.

    Attributes:
        path: its spawn path; None where none can be derived.
        kind: ``fork`` with its parent's conversation, ``spawn`` without.
        recording: header and events.
        script: its calls, overrides applied.
        depth: how many delegations lie above it.
        parent_path: the spawn path of its parent, if it has one.
        delegation: how it came to be; None for the root, for loose logs, and for a
            child that no delegation of its parent explains.
        is_foreign: a child whose header does not say ``spawnedBy``.
    """

    path: str | None
    kind: Kind
    recording: Recording
    script: tuple[ScriptCall, ...]
    depth: int = 0
    parent_path: str | None = None
    delegation: Delegation | None = None
    is_foreign: bool = False

    @property
    def id(self) -> str:
        """The recorded session id."""
        return self.recording.header.id

    @property
    def seed_length(self) -> int:
        """How many leading events it inherited."""
        return self.recording.header.seed_length

    @cached_property
    def tool_calls(self) -> Sequence[ToolCall]:
        """Its own tool calls.

        Raises:
            UnreadableError: if an event that they stand on is malformed.
        """
        return own_tool_calls(self.recording)

    @cached_property
    def own_events(self) -> Sequence[Event]:
        """The events it did not inherit."""
        return own_part(self.recording)


class Scenario(msgspec.Struct, frozen=True, dict=True):
    """The sessions of one recorded tree.

    Attributes:
        name: what it is called.
        sessions: the root first, then in the order of spawn paths, then those without
            a path by age.
        is_own: it was recorded here, so that every child that went well has a log.
    """

    name: str
    sessions: tuple[RecordedSession, ...]
    is_own: bool = False

    @property
    def root(self) -> RecordedSession:
        """The session that nobody delegated."""
        return self.sessions[0]

    @cached_property
    def by_path(self) -> Mapping[str, RecordedSession]:
        """The sessions that have a spawn path, by it."""
        return {s.path: s for s in self.sessions if s.path is not None}

    @cached_property
    def by_id(self) -> Mapping[str, RecordedSession]:
        """The sessions by recorded id; of loose logs with one id, the first."""
        return {session.id: session for session in reversed(self.sessions)}

    def children(self, session: RecordedSession) -> list[RecordedSession]:
        """Return the sessions that `session` delegated, in order."""
        return self._children.get(session.id, [])

    @cached_property
    def _children(self) -> Mapping[str, list[RecordedSession]]:
        """The children of each session, by its id."""
        children: dict[str, list[RecordedSession]] = {}
        for child in self.sessions:
            parent = child.recording.header.parent_session
            if parent is not None:
                children.setdefault(parent, []).append(child)
        return children


def build_scenario(
    name: str,
    recordings: Sequence[Recording],
    override: bytes | None = None,
    *,
    is_own: bool = False,
) -> Scenario:
    """Understand the recordings of one folder, the root's first.

    Recordings of which none has a ``parentSession`` are loose: they have an order,
    but, if there are several, no spawn paths.

    Args:
        name: what the scenario is called.
        recordings: at least one.
        override: the content of the root's sidecar, if there is one.
        is_own: whether it is known to have been recorded here; a ``spawnedBy`` tells so.

    Raises:
        UnreadableError: if a recording cannot be replayed faithfully, or they do not
            fit together; naming file, line or session, what was found and expected.
    """
    for recording in recordings:
        _check_alone(recording)
    if all(r.header.parent_session is None for r in recordings):
        for recording in recordings:
            check_seed_digest(recording)
        sessions = _loose(recordings)
    else:
        sessions = _tree(lineage_of(recordings))
    is_own = is_own or any(r.header.spawned_by is not None for r in recordings)
    root = sessions[0]
    if override is not None:
        script = apply_override(override, OVERRIDE_NAME, root.script)
        root = msgspec.structs.replace(root, script=tuple(script))
    return Scenario(name, (root, *sessions[1:]), is_own)


def build_single(name: str, recording: Recording) -> Scenario:
    """Understand one log by itself, whatever it says about a parent.

    Raises:
        UnreadableError: as ``build_scenario``.
    """
    _check_alone(recording)
    check_seed_digest(recording)
    is_root = recording.header.parent_session is None
    session = RecordedSession(
        path=ROOT if is_root else None,
        kind="root" if is_root else _kind(recording, None),
        recording=recording,
        script=_script(recording),
        depth=recording.header.delegation_depth or 0,
        is_foreign=not is_root and recording.header.spawned_by is None,
    )
    return Scenario(name, (session,))


def _check_alone(recording: Recording) -> None:
    if not recording.header.id:
        raise UnreadableError(
            f"{recording.name}: the header has no id, expected a non-empty string"
        )
    own_part(recording)


def _script(recording: Recording) -> tuple[ScriptCall, ...]:
    return tuple(derive_script(recording))


def _kind(recording: Recording, delegation: Delegation | None) -> Kind:
    """Tell fork from spawn; the fork of a parent's first turn inherited nothing."""
    if delegation is not None:
        context = delegation.spawned_by.context
    elif recording.header.spawned_by is not None:
        context = recording.header.spawned_by.context
    else:
        context = "fork" if recording.header.seed_length else "spawn"
    return "fork" if context == "fork" else "spawn"


def _loose(recordings: Sequence[Recording]) -> list[RecordedSession]:
    first, *others = bind_order(recordings)
    root = RecordedSession(
        None if others else ROOT, "root", first, _script(first), depth=0
    )
    return [root, *map(_loose_session, others)]


def _loose_session(recording: Recording) -> RecordedSession:
    return RecordedSession(
        path=None,
        kind=_kind(recording, None),
        recording=recording,
        script=_script(recording),
        depth=recording.header.delegation_depth or 0,
        is_foreign=recording.header.spawned_by is None,
    )


def _tree(lineage: Lineage) -> list[RecordedSession]:
    check_seed_digest(lineage.sessions[0])
    for parent in lineage.sessions:
        seeds = InheritedSeeds(parent)
        children = lineage.children[parent.header.id]
        for child in sorted(children, key=lambda child: child.header.seed_length):
            seeds.check(child)
    delegations = pair(lineage)
    paths = spawn_paths(lineage, delegations)
    return [
        _tree_session(recording, lineage, delegations, paths)
        for recording in _ordered(lineage, paths)
    ]


def _ordered(lineage: Lineage, paths: Mapping[str, str | None]) -> Iterable[Recording]:
    """Yield sessions in the order of their paths, then those without one by age."""
    waiting = [lineage.sessions[0]]
    while waiting:
        session = waiting.pop()
        yield session
        below = [
            (sort_key(path.rpartition("/")[2]), child)
            for child in lineage.children[session.header.id]
            if (path := paths[child.header.id]) is not None
        ]
        waiting += [c for _, c in sorted(below, key=lambda p: p[0], reverse=True)]
    yield from by_age(r for r in lineage.sessions if paths[r.header.id] is None)


def _tree_session(
    recording: Recording,
    lineage: Lineage,
    delegations: Mapping[str, Delegation | None],
    paths: Mapping[str, str | None],
) -> RecordedSession:
    header = recording.header
    parent = header.parent_session
    delegation = delegations[header.id]
    return RecordedSession(
        path=paths[header.id],
        kind="root" if parent is None else _kind(recording, delegation),
        recording=recording,
        script=_script(recording),
        depth=lineage.depths[header.id],
        parent_path=None if parent is None else paths[parent],
        delegation=delegation,
        is_foreign=parent is not None and header.spawned_by is None,
    )
